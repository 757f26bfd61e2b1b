"""What an experiment is: how it runs at each scale, and how its record becomes tables and figures."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jax.sharding import Mesh

from bornbiased_jax import io, progress
from bornbiased_jax.chunk_store import Chunk, Compute
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.io import Folder
from bornbiased_jax.model.layers import HIGHEST
from bornbiased_jax.record import computing_device, jsonable, library_versions
from bornbiased_jax.report.tables import Claim, Panel, Table, Value
from bornbiased_jax.store import Request, fulfill

MAKER = "bornbiased reproduce"

T = TypeVar("T")

LABELS = (
    (r"^renumber$", "permute coordinates"),
    (r"\brenumbered\b", "permuted"),
    (r"\ba birth\b", "an initialization"),
    (r"\bbirth(s?)\b", r"initialization\1"),
    (r"\bcentred attention\b", "centered attention"),
    (r"\bre-quantisation\b", "requantization"),
)
"""Words in the keys of records -> words for readers."""

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

Entry = Mapping[str, Any]
"""A part of a record, or of an experiment's settings, as JSON has it."""


@dataclasses.dataclass(frozen=True)
class Context:
    """The inputs of a run.

    Attributes:
        scale: one of :data:`SCALES`.
        settings: the experiment's settings at this scale.
        work: a folder of this experiment's own, for what lets a long run resume; made when written to.
        data: the ``--data`` option, or None for the experiment's default.
        quiet: show no progress.
        mesh: the ``--mesh`` option as the sweep takes it, or None for one device.
        engine: of ``--engine``, who computes what is cut into chunks.
        precision: of ``--precision``, how float32 matrices are multiplied.
    """

    scale: str
    settings: Mapping[str, Any]
    work: Path
    data: str | None = None
    quiet: bool = False
    mesh: Mesh | None = None
    engine: Engine = local
    precision: str = HIGHEST

    def cached(self, name: str, identity: object, compute: Callable[[Path], T]) -> T:
        """Call :func:`cached` in the output folder, shared by its experiments."""
        return cached(self.work.parent / name, identity, compute)

    def parts(
        self,
        name: str,
        compute: Compute,
        settings: Mapping[str, Any],
        chunks: Iterable[Chunk],
        *,
        sources: Mapping[str, Any] | None = None,
        advance: Callable[[int], None] | None = None,
    ) -> list[Any]:
        """Compute values of the chunks of a long loop, each kept, with the engine of ``--engine``.

        Args:
            name: of the store's folder, shared by the output folder's experiments.
            compute: a module's ``compute``, made by :func:`chunked`; any process imports it by name.
            settings: all that the values depend on besides the chunk and the function's code.
            chunks: of the loop (:func:`spans`); a loop in a loop has the outer place in place of a seed.
            sources: where a process finds what it needs besides, JSON-ready.
            advance: called with the length of each chunk that is done.
        """
        function = f"{compute.__module__}:{compute.__qualname__}"
        request = Request(function, jsonable(settings), list(chunks), sources=sources or {})
        outcomes = fulfill(request, self.work.parent / name, self.engine, advance)
        return [json.loads(str(part["value"])) for part in outcomes]

    @property
    def sources(self) -> dict[str, str]:
        """The folders in which another process finds what this one has cached; see :func:`once_a_process`."""
        return {"work": str(self.work.resolve())}

    def rows(
        self, name: str, compute: Compute, settings: Entry, total: int, *, size: int = 1, unit: str = "pairs"
    ) -> list[Any]:
        """Join the lists that :meth:`parts` computes of the chunks of ``range(total)``, under a progress bar."""
        with progress.bar(total, name, unit=unit, quiet=self.quiet) as advance:
            chunks = spans(total, size)
            values = self.parts(name, compute, settings, chunks, sources=self.sources, advance=advance)
        return [row for value in values for row in value]


def each(items: Collection[T], label: str, unit: str, quiet: bool) -> Iterator[T]:
    """Yield items under a progress bar (:func:`.progress.bar`), which counts them as they are done."""
    with progress.bar(len(items), label, unit=unit, quiet=quiet) as advance:
        for item in items:
            yield item
            advance()


def chunked(value_of: Callable[[Any, Any, Chunk], object]) -> Compute:
    """Make the ``compute`` of a store from a function of settings, sources and one chunk: its value, JSON-ready."""

    @functools.wraps(value_of)
    def compute(
        settings: Mapping[str, Any], sources: Mapping[str, Any], chunks: list[Chunk]
    ) -> Iterator[dict[str, np.ndarray]]:
        for chunk in chunks:
            yield {"value": np.asarray(json.dumps(jsonable(value_of(settings, sources, chunk)), allow_nan=False))}

    return compute


def once_a_process(make: Callable[[Context], T]) -> Callable[[Entry, Entry], T]:
    """Keep what every chunk of a loop needs (:meth:`Context.rows`): called with settings and :attr:`Context.sources`.

    What ``make`` caches in its context is found again by every process.
    """

    @functools.lru_cache(maxsize=1)
    def cached_value(settings: str, work: str) -> T:
        return make(Context(scale="", settings=json.loads(settings), work=Path(work), quiet=True))

    @functools.wraps(make)
    def lookup(settings: Entry, sources: Entry) -> T:
        return cached_value(json.dumps(jsonable(settings)), sources["work"])

    return lookup


def spans(total: int, size: int = 1) -> list[Chunk]:
    """Cut ``range(total)`` into chunks of a size.

    Example:
        >>> [(chunk.start, chunk.stop) for chunk in spans(5, 2)]
        [(0, 2), (2, 4), (4, 5)]
    """
    return [Chunk(0, start, min(start + size, total)) for start in range(0, total, size)]


def cached(place: Path, identity: object, compute: Callable[[Path], T]) -> T:
    """Return the value of ``compute``, kept on disk; computed again by other code, other libraries, another device.

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
        if path.exists() and not _is_complete(store, path):
            aside = io.set_aside(path)
            progress.warn(f"{path} is corrupted: set aside as {aside.name}, and computed again")
    if not array.exists() and not value.exists():
        computed = compute(folder)
        if isinstance(computed, np.ndarray):
            stream = BytesIO()
            np.save(stream, computed)
            store.write_bytes(array.name, stream.getvalue())
        else:
            store.write_json(value.name, {"identity": jsonable(identity), "value": jsonable(computed)})
    return np.load(array) if array.exists() else io.read_json(value)["value"]


def _is_complete(store: Folder, path: Path) -> bool:
    """Check whether a value is as written; one of a version that noted no digest, whether it can be read."""
    if store.knows(path.name):
        return store.owns(path.name)
    try:
        return np.load(path) is not None if path.suffix == ".npy" else "value" in io.read_json(path)
    except (InputError, ValueError, EOFError, OSError, TypeError):
        return False


def cache_folder(place: Path, identity: object, compute: Callable[..., object]) -> Path:
    """Return where :func:`cached` keeps its value for these arguments; nothing is made or written."""
    key = {"code": code_digest(compute), "versions": library_versions(), "identity": jsonable(identity)}
    # A CPU's values have the names that they had before others were told apart.
    if (device := computing_device()) != "cpu":
        key["device"] = device
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


def source_name(source: str) -> str:
    """Return a source of ``--data`` as a record has it: a file of this machine by its name, anything else as it is.

    Example:
        >>> source_name("/home/me/texts/wiki.txt"), source_name("builtin:prose")
        ('wiki.txt', 'builtin:prose')
    """
    return Path(source).name if source.startswith(("/", "~")) else source


def by_scale(scales: Sequence[str] = SCALES, /, **settings: object) -> dict[str, dict[str, Any]]:
    """Build settings of every scale from one entry a setting: a value for all scales, or a tuple of one for each.

    A mapping holds further settings in the same form; an ellipsis leaves a setting out at its scale.

    Example:
        >>> by_scale(("smoke", "laptop"), seeds=[42], steps=(8, 320), data=(..., "a.txt"))
        {'smoke': {'seeds': [42], 'steps': 8}, 'laptop': {'seeds': [42], 'steps': 320, 'data': 'a.txt'}}
    """
    return {scale: _at(settings, index) for index, scale in enumerate(scales)}


def _at(settings: Entry, index: int) -> dict[str, Any]:
    values = {name: value[index] if isinstance(value, tuple) else value for name, value in settings.items()}
    return {
        name: _at(value, index) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if value is not ...
    }


def _empty(_record: Record) -> Sequence[Any]:
    return ()


def _reason(record: Record) -> str:
    """Say why a run found no model to measure, if so."""
    return str(record["result"].get("reason", ""))


def where_attempted(show: Callable[[Record], T]) -> Callable[[Record], T]:
    """Show nothing of a record whose run found no model to measure; its headline is the reason."""

    @functools.wraps(show)
    def rendered(record: Record) -> T:
        if record["result"]["attempted"]:
            return show(record)
        empty: Any = _reason(record) if show.__name__ == "headline" else []
        return empty

    return rendered


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
        cost: for each scale, the time and the machine it was measured on, in words; see :meth:`cost_at`.
        run: computes the result: a dict of JSON-ready values (arrays are converted).
        precision: the precision of the computation, for the record.
        takes_precision: ``run`` multiplies as :attr:`Context.precision` says; others refuse ``--precision``.
        takes_data: the scales at which ``run`` reads :attr:`Context.data`; it is None at others.
        claims: the rows of the page's first screen.
        tables: tables with what the paper printed next to what was measured.
        figures: figures.
        headline: one sentence for the top of the page: its numbers or, without a model to measure, the reason.
    """

    name: str
    title: str
    paper: str = "no paper's table"
    description: str
    settings: Mapping[str, Mapping[str, Any]]
    cost: Mapping[str, str]
    run: Callable[[Context], Mapping[str, Any]]
    precision: str = "float32 highest"
    takes_precision: bool = False
    takes_data: Sequence[str] = ()
    claims: Callable[[Record], Sequence[Claim]] = _empty
    tables: Callable[[Record], Sequence[Table]] = _empty
    figures: Callable[[Record], Sequence[Panel]] = _empty
    headline: Callable[[Record], str] = _reason

    def cost_at(self, scale: str) -> str:
        """Return the cost at a scale: seconds at smoke unless ``cost`` states it, "" where nothing is stated."""
        default = "seconds" if scale == "smoke" and scale in self.settings else ""
        return self.cost.get(scale, default)

    def precision_by(self, name: str) -> str:
        """Return the precision of a run with ``--precision NAME``, for the record."""
        return self.precision if name == HIGHEST else f"float32 {name}"

    def command(self, scale: str, data: str | None = None, out: Path | str = "out") -> str:
        """Return the command line that makes this, quoted for a shell."""
        option = [] if data is None else ["--data", data]
        return shlex.join(["bornbiased", "reproduce", self.name, "--scale", scale, *option, "--out", str(out)])


def variants(experiment: Experiment, **fields_by_name: Mapping[str, Any]) -> dict[str, Experiment]:
    """Map names to an experiment and its variants: each has a name and some fields of its own."""
    replaced = {name: dataclasses.replace(experiment, name=name, **fields) for name, fields in fields_by_name.items()}
    return {experiment.name: experiment, **replaced}


def relabel(table: Table) -> Table:
    """Replace the words that a table took over from the keys of its record (:data:`LABELS`)."""

    def words(text: str) -> str:
        for pattern, label in LABELS:
            text = re.sub(pattern, label, text)
        return text

    def cell(value: Value) -> Value:
        return words(value) if isinstance(value, str) else value

    def cells(values: Mapping[str, Value]) -> dict[str, Value]:
        return {words(name): cell(value) for name, value in values.items()}

    rows = [
        dataclasses.replace(
            row,
            settings=[cell(value) for value in row.settings],
            paper=cells(row.paper),
            measured=cells(row.measured),
            theory=cells(row.theory),
        )
        for row in table.rows
    ]
    quantities = [dataclasses.replace(quantity, name=words(quantity.name)) for quantity in table.quantities]
    return dataclasses.replace(table, quantities=quantities, rows=rows, note=words(table.note))
