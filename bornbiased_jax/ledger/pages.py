"""The folder in which finished chunks are kept: one page a task, one file a chunk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np
from annotated_types import Len
from typing_extensions import TypedDict

from bornbiased_jax import io, progress, schema
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import Folder
from bornbiased_jax.record import library_versions

MAKER = "bornbiased ledger"
TASK_FILE = "task.json"
ASKED, FAILED = "asked-", "failed-"
_FUNCTION = re.compile(r"(bornbiased_jax|experiments|tests)(\.\w+)+:compute")
_EDITED = "it was edited or damaged: remove it"

Tree = Mapping[str, Any]
"""A chunk's result: a nested dict of arrays."""
Compute = Callable[[Mapping[str, Any], Mapping[str, Any], list["Chunk"]], Iterable[Tree]]
"""A task's function: (settings, sources, chunks) -> their results, in this order."""


class Chunk(NamedTuple):
    """The smallest thing that is kept: one seed on a range of inputs, the end left out.

    A task of one model has seed 0, and so has one that goes through something else: its ranges are of that.
    """

    seed: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Of its file."""
        return f"seed{self.seed}-inputs{self.start}-{self.stop}.npz"

    @classmethod
    def named(cls, name: str) -> Chunk | None:
        """Return the chunk whose file has this name, or None.

        Example:
            >>> Chunk.named(Chunk(42, 0, 2000).name)
            Chunk(seed=42, start=0, stop=2000)
        """
        match = re.fullmatch(r"seed(\d+)-inputs(\d+)-(\d+)\.npz", name)
        return None if match is None else cls(*map(int, match.groups()))


class TaskRecord(TypedDict):
    """``task.json`` of a page: everything its numbers depend on, but for seed and range."""

    function: str
    settings: dict[str, Any]
    code: str
    libraries: dict[str, str]
    device: str


class AskedRecord(TypedDict):
    """``asked-….json`` of a page: every seed on every range."""

    seeds: list[int]
    ranges: list[Annotated[list[int], Len(2, 2)]]


class FailedRecord(TypedDict):
    """``failed-….json`` of a page: a chunk, and what its computation raised."""

    chunk: Annotated[list[int], Len(3, 3)]
    error: str


class Task(NamedTuple):
    """A function and what its results depend on besides seed and range of inputs.

    Attributes:
        function: ``module:compute``, a :data:`Compute`.
        settings: JSON-ready; they cross to other processes as JSON.
        code: digest of the code behind the function.
        libraries: their versions.
        device: the platform that computes ("cpu", "gpu").
    """

    function: str
    settings: Mapping[str, Any]
    code: str
    libraries: Mapping[str, str]
    device: str

    @property
    def key(self) -> str:
        """16 hexadecimal digits of all of it: the name of its page."""
        text = json.dumps(self._asdict(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_of(function: str, settings: Mapping[str, Any]) -> Task:
    """Return the task of a function with these settings, by code, libraries and devices of this process."""
    libraries = {name: version for name, version in library_versions().items() if name != "python"}
    plain = json.loads(json.dumps(settings, allow_nan=False))
    return Task(function, plain, code_digest(resolve(function)), libraries, jax.default_backend())


@functools.cache
def resolve(function: str) -> Compute:
    """Import the function that ``module:compute`` names, of this project alone: a page may come from elsewhere.

    Raises:
        InputError: it is another's, or there is none.
    """
    module = function.removesuffix(":compute")
    try:
        if not _FUNCTION.fullmatch(function):
            raise ImportError("it is none of this project")
        compute: Compute = importlib.import_module(module).compute
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"a page is of the function {schema.shown(function)}, which is not to be had: {error}"
        ) from error
    return compute


class Ledger:
    """A folder of pages.

    Attributes:
        path: where it is; made when the first page is written.
    """

    def __init__(self, path: Path | str) -> None:
        self._folder = Folder(path, MAKER)
        self.path = self._folder.path

    def check(self) -> None:
        """Refuse a folder of other things; nothing is made.

        Raises:
            InputError: it is one.
        """
        self._folder.check()

    def claim(self) -> None:
        """Make the folder where it is not there yet.

        Raises:
            InputError: it cannot be written.
        """
        self._folder.claim()

    def page(self, task: Task) -> Page:
        """Return the page of a task; it may be empty."""
        return Page(self, task)

    def pages(self) -> list[Page]:
        """Return all pages with a readable task, by their names.

        Raises:
            InputError: the folder is no ledger.
        """
        if not self._folder.made_here:
            raise InputError(f"{self.path} is no ledger: name the folder that was given to --resume")
        pages = []
        for name in self._folder.entries():
            if (self.path / name / TASK_FILE).is_file():
                place = self.path / name / TASK_FILE
                task = Task(**schema.check(TaskRecord, io.read_json(place), str(place), _EDITED))
                if task.key != name:
                    raise InputError(f"{place} does not belong into its folder: {_EDITED}")
                pages.append(self.page(task))
        return pages


class Page:
    """The finished chunks of one task, as files of its folder."""

    def __init__(self, ledger: Ledger, task: Task) -> None:
        self.ledger, self.task = ledger, task
        self.path = ledger.path / task.key

    def names(self) -> list[str]:
        """List the names of all files, from one look at the folder."""
        try:
            with os.scandir(self.path) as entries:
                return [entry.name for entry in entries]
        except OSError:
            return []

    def done(self) -> set[Chunk]:
        """Return the chunks whose files exist; whether they are intact is checked when they are read."""
        return {chunk for chunk in map(Chunk.named, self.names()) if chunk is not None}

    def open(self, requested: Iterable[Chunk]) -> None:
        """Begin the page, or continue it: record its task and which chunks were requested.

        Raises:
            InputError: it cannot be written.
        """
        self.ledger.claim()
        for name, content in ((TASK_FILE, self.task._asdict()), _asked(requested)):
            if not (self.path / name).is_file():
                io.write_json(self.path / name, content)
        io.check_writable(self.path / TASK_FILE)

    def asked(self) -> set[Chunk]:
        """Return every chunk that was requested so far."""
        requested: set[Chunk] = set()
        for name in self.names():
            if name.startswith(ASKED):
                place = str(self.path / name)
                note = schema.check(AskedRecord, io.read_json(place), place, _EDITED)
                requested |= {Chunk(seed, start, stop) for seed in note["seeds"] for start, stop in note["ranges"]}
        return requested

    def write(self, chunk: Chunk, tree: Tree) -> None:
        """Store one result: the same bytes for the same numbers.

        Raises:
            InputError: it cannot be written.
        """
        flat = _flatten(tree)
        about = {"page": self.task.key, "chunk": chunk.name, "names": list(flat), "sha256": _digest(flat)}
        buffer = BytesIO()
        arrays: dict[str, Any] = {f"leaf{i}": leaf for i, leaf in enumerate(flat.values())}
        np.savez(buffer, about=np.asarray(json.dumps(about)), **arrays)
        io.write_bytes(self.path / chunk.name, buffer.getvalue())
        (self.path / f"{FAILED}{chunk.name}.json").unlink(missing_ok=True)

    def read(self, chunk: Chunk) -> dict[str, Any] | None:
        """Read one result, or None where there is none; a corrupted one is named, set aside, and counts as none."""
        path = self.path / chunk.name
        if not os.path.lexists(path):
            return None
        try:
            with io.check_regular(path).open("rb") as stream, np.load(stream, allow_pickle=False) as stored:
                about = json.loads(str(stored["about"]))
                flat = {name: stored[f"leaf{i}"] for i, name in enumerate(about["names"])}
            if (about["page"], about["chunk"]) != (self.task.key, chunk.name):
                raise ValueError("it is another chunk's")
            if about["sha256"] != _digest(flat):
                raise ValueError("it is not what was written")
            return _unflatten(flat)
        except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            place = io.set_aside(path)
            progress.warn(f"{path} is damaged ({error}): set aside as {place.name}, and computed again")
            return None

    def fail(self, chunks: Iterable[Chunk], error: BaseException) -> None:
        """Note that chunks could not be computed, and why."""
        text = schema.cut(f"{type(error).__name__}: {error}")
        for chunk in chunks:
            io.write_json(self.path / f"{FAILED}{chunk.name}.json", {"chunk": list(chunk), "error": text})

    def failures(self) -> dict[Chunk, str]:
        """Return chunks that failed and were not computed since, with the reason."""
        reasons = {}
        for name in self.names():
            if name.startswith(FAILED):
                place = str(self.path / name)
                try:
                    entry = schema.check(FailedRecord, io.read_json(place), place, _EDITED)
                except InputError:
                    # The chunk was computed meanwhile: its note is gone.
                    if os.path.lexists(place):
                        raise
                    continue
                reasons[Chunk(*entry["chunk"])] = entry["error"]
        finished = self.done()
        return {chunk: reason for chunk, reason in reasons.items() if chunk not in finished}

    def times(self) -> list[float]:
        """Return when each finished chunk was written, in seconds since 1970, ascending."""
        times = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if Chunk.named(entry.name) is not None:
                    # One that is set aside meanwhile is no longer there.
                    with contextlib.suppress(FileNotFoundError):
                        times.append(entry.stat().st_mtime)
        return sorted(times)


def _asked(chunks: Iterable[Chunk]) -> tuple[str, dict[str, Any]]:
    """Build the record of requested chunks: a file named by its content, so that drivers do not collide."""
    requested = sorted(set(chunks))
    content = {
        "seeds": sorted({chunk.seed for chunk in requested}),
        "ranges": sorted({(chunk.start, chunk.stop) for chunk in requested}),
    }
    return f"{ASKED}{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}.json", content


def _digest(flat: Mapping[str, np.ndarray]) -> str:
    hasher = hashlib.sha256()
    for name, leaf in flat.items():
        hasher.update(f"{name}\0{leaf.dtype.str}{list(leaf.shape)}\0".encode())
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    return hasher.hexdigest()


def _flatten(tree: Tree, prefix: str = "") -> dict[str, np.ndarray]:
    flat: dict[str, np.ndarray] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat |= _flatten(value, f"{path}/") if isinstance(value, Mapping) else {path: np.asarray(value)}
    return flat


def _unflatten(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = value
    return tree
