"""Store chunks of long work in a folder: executors on any machine compute what is missing, and a kill loses nothing.

A store has a folder for each task, named by the digest of everything that its numbers depend on, and in it a file for
each finished chunk, named by its seed and its range of inputs. Files are written atomically, and nobody reserves a
chunk: several processes may fill one store, and a chunk computed twice is the same file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import json
import os
import random
import re
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NotRequired

import jax
import numpy as np
from annotated_types import Len
from flax.traverse_util import flatten_dict, unflatten_dict
from typing_extensions import TypedDict

from bornbiased_jax import io, progress, schema
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, InProcessExecutor, local
from bornbiased_jax.record import library_versions

# Names of files and of the maker are those of stores of earlier versions.
MAKER = "bornbiased ledger"
TASK_FILE = "task.json"
REQUESTED, FAILED = "asked-", "failed-"
MAX_FAILED_ROUNDS = 5
"""Rounds in a row that may pass without a single new chunk."""
RATE_WINDOW = 3600.0
"""Seconds before the latest chunk over which its rate is taken."""
SHOWN_FAILURES = 10
ONE_COMPUTATION = (
    "processes that compute together (--coordinator) keep no store: leave --resume out, or give --engine processes or "
    "start each process on its own with the same folder instead of --coordinator"
)
"""Error of a call with a store that is one of several processes of one computation."""
_FUNCTION = re.compile(r"(bornbiased_jax|experiments|tests)(\.\w+)+:compute")
_REMOVE = "it was edited or damaged: remove it"

Tree = Mapping[str, Any]
"""A chunk's result: a nested dict of arrays."""
Compute = Callable[[Mapping[str, Any], Mapping[str, Any], list["Chunk"]], Iterable[Tree]]
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
        return None if match is None else cls(*map(int, match.groups()))


class TaskRecord(TypedDict):
    """``task.json``: everything that the numbers of a task depend on, but for seed and range."""

    function: str
    settings: dict[str, Any]
    code: str
    libraries: dict[str, str]
    device: str


class RequestedRecord(TypedDict):
    """``asked-….json``: requested chunks, every seed on every range."""

    seeds: list[int]
    ranges: list[Annotated[list[int], Len(2, 2)]]


class FailedRecord(TypedDict):
    """``failed-….json``: a chunk, and the exception of its computation."""

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
        """16 hexadecimal digits of all of it: the name of its folder."""
        text = json.dumps(self._asdict(), sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def task_of(function: str, settings: Mapping[str, Any]) -> Task:
    """Return the task of a function with these settings, by code, libraries and devices of this process."""
    libraries = {name: version for name, version in library_versions().items() if name != "python"}
    plain = json.loads(json.dumps(settings, allow_nan=False))
    return Task(function, plain, code_digest(resolve(function)), libraries, jax.default_backend())


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


class Store:
    """A folder of tasks.

    Attributes:
        path: where it is; made when the first task is written.
    """

    def __init__(self, path: Path | str) -> None:
        self._folder = io.Folder(path, MAKER)
        self.path = self._folder.path

    def check(self) -> None:
        """Refuse a folder of other things; nothing is made."""
        self._folder.check()

    def claim(self) -> None:
        """Make the folder where it is not there yet."""
        self._folder.claim()

    def task(self, task: Task) -> TaskStore:
        """Return the chunks of a task; there may be none."""
        return TaskStore(self, task)

    def tasks(self) -> list[TaskStore]:
        """Return all tasks, by their names.

        Raises:
            InputError: the folder is no store, or a task was edited.
        """
        if not self._folder.made_here:
            raise InputError(f"{self.path} is no store: name the folder that was given to --resume")
        tasks = []
        for key in self._folder.entries():
            place = self.path / key / TASK_FILE
            if place.is_file():
                task = _read_task(place)
                if task.key != key:
                    raise InputError(f"{place} does not belong into its folder: {_REMOVE}")
                tasks.append(self.task(task))
        return tasks


def _read_task(place: Path) -> Task:
    """Read the task that a folder of a store is of."""
    return Task(**schema.check(TaskRecord, io.read_json(place), str(place), _REMOVE))


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
            InputError: it cannot be written.
        """
        self.store.claim()
        rows = sorted(set(requested))
        content = {
            "seeds": sorted({chunk.seed for chunk in rows}),
            "ranges": sorted({(chunk.start, chunk.stop) for chunk in rows}),
        }
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
                place = str(self.path / name)
                record = schema.check(RequestedRecord, io.read_json(place), place, _REMOVE)
                chunks |= {Chunk(seed, start, stop) for seed in record["seeds"] for start, stop in record["ranges"]}
        return chunks

    def write(self, chunk: Chunk, tree: Tree) -> None:
        """Store one result: the same bytes for the same numbers.

        Raises:
            InputError: it cannot be written.
        """
        flat = {name: np.asarray(leaf) for name, leaf in flatten_dict(tree, sep="/").items()}
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
            tree: dict[str, Any] = unflatten_dict(flat, sep="/")
            return tree
        except (OSError, ValueError, KeyError, TypeError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            place = io.set_aside(path)
            progress.warn(f"{path} is damaged ({error}): set aside as {place.name}, and computed again")
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
                place = str(self.path / name)
                try:
                    entry = schema.check(FailedRecord, io.read_json(place), place, _REMOVE)
                except InputError:
                    # The chunk was computed meanwhile: its record is gone.
                    if os.path.lexists(place):
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


def _digest(flat: Mapping[str, np.ndarray]) -> str:
    hasher = hashlib.sha256()
    for name, leaf in flat.items():
        hasher.update(f"{name}\0{leaf.dtype.str}{list(leaf.shape)}\0".encode())
        hasher.update(np.ascontiguousarray(leaf).tobytes())
    return hasher.hexdigest()


def compute_chunks(
    tasks: TaskStore,
    chunks: Sequence[Chunk],
    sources: Mapping[str, Any],
    compute: Compute,
    on_present: Callable[[Chunk], None] | None = None,
) -> None:
    """Compute and store those of some chunks that are missing; an error is recorded and raised.

    Args:
        tasks: the store of the task.
        chunks: of one range.
        sources: where to find what the settings name by its digest (a checkpoint, a table of ids); JSON-ready.
        compute: the task's function.
        on_present: called with each chunk that another process has computed meanwhile.
    """
    present = tasks.chunks()
    missing = [chunk for chunk in chunks if chunk not in present]
    if on_present is not None:
        for chunk in chunks:
            if chunk in present:
                on_present(chunk)
    if not missing:
        return
    try:
        for chunk, tree in zip(missing, compute(tasks.task.settings, sources, missing), strict=True):
            tasks.write(chunk, tree)
    except Exception as error:
        if not isinstance(error, InputError):
            present = tasks.chunks()
            tasks.fail([chunk for chunk in missing if chunk not in present], error)
        raise


def compute_in_worker(folder: str, key: str, chunks: Sequence[Chunk], sources: Mapping[str, Any]) -> str | None:
    """Compute the missing chunks of a task in a worker; return the sentence of an InputError.

    Not every executor carries exceptions. A worker refuses a task where it has other code, libraries or devices than
    the process that opened it.
    """
    try:
        task = _read_task(Path(folder) / key / TASK_FILE)
        own_task = task_of(task.function, task.settings)
        for name in ("code", "libraries", "device"):
            expected, own = getattr(task, name), getattr(own_task, name)
            if expected != own:
                raise InputError(
                    f"task {key} of {folder} is of other {name} ({_unlike(expected, own)}) than this worker has "
                    f"({_unlike(own, expected)}): give all workers the same installation and kind of device"
                )
        compute_chunks(Store(folder).task(own_task), chunks, sources, resolve(task.function))
    except InputError as error:
        return str(error)
    return None


def _unlike(first: object, second: object) -> str:
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return str(first)
    differences = [f"{name} {first[name]}" for name in sorted(first) if second.get(name) != first[name]]
    return ", ".join(differences) or "fewer libraries"


class Request(NamedTuple):
    """Chunks of one task, and what computes them.

    Attributes:
        function: ``module:compute``, which computes them in any process.
        settings: all that the numbers depend on besides the chunk, JSON-ready.
        chunks: the chunks.
        compute: the same function for this process, with its loaded weights and its progress display.
        block: chunks of equal range in one call of it.
        sources: where other processes find what the settings name by its digest, JSON-ready.
        arrays: what they need besides; each is stored next to the chunks, and its path joins the sources.
    """

    function: str
    settings: Mapping[str, Any]
    chunks: Sequence[Chunk]
    compute: Compute | None = None
    block: int = 1
    sources: Mapping[str, Any] = {}
    arrays: Mapping[str, np.ndarray] = {}


def check(folder: Path | str | None, engine: Engine) -> None:
    """Refuse a folder that cannot be a store, and an engine without one; nothing is made.

    Raises:
        InputError: the folder holds other things, chunks cross processes and there is no folder for them, or the call
            is one of several processes of one computation.
    """
    if folder is not None:
        Store(folder).check()
    if (folder is not None or engine is not local) and jax.process_count() > 1:
        raise InputError(ONE_COMPUTATION)
    if folder is None and engine is not local:
        raise InputError("chunks for other processes need a store: name a folder to resume in")


def fulfill(
    request: Request,
    folder: Path | str | None,
    engine: Engine = local,
    advance: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the results of a request, in the order of its chunks, through a store where a folder is named.

    Several processes may do this for one task at the same time, with whatever engines: each goes through the missing
    chunks in an order of its own, and skips what another one has computed when its turn comes.

    Args:
        request: the chunks.
        folder: the store; without one everything is computed in this process and nothing is kept.
        engine: makes the executors of what the store lacks.
        advance: called with the length of each chunk that was computed, but for those of ``request.compute``, which
            reports itself. A bar (:class:`.progress.Bar`) counts chunks of the store as kept: they took no time here.

    Raises:
        InputError: as :func:`check`, or the task refuses, the store cannot be written, or workers die again and again.
    """
    check(folder, engine)
    # Without a store: compute block by block in this process.
    if folder is None:
        compute = request.compute or resolve(request.function)
        computed = {
            chunk: tree
            for block in _blocks(list(dict.fromkeys(request.chunks)), request.block)
            for chunk, tree in zip(block, compute(request.settings, request.sources, block), strict=True)
        }
        return [dict(computed[chunk]) for chunk in request.chunks]

    def report_present(chunk: Chunk) -> None:
        if isinstance(advance, progress.Bar):
            advance.kept(chunk.stop - chunk.start)

    # With one: read its chunks, and compute what it lacks.
    tasks = Store(folder).task(task_of(request.function, request.settings))
    results: dict[Chunk, dict[str, Any]] = {}
    missing = _read_finished(tasks, request.chunks, results)
    for chunk in results:
        report_present(chunk)
    failed_rounds = 0
    while missing:
        tasks.open(request.chunks)
        blocks = _blocks(missing, request.block)
        # Processes at work on the same task seldom meet.
        random.shuffle(blocks)
        why = "what was written was not found again"
        try:
            with engine(tasks.store.path, len(blocks)) as executor:
                if isinstance(executor, InProcessExecutor):
                    _compute_here(executor, tasks, blocks, request, advance, report_present)
                else:
                    _compute_in_workers(executor, tasks, blocks, request, advance)
        except BrokenExecutor as error:
            why = str(error)
            progress.warn(f"a worker died ({why}): what it had not finished is computed again")
        # Read what was computed, here or elsewhere; rounds without progress are counted.
        num_before, missing = len(missing), _read_finished(tasks, request.chunks, results)
        failed_rounds = 0 if len(missing) < num_before else failed_rounds + 1
        if failed_rounds == MAX_FAILED_ROUNDS:
            raise InputError(
                f"{MAX_FAILED_ROUNDS} attempts gave no result ({why}): look at the disk, the memory and the workers"
            )
    return [results[chunk] for chunk in request.chunks]


def _compute_here(
    executor: Executor,
    tasks: TaskStore,
    blocks: Sequence[list[Chunk]],
    request: Request,
    advance: Callable[[int], None] | None,
    report_present: Callable[[Chunk], None],
) -> None:
    reports_itself = request.compute is not None
    sources = {} if reports_itself else _sources(tasks, request)
    function = request.compute or resolve(request.function)
    for block in blocks:
        on_present = report_present if reports_itself else None
        executor.submit(compute_chunks, tasks, block, sources, function, on_present).result()
        if advance is not None and not reports_itself:
            advance(sum(chunk.stop - chunk.start for chunk in block))


def _compute_in_workers(
    executor: Executor,
    tasks: TaskStore,
    blocks: Sequence[list[Chunk]],
    request: Request,
    advance: Callable[[int], None] | None,
) -> None:
    folder, key, sources = str(tasks.store.path.resolve()), tasks.task.key, _sources(tasks, request)
    futures = {executor.submit(compute_in_worker, folder, key, block, sources): block for block in blocks}
    for future in as_completed(futures):
        sentence = future.result()
        if sentence is not None:
            raise InputError(sentence)
        if advance is not None:
            advance(sum(chunk.stop - chunk.start for chunk in futures[future]))


def _sources(tasks: TaskStore, request: Request) -> dict[str, Any]:
    """Store the arrays of a request; return its sources with their paths."""
    return {**request.sources, **{name: tasks.put(name, array) for name, array in request.arrays.items()}}


def _read_finished(tasks: TaskStore, chunks: Sequence[Chunk], results: dict[Chunk, dict[str, Any]]) -> list[Chunk]:
    """Read finished chunks that were not read yet; return those that are missing."""
    present = tasks.chunks()
    missing = []
    for chunk in dict.fromkeys(chunks):
        if chunk not in results:
            tree = tasks.read(chunk) if chunk in present else None
            if tree is None:
                missing.append(chunk)
            else:
                results[chunk] = tree
    return missing


def _blocks(chunks: Sequence[Chunk], size: int) -> list[list[Chunk]]:
    """Group chunks of equal range in blocks."""
    by_range: dict[tuple[int, int], list[Chunk]] = {}
    for chunk in chunks:
        by_range.setdefault((chunk.start, chunk.stop), []).append(chunk)
    return [group[i : i + size] for group in by_range.values() for i in range(0, len(group), size)]


class TaskStatus(TypedDict):
    """Progress of one task."""

    page: str
    """Folder of the store and name of the task."""
    function: str
    settings: dict[str, Any]
    same_code: bool
    """Whether it was made by the code that is installed here; a task of other code is not resumed."""
    done: int
    asked: int
    """Finished or requested so far."""
    failed: int
    failures: dict[str, str]
    """Chunk to reason, of the first few."""
    per_minute: float | None
    """Chunks of the last hour of work; None where there are fewer than two."""
    seconds_left: float | None
    seconds_since_last: NotRequired[float]


class Status(TypedDict):
    """Progress of all tasks, and their sums."""

    folder: str
    done: int
    asked: int
    failed: int
    pages: list[TaskStatus]


def status(folder: Path | str) -> Status:
    """Summarize a store, or all stores below a folder; nothing is computed or written.

    Raises:
        InputError: there is none, or a task cannot be read.
    """
    path = io.user_path(folder)
    if not path.is_dir():
        raise InputError(f"{path} is no folder: name the one that was given to --resume")
    places = [marker.parent for marker in sorted(io.below(path, io.MARKER))]
    places = [place for place in places if io.Folder(place, MAKER).made_here]
    if not places:
        raise InputError(f"{path} holds no store: name the folder that was given to --resume")
    rows = [_task_status(tasks) for place in places for tasks in Store(place).tasks()]
    done, requested, failed = (sum(row[name] for row in rows) for name in ("done", "asked", "failed"))
    return {"folder": str(path), "done": done, "asked": requested, "failed": failed, "pages": rows}


def _task_status(tasks: TaskStore) -> TaskStatus:
    times, failures, finished = tasks.times(), tasks.failures(), tasks.chunks()
    num_requested = len(tasks.requested() | finished)
    # Chunks a second over the last hour of work.
    recent = [at for at in times if at >= times[-1] - RATE_WINDOW]
    rate = (len(recent) - 1) / (recent[-1] - recent[0]) if len(recent) > 1 and recent[-1] > recent[0] else None
    try:
        same_code = code_digest(resolve(tasks.task.function)) == tasks.task.code
    except InputError:
        same_code = False
    row: TaskStatus = {
        "page": str(tasks.path),
        "function": tasks.task.function,
        "settings": dict(tasks.task.settings),
        "same_code": same_code,
        "done": len(finished),
        "asked": num_requested,
        "failed": len(failures),
        "failures": {chunk.name: failures[chunk] for chunk in sorted(failures)[:SHOWN_FAILURES]},
        "per_minute": None if rate is None else 60.0 * rate,
        "seconds_left": None if rate is None else (num_requested - len(finished)) / rate,
    }
    if times:
        row["seconds_since_last"] = max(0.0, time.time() - times[-1])
    return row
