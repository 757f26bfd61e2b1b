"""The folder of a store: a folder for each task in it, and a file for each finished chunk of the task.

A task is named by the digest of everything that its numbers depend on, a chunk by its seed and its range of inputs.
Files are written atomically, and nobody reserves a chunk: several processes may fill one store, and a chunk computed
twice is the same file.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import importlib
import json
import math
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from annotated_types import Len
from flax.traverse_util import flatten_dict, unflatten_dict
from typing_extensions import TypedDict

from bornbiased_jax import io, progress, schema
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import Folder
from bornbiased_jax.record import computing_device, library_versions

# Names of files and of the maker are those of stores of earlier versions.
MAKER = "bornbiased ledger"
TASK_FILE = "task.json"
REQUESTED, FAILED = "asked-", "failed-"
_FUNCTION = re.compile(r"(bornbiased_jax|experiments|tests)(\.\w+)+:compute")
_UNOPENED = frozenset((errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.ESTALE))
"""Errors of opening a file that say nothing about its content."""
MOST_REQUESTED = 10_000_000
"""Chunks that one record of a request names: more would take more time than there is, and more memory to list them."""
_REMOVE = "it was edited or corrupted: remove it"

T = TypeVar("T")
TaskSettings = Mapping[str, Any]
"""JSON-ready settings of a task."""
Results = dict[str, Any]
"""A chunk's result: a nested dict of arrays, as JAX and Flax take trees."""
Compute = Callable[[TaskSettings, TaskSettings, list["Chunk"]], Iterable[Mapping[str, Any]]]
"""A task's function: (settings, sources, chunks) -> their results, in this order."""


class Chunk(NamedTuple):
    """The smallest unit of work: one seed on a range of inputs, the end left out.

    A task of one model has seed 0, and so has a task over something else than inputs: its ranges are of that.
    """

    seed: int
    start: int
    stop: int

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"seed{self.seed}-inputs{self.start}-{self.stop}.npz"

    @classmethod
    def named(cls, name: str) -> Chunk | None:
        """Return the chunk whose file has this name, or None.

        Example:
            >>> Chunk.named(Chunk(42, 0, 2000).name)
            Chunk(seed=42, start=0, stop=2000)
        """
        match = re.fullmatch(r"seed(\d+)-inputs(\d+)-(\d+)\.npz", name)
        chunk = None if match is None else cls(*map(int, match.groups()))
        # Digits of other scripts and leading zeros name no chunk.
        return chunk if chunk is not None and chunk.name == name else None


class RequestedRecord(TypedDict):
    """``asked-….json``: requested chunks, every seed on every range."""

    seeds: list[int]
    ranges: list[Annotated[list[int], Len(2, 2)]]


class FailedRecord(TypedDict):
    """``failed-….json``: a chunk, and the exception of its computation."""

    chunk: Annotated[list[int], Len(3, 3)]
    error: str


class Task(NamedTuple):
    """``task.json``: a function and what its results depend on besides seed and range of inputs.

    Attributes:
        function: ``module:compute``, a :data:`Compute`.
        settings: JSON-ready; they cross to other processes as JSON.
        code: digest of the code behind the function.
        libraries: their versions.
        device: what computes (:func:`bornbiased_jax.record.computing_device`).
    """

    function: str
    settings: TaskSettings
    code: str
    libraries: Mapping[str, str]
    device: str

    @property
    def key(self) -> str:
        """16 hexadecimal digits of all of it: the name of its folder."""
        text = json.dumps(self._asdict(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_of(function: str, settings: TaskSettings) -> Task:
    """Return the task of a function with these settings, by code, libraries and device of this process."""
    libraries = {name: version for name, version in library_versions().items() if name != "python"}
    plain = json.loads(json.dumps(settings, allow_nan=False))
    return Task(function, plain, code_digest(resolve(function)), libraries, computing_device())


@functools.cache
def resolve(function: str) -> Compute:
    """Import the function that ``module:compute`` names, of this project alone: a store may come from elsewhere.

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
            f"a task is of the function {schema.shown(function)}, which cannot be imported: {error}"
        ) from error
    return compute


class Store(Folder):
    """A folder of tasks, made when the first task is written."""

    def __init__(self, path: Path | str) -> None:
        super().__init__(path, MAKER)

    def task(self, task: Task) -> TaskStore:
        """Return the chunks of a task; there may be none."""
        return TaskStore(self, task)

    def tasks(self) -> list[TaskStore]:
        """Return all tasks, by their names.

        Raises:
            InputError: the folder is no store, or a task was edited.
        """
        if not self.is_marked:
            raise InputError(f"{self.path} is no store: name the folder that was given to --resume")
        tasks = []
        for key in self.entries():
            place = self.path / key / TASK_FILE
            if place.is_file():
                task = read_task(place)
                if task.key != key:
                    raise InputError(f"{place} does not belong into its folder: {_REMOVE}")
                tasks.append(self.task(task))
        return tasks


def read_task(place: Path) -> Task:
    """Read the task that a folder of a store is of."""
    return _read_record(Task, place)


def _read_record(kind: type[T], place: Path) -> T:
    """Read a JSON file of a store; refuse one that was edited."""
    return schema.check(kind, io.read_json(place), str(place), _REMOVE)


class TaskStore:
    """The finished chunks of one task, as files of its folder."""

    def __init__(self, store: Store, task: Task) -> None:
        self.store, self.task = store, task
        self.path = store.path / task.key

    def names(self) -> list[str]:
        """List the names of all files, from one look at the folder."""
        try:
            with os.scandir(self.path) as entries:
                return [entry.name for entry in entries]
        except OSError:
            return []

    def chunks(self) -> set[Chunk]:
        """Return the finished chunks; whether their files are intact is checked when they are read."""
        return {chunk for chunk in map(Chunk.named, self.names()) if chunk is not None}

    def open(self, requested: Iterable[Chunk]) -> None:
        """Begin the task, or continue it: record what it is and which chunks are requested.

        Raises:
            InputError: it cannot be written, or these are more chunks than a record of them may name.
        """
        rows = set(requested)
        seeds = sorted({chunk.seed for chunk in rows})
        ranges = sorted({(chunk.start, chunk.stop) for chunk in rows})
        count = len(seeds) * len(ranges)
        if count > MOST_REQUESTED:
            raise InputError(
                f"{count:,} chunks are more than {MOST_REQUESTED:,}: request fewer seeds, or larger ranges"
            )
        self.store.claim()
        content = {"seeds": seeds, "ranges": ranges}
        # Named by its content, so that processes do not collide.
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
        for name, record in ((TASK_FILE, self.task._asdict()), (f"{REQUESTED}{digest}.json", content)):
            if not (self.path / name).is_file():
                io.write_json(self.path / name, record)
        io.check_writable(self.path / TASK_FILE)

    def requested(self) -> set[Chunk]:
        """Return every chunk that was requested so far."""
        chunks: set[Chunk] = set()
        for name in self.names():
            if name.startswith(REQUESTED):
                record = _read_record(RequestedRecord, self.path / name)
                if len(record["seeds"]) * len(record["ranges"]) > MOST_REQUESTED:
                    raise InputError(f"{self.path / name} names more chunks than any call can request: {_REMOVE}")
                chunks |= {Chunk(seed, start, stop) for seed in record["seeds"] for start, stop in record["ranges"]}
        return chunks

    def write(self, chunk: Chunk, tree: Mapping[str, object]) -> None:
        """Store one result: the same bytes for the same numbers.

        Raises:
            InputError: it cannot be written.
        """
        flat = {name: np.asarray(leaf) for name, leaf in flatten_dict(tree, sep="/").items()}
        about = {"page": self.task.key, "chunk": chunk.name, "names": list(flat), "sha256": _digest(flat)}
        buffer = BytesIO()
        arrays = {f"leaf{i}": leaf for i, leaf in enumerate(flat.values())}
        np.savez(buffer, allow_pickle=False, about=np.asarray(json.dumps(about)), **arrays)
        io.write_bytes(self.path / chunk.name, buffer.getvalue())
        (self.path / f"{FAILED}{chunk.name}.json").unlink(missing_ok=True)

    def read(self, chunk: Chunk) -> Results | None:
        """Read one result, or None where there is none; a corrupted one is named, set aside, and counts as none.

        Raises:
            InputError: the file cannot be opened now, which says nothing about its content.
        """
        path = self.path / chunk.name
        if not os.path.lexists(path):
            return None
        try:
            with io.check_regular(path).open("rb") as stream:
                _check_sizes(stream)
                stored = np.load(stream, allow_pickle=False)
                about = json.loads(str(stored["about"]))
                flat = {name: stored[f"leaf{i}"] for i, name in enumerate(about["names"])}
            if (about["page"], about["chunk"]) != (self.task.key, chunk.name):
                raise ValueError("it is another chunk's")
            if about["sha256"] != _digest(flat):
                raise ValueError("it is not what was written")
            tree: Results = unflatten_dict(flat, sep="/")
            return tree
        except MemoryError:
            raise
        except Exception as error:  # corrupted bytes make the archive's and NumPy's parsers raise errors of many kinds
            if isinstance(error, OSError) and error.errno in _UNOPENED:
                raise InputError(
                    f"{path} cannot be read: {error.strerror}; run this again once it can be, or name another folder"
                ) from error
            place = io.set_aside(path)
            progress.warn(f"{path} is corrupted ({error}): set aside as {place.name}, and computed again")
            return None

    def put(self, name: str, array: np.ndarray) -> str:
        """Write an array that workers need next to the chunks; return its path."""
        buffer = BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return str(io.write_bytes(self.path / f"{name}.npy", buffer.getvalue()).resolve())

    def fail(self, chunks: Iterable[Chunk], error: BaseException) -> None:
        """Record that chunks could not be computed, and why."""
        text = schema.cut(f"{type(error).__name__}: {error}")
        for chunk in chunks:
            io.write_json(self.path / f"{FAILED}{chunk.name}.json", {"chunk": list(chunk), "error": text})

    def failures(self) -> dict[Chunk, str]:
        """Return chunks that failed and were not computed since, with the reason."""
        reasons = {}
        for name in self.names():
            if name.startswith(FAILED):
                try:
                    entry = _read_record(FailedRecord, self.path / name)
                except InputError:
                    # The chunk was computed meanwhile: its record is gone.
                    if os.path.lexists(self.path / name):
                        raise
                    continue
                reasons[Chunk(*entry["chunk"])] = entry["error"]
        finished = self.chunks()
        return {chunk: reason for chunk, reason in reasons.items() if chunk not in finished}

    def times(self) -> list[float]:
        """Return when each finished chunk was written, in seconds since 1970, ascending."""
        times = []
        with os.scandir(self.path) as entries:
            for entry in entries:
                if Chunk.named(entry.name) is not None:
                    # A chunk that is set aside meanwhile is no longer there.
                    with contextlib.suppress(FileNotFoundError):
                        times.append(entry.stat().st_mtime)
        return sorted(times)


def _check_sizes(stream: BinaryIO) -> None:
    """Refuse an archive whose arrays take more memory than its bytes.

    Raises:
        ValueError: they would, or :meth:`TaskStore.write` wrote none of this form.
    """
    num_bytes = stream.seek(0, os.SEEK_END)
    with zipfile.ZipFile(stream) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED or member.file_size > num_bytes:
                raise ValueError("it is not what was written")
            with archive.open(member) as content:
                np.lib.format.read_magic(content)
                shape, _, dtype = np.lib.format.read_array_header_1_0(content)
            if math.prod(shape) * dtype.itemsize > member.file_size:
                raise ValueError("it is not what was written")
    stream.seek(0)


def _digest(flat: Mapping[str, np.ndarray]) -> str:
    hasher = hashlib.sha256()
    for name, leaf in flat.items():
        hasher.update(f"{name}\0{leaf.dtype.str}{list(leaf.shape)}\0".encode())
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    return hasher.hexdigest()
