"""Compute the chunks that a store lacks: executors on any machine take part, and a kill loses nothing.

:mod:`bornbiased_jax.chunk_store` is the folder itself.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from pathlib import Path
from typing import NamedTuple, NotRequired

import jax
import numpy as np
from typing_extensions import TypedDict

from bornbiased_jax import io, progress
from bornbiased_jax.chunk_store import (
    TASK_FILE,
    Chunk,
    Compute,
    Results,
    Store,
    TaskSettings,
    TaskStore,
    read_task,
    resolve,
    task_of,
)
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.io import MARKER

RATE_WINDOW = 3600.0
"""Seconds before the latest chunk over which its rate is taken."""
BLOCK_GAP = 1.0
"""Seconds between two chunks, at least, that were not computed in one block."""
SHOWN_FAILURES = 10
MAX_FAILED_ROUNDS = 5
"""Rounds in a row that may pass without a single new chunk."""
ONE_COMPUTATION = (
    "processes that compute together (--coordinator) keep no store: leave --resume out, or give --engine processes or "
    "start each process on its own with the same folder instead of --coordinator"
)
"""Error of a call with a store that is one of several processes of one computation."""


def compute_chunks(
    tasks: TaskStore,
    chunks: Sequence[Chunk],
    sources: TaskSettings,
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
        # A refusal is the caller's; any other error is recorded with its chunks.
        if not isinstance(error, InputError):
            present = tasks.chunks()
            tasks.fail([chunk for chunk in missing if chunk not in present], error)
        raise


def compute_in_worker(folder: str, key: str, chunks: Sequence[Chunk], sources: TaskSettings) -> str | None:
    """Compute the missing chunks of a task in a worker; return the sentence of an InputError.

    Not every executor carries exceptions. A worker refuses a task where it has other code, libraries or devices than
    the process that opened it.
    """
    try:
        task = read_task(Path(folder) / key / TASK_FILE)
        own_task = task_of(task.function, task.settings)
        for name in ("code", "libraries", "device"):
            expected, actual = getattr(task, name), getattr(own_task, name)
            if expected != actual:
                raise InputError(
                    f"task {key} of {folder} is of other {name} ({_unlike(expected, actual)}) than this worker has "
                    f"({_unlike(actual, expected)}): give all workers the same installation and kind of device"
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
    settings: TaskSettings
    chunks: Sequence[Chunk]
    compute: Compute | None = None
    block: int = 1
    sources: TaskSettings = {}
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
) -> Iterator[Results]:
    """Compute what a request lacks; return its results in the order of its chunks, each read when its turn comes.

    With a store no more than one result is in memory. Several processes may do this for one task at the same time, with
    whatever engines: each goes through the missing chunks in an order of its own, and skips what another one has
    computed when its turn comes.

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
        return iter([dict(computed[chunk]) for chunk in request.chunks])
    tasks = Store(folder).task(task_of(request.function, request.settings))
    _complete(tasks, request, engine, advance)
    return _read_each(tasks, request, engine, advance)


def _read_each(
    tasks: TaskStore, request: Request, engine: Engine, advance: Callable[[int], None] | None
) -> Iterator[Results]:
    for chunk in request.chunks:
        while (result := tasks.read(chunk)) is None:
            # Removed or corrupted since it was computed.
            _complete(tasks, request._replace(chunks=[chunk]), engine, advance)
        yield result


def _complete(tasks: TaskStore, request: Request, engine: Engine, advance: Callable[[int], None] | None) -> None:
    """Compute the chunks of a request that a store lacks or has corrupted.

    Raises:
        InputError: the task refuses, the store cannot be written, or workers die again and again.
    """

    def report_present(chunk: Chunk) -> None:
        if isinstance(advance, progress.Bar):
            advance.kept(chunk.stop - chunk.start)

    intact: set[Chunk] = set()
    missing = _missing(tasks, request.chunks, intact)
    for chunk in intact:
        report_present(chunk)
    failed_rounds = 0
    while missing:
        tasks.open(request.chunks)
        blocks = _blocks(missing, request.block)
        # Processes at work on the same task seldom meet.
        random.shuffle(blocks)
        reason = "what was written was not found again"
        try:
            if engine is None:
                _compute_here(tasks, blocks, request, advance, report_present)
            else:
                with engine(tasks.store.path, len(blocks)) as executor:
                    _compute_in_workers(executor, tasks, blocks, request, advance)
        except BrokenExecutor as error:
            reason = str(error)
            progress.warn(f"a worker died ({reason}): what it had not finished is computed again")
        # Look at what was computed, here or elsewhere; rounds without progress are counted.
        num_before, missing = len(missing), _missing(tasks, request.chunks, intact)
        failed_rounds = 0 if len(missing) < num_before else failed_rounds + 1
        if failed_rounds == MAX_FAILED_ROUNDS:
            raise InputError(
                f"{MAX_FAILED_ROUNDS} attempts gave no result ({reason}): look at the disk, the memory and the workers"
            )


def _compute_here(
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
        compute_chunks(tasks, block, sources, function, on_present)
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


def _sources(tasks: TaskStore, request: Request) -> Results:
    """Store the arrays of a request; return its sources with their paths."""
    return {**request.sources, **{name: tasks.put(name, array) for name, array in request.arrays.items()}}


def _missing(tasks: TaskStore, chunks: Sequence[Chunk], intact: set[Chunk]) -> list[Chunk]:
    """Return the chunks that are missing or corrupted; add the others to those that were found intact."""
    present = tasks.chunks()
    intact |= {chunk for chunk in present.intersection(chunks) - intact if tasks.read(chunk) is not None}
    return [chunk for chunk in dict.fromkeys(chunks) if chunk not in intact]


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
    settings: Results
    same_code: bool
    """Whether it was made by the code that is installed here; a task of other code is not resumed."""
    done: int
    asked: int
    """Finished or requested so far."""
    failed: int
    failures: dict[str, str]
    """Chunk to reason, of the first few."""
    per_minute: float | None
    """Chunks of the last hour of work; None until a second block of them is written."""
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
    places = [marker.parent for marker in sorted(io.below(path, MARKER))]
    stores = [store for store in map(Store, places) if store.is_marked]
    if not stores:
        raise InputError(f"{path} holds no store: name the folder that was given to --resume")
    rows = [_task_status(tasks) for store in stores for tasks in store.tasks()]
    finished, requested, failed = (sum(row[name] for row in rows) for name in ("done", "asked", "failed"))
    return {"folder": str(path), "done": finished, "asked": requested, "failed": failed, "pages": rows}


def _task_status(tasks: TaskStore) -> TaskStatus:
    times, failures, finished = tasks.times(), tasks.failures(), tasks.chunks()
    num_requested = len(tasks.requested() | finished)
    # Chunks a second over the last hour of work. Those of one block are written at once: the first block gives no rate.
    recent = [at for at in times if at >= times[-1] - RATE_WINDOW]
    first = next((at for at in range(1, len(recent)) if recent[at] - recent[at - 1] >= BLOCK_GAP), None)
    rate = None if first is None else (len(recent) - first) / (recent[-1] - recent[first - 1])
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
