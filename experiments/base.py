"""What an experiment is: how it runs at each scale, and how its record becomes tables and figures."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax import io, progress
from bornbiased_jax.chunk_store import Chunk, Compute
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.folders import Folder
from bornbiased_jax.record import jsonable, library_versions
from bornbiased_jax.report.tables import Claim, Panel, Table
from bornbiased_jax.store import Request, fulfill

MAKER = "bornbiased reproduce"

SCALES = ("smoke", "laptop", "paper")
"""Seconds, as the tests run it; minutes on two cores; the paper's sizes."""

Record = Mapping[str, Any]
"""One run of an experiment, as it lies on disk: JSON with the keys

    experiment, scale, settings, data     what was asked for
    status                                "complete" or "failed"
    result                                what ``run`` returned (complete)
    error                                 why there is no result (failed)
    provenance                            versions, device, precision, revision, wall time, peak memory
    verified                              commit, scale, command and largest difference of a later rerun (optional)
"""


@dataclasses.dataclass(frozen=True)
class Context:
    """What a run is given.

    Attributes:
        scale: one of :data:`SCALES`.
        settings: the experiment's settings at this scale.
        work: a folder of this experiment's own, for what lets a long run resume; made when written to.
        data: the ``--data`` option, or None for the experiment's default.
        quiet: show no progress.
        mesh: the ``--mesh`` option as the sweep takes it, or None for one device.
        engine: of ``--engine``, who computes what is cut into chunks.
    """

    scale: str
    settings: Mapping[str, Any]
    work: Path
    data: str | None = None
    quiet: bool = False
    mesh: Any = None
    engine: Engine = local

    def cached(self, name: str, identity: Any, compute: Callable[[Path], Any]) -> Any:
        """Call :func:`cached` in the output folder, shared by its experiments."""
        return cached(self.work.parent / name, identity, compute)

    def folder(self, name: str, identity: Any, compute: Callable[[Path], Any]) -> Path:
        """Return the folder of :meth:`cached` for the same arguments, where the files that ``compute`` writes lie."""
        return cache_folder(self.work.parent / name, identity, compute)

    def parts(
        self,
        name: str,
        function: str,
        settings: Mapping[str, Any],
        spans: Sequence[tuple[int, int] | Chunk],
        *,
        here: Compute | None = None,
        sources: Mapping[str, Any] | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> list[Any]:
        """Compute values of the parts of a long loop, each kept, with the engine of ``--engine``.

        Args:
            name: of the store's folder, shared by the output folder's experiments.
            function: ``module:compute``, which yields :func:`part_of` a value for each chunk in any process.
            settings: all that the values depend on besides the span and the function's code.
            spans: of the loop, the ends left out; a loop in a loop names chunks, the outer place in place of a seed.
            here: the same function for this process, where it has at hand what others must make again.
            sources: what others need to know to do so, JSON-ready.
            advance: called with the length of a span when another process, or ``function`` in this one, has it.
        """
        chunks = [span if isinstance(span, Chunk) else Chunk(0, *span) for span in spans]
        request = Request(function, jsonable(settings), chunks, here, sources=sources or {})
        outcomes = fulfill(request, self.work.parent / name, self.engine, advance)
        return [json.loads(str(part["value"])) for part in outcomes]


def part_of(value: Any) -> dict[str, Any]:
    """Return a JSON-ready value as a store keeps it."""
    return {"value": np.asarray(json.dumps(jsonable(value), allow_nan=False))}


def cached(place: Path, identity: Any, compute: Callable[[Path], Any]) -> Any:
    """Return the value of ``compute``, kept on disk and computed again when its code or a library has changed.

    Args:
        place: folder and name; the key is added to it: ``births/gpt2-nano`` -> ``births/gpt2-nano-0123456789abcdef``.
        identity: everything that ``compute`` depends on but its code, JSON-ready after ``jsonable``.
        compute: called with a folder of its own, where what a killed call left is found by the next one; gives a
            JSON-ready value or an array. Its code is known by :func:`bornbiased_jax.code.code_digest`.

    Returns:
        The value as it was read from disk, also the first time.
    """
    folder = cache_folder(place, identity, compute)
    array, value = folder / "value.npy", folder / "value.json"
    store = Folder(folder, MAKER)
    for path in (array, value):
        if path.exists() and not _whole(store, path):
            aside = io.set_aside(path)
            progress.warn(f"{path} is damaged: set aside as {aside.name}, and computed again")
    if not array.exists() and not value.exists():
        computed = compute(folder)
        if isinstance(computed, np.ndarray):
            stream = BytesIO()
            np.save(stream, computed)
            store.write_bytes(array.name, stream.getvalue())
        else:
            store.write_json(value.name, {"identity": jsonable(identity), "value": jsonable(computed)})
    return np.load(array) if array.exists() else io.read_json(value)["value"]


def _whole(store: Folder, path: Path) -> bool:
    """Check whether a value is as written; one of a version that noted no digest, whether it can be read."""
    if store.knows(path.name):
        return store.owns(path.name)
    try:
        return np.load(path) is not None if path.suffix == ".npy" else "value" in io.read_json(path)
    except (InputError, ValueError, EOFError, OSError, TypeError):
        return False


def cache_folder(place: Path, identity: Any, compute: Callable[..., Any]) -> Path:
    """Return where :func:`cached` keeps its value for these arguments; nothing is made or written."""
    key = {"code": code_digest(compute), "versions": library_versions(), "identity": jsonable(identity)}
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return place.with_name(f"{place.name}-{digest}")


def split_data(data: str | None) -> list[tuple[str | None, str]]:
    """Split the sources of ``--data``: SOURCE;… or ROLE=SOURCE;… as (role or None, source).

    A path may hold "=": what lies there as a whole is no role, nor is what holds a slash before the "=".

    Example:
        >>> split_data("base=a.txt;b.txt;runs/lr=0.1/text.txt")
        [('base', 'a.txt'), (None, 'b.txt'), (None, 'runs/lr=0.1/text.txt')]
    """
    pairs: list[tuple[str | None, str]] = []
    for part in filter(None, (data or "").split(";")):
        role, separator, source = part.partition("=")
        named = (
            separator and source and re.fullmatch(r"[^/~:@,]+", role) and not os.path.exists(os.path.expanduser(part))
        )
        pairs.append((role, source) if named else (None, part))
    return pairs


def by_scale(scales: Sequence[str] = SCALES, /, **settings: Any) -> dict[str, dict[str, Any]]:
    """Build settings of every scale from one entry a setting: a value for all scales, or a tuple of one for each.

    A mapping holds further settings in the same form; an ellipsis leaves a setting out at its scale.

    Example:
        >>> by_scale(("smoke", "laptop"), seeds=[42], steps=(8, 320), data=(..., "a.txt"))
        {'smoke': {'seeds': [42], 'steps': 8}, 'laptop': {'seeds': [42], 'steps': 320, 'data': 'a.txt'}}
    """
    return {scale: _at(settings, index) for index, scale in enumerate(scales)}


def _at(settings: Mapping[str, Any], index: int) -> dict[str, Any]:
    chosen = {name: value[index] if isinstance(value, tuple) else value for name, value in settings.items()}
    return {
        name: _at(value, index) if isinstance(value, Mapping) else value
        for name, value in chosen.items()
        if value is not ...
    }


def _nothing(record: Record) -> Sequence[Any]:
    return ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of a paper.

    The numbers and their display are apart: ``run`` gives numbers alone, and the page is drawn from the
    record on disk, so that it can be made again without running anything.

    Attributes:
        name: the name on the command line.
        title: the heading on the page.
        paper: what it reproduces ("Table 1"), if anything.
        description: what is done and what is to be seen; paragraphs are separated by blank lines.
        settings: for each scale, the sizes and seeds, as JSON-ready values. A record with other settings
            is not taken for this one's.
        cost: for each scale, the time and the machine it was measured on, in words.
        run: computes the result: a dict of JSON-ready values (arrays are converted).
        precision: the precision of the computation, for the record.
        claims: the rows of the page's first screen.
        tables: tables with what the paper printed beside what was measured.
        figures: figures.
        headline: one sentence with its numbers for the top of the page, or "".
    """

    name: str
    title: str
    paper: str = "no paper's table"
    description: str
    settings: Mapping[str, Mapping[str, Any]]
    cost: Mapping[str, str]
    run: Callable[[Context], Mapping[str, Any]]
    precision: str = "float32 highest"
    claims: Callable[[Record], Sequence[Claim]] = _nothing
    tables: Callable[[Record], Sequence[Table]] = _nothing
    figures: Callable[[Record], Sequence[Panel]] = _nothing
    headline: Callable[[Record], str] = lambda record: ""

    def command(self, scale: str, data: str | None = None, out: Path | str = "out") -> str:
        """The command line that makes this, quoted for a shell."""
        option = [] if data is None else ["--data", data]
        return shlex.join(["bornbiased", "reproduce", self.name, "--scale", scale, *option, "--out", str(out)])
