"""Bring all chunks of a task into a ledger, and read them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from bornbiased_jax import io, progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.ledger.engines import Engine, WorkersLostError, local
from bornbiased_jax.ledger.jobs import Job, compute_chunks
from bornbiased_jax.ledger.pages import Chunk, Compute, Ledger, Page, resolve, task_of

STUCK = 5
"""Attempts in a row that may pass without a single chunk done."""
NOT_TOGETHER = (
    "processes that compute together (--coordinator) keep no ledger: leave --resume out, or give --engine processes or "
    "start each process on its own with the same ledger folder instead of --coordinator"
)
"""What a call with a ledger is told that is one of several processes of one computation."""


class Request(NamedTuple):
    """Chunks of one task that somebody wants, and what computes them.

    Attributes:
        function: ``module:compute``, which computes them in any process.
        settings: all that the numbers depend on besides the chunk, JSON-ready.
        chunks: what is wanted.
        compute: the same function for this process, with what it has at hand and its progress display.
        block: chunks of equal range in one job.
        sources: where other processes find what the settings name by its digest, JSON-ready.
        arrays: what they need besides; each is put beside the chunks, and its path joins the sources.
    """

    function: str
    settings: Mapping[str, Any]
    chunks: Sequence[Chunk]
    compute: Compute | None = None
    block: int = 1
    sources: Mapping[str, Any] = {}
    arrays: Mapping[str, np.ndarray] = {}


def check(folder: Path | str | None, engine: Engine) -> None:
    """Refuse what cannot be a ledger, and an engine without one; nothing is made.

    Raises:
        InputError: the folder holds other things, chunks cross processes and there is no folder for them, or the call
            is one of several processes of one computation.
    """
    if folder is not None:
        Ledger(folder).check()
    if (folder is not None or engine is not local) and jax.process_count() > 1:
        raise InputError(NOT_TOGETHER)
    if folder is None and engine is not local:
        raise InputError("chunks for other processes need a ledger: name a folder to resume in")


def fulfil(
    request: Request,
    folder: Path | str | None,
    engine: Engine = local,
    advance: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """Return the results of a request, in the order of its chunks, through a ledger where a folder is named.

    Args:
        request: what is wanted.
        folder: the ledger; without one everything is computed in this process and nothing is kept.
        engine: who computes what the ledger lacks.
        advance: called with the length of each chunk that another process has computed; what this process computes
            ``compute`` reports itself. A bar's own (:class:`.progress.Bar`) hears of what the ledger has already,
            and of what other drivers bring meanwhile, as work that was kept.

    Raises:
        InputError: as :func:`check` and :func:`results`.
    """
    check(folder, engine)
    # Without a ledger: compute block by block in this process.
    if folder is None:
        compute = request.compute or resolve(request.function)
        cut = _cut(list(dict.fromkeys(request.chunks)), request.block)
        computed = {
            chunk: tree
            for block in cut
            for chunk, tree in zip(block, compute(request.settings, request.sources, block), strict=True)
        }
        return [dict(computed[chunk]) for chunk in request.chunks]
    # With one: read the page, compute what it lacks.
    page = Ledger(folder).page(task_of(request.function, request.settings))
    elsewhere = engine is not local

    def sources() -> Mapping[str, Any]:
        return {**request.sources, **{name: put(page, name, array) for name, array in request.arrays.items()}}

    def report_computed(chunk: Chunk) -> None:
        if advance is not None:
            advance(chunk.stop - chunk.start)

    def report_stored(chunk: Chunk) -> None:
        if isinstance(advance, progress.Bar):
            advance.kept(chunk.stop - chunk.start)

    by_chunk = results(
        page,
        request.chunks,
        block=request.block,
        engine=engine,
        compute=None if elsewhere else request.compute,
        sources=sources if elsewhere or request.compute is None else lambda: {},
        advance=report_computed if elsewhere or request.compute is None else None,
        on_present=report_stored,
    )
    return [by_chunk[chunk] for chunk in request.chunks]


def put(page: Page, name: str, array: np.ndarray) -> str:
    """Write an array that workers need next to a page's chunks; return its path.

    Raises:
        InputError: it cannot be written.
    """
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return str(io.write_bytes(page.path / f"{name}.npy", buffer.getvalue()).resolve())


def results(
    page: Page,
    chunks: Sequence[Chunk],
    *,
    block: int = 1,
    engine: Engine = local,
    compute: Compute | None = None,
    sources: Callable[[], Mapping[str, Any]] = lambda: {},
    advance: Callable[[Chunk], None] | None = None,
    on_present: Callable[[Chunk], None] | None = None,
) -> dict[Chunk, dict[str, Any]]:
    """Return every chunk's result, computed where it is not on the page yet.

    Several drivers may do this for one page at the same time, with whatever engines: each goes through what is missing
    in an order of its own, and computes what it does not find when its turn comes.

    Args:
        page: where they are kept.
        chunks: what is wanted.
        block: chunks of equal range in one job.
        engine: who computes.
        compute: the task's function for jobs of this process, where it has at hand what others must look up.
        sources: gives what other processes need to know besides (:class:`.jobs.Job`), called once the page is open.
        advance: called with each chunk that was missing, when it is there.
        on_present: called with each chunk that was there from the first, and, where ``advance`` is not called, with
            each that another driver had computed when its turn came.

    Raises:
        InputError: the ledger cannot be written, or the task refuses; or workers die again and again.
    """
    function = compute or resolve(page.task.function)
    by_chunk: dict[Chunk, dict[str, Any]] = {}
    # Start from the chunks that are on the page.
    stuck, missing = 0, _collect(page, chunks, by_chunk)
    if on_present is not None:
        for chunk in by_chunk:
            on_present(chunk)
    perform = functools.partial(compute_chunks, page, compute=function, there_already=None if advance else on_present)
    while missing:
        page.open(chunks)
        where = str(page.ledger.path.resolve())
        handed = sources()
        jobs = [Job(where, page.task.key, part, handed) for part in _cut(missing, block)]
        # Drivers at work on the same page seldom meet.
        random.shuffle(jobs)
        why = "what was written was not found again"
        try:
            for job in engine(jobs, perform):
                if advance is not None:
                    for chunk in job.chunks:
                        advance(chunk)
        except WorkersLostError as error:
            why = str(error)
            progress.warn(f"a worker died ({why}): what it had not finished is computed again")
        # Read what was computed, here or elsewhere; rounds without progress are counted.
        before, missing = len(missing), _collect(page, chunks, by_chunk)
        stuck = 0 if len(missing) < before else stuck + 1
        if stuck == STUCK:
            raise InputError(f"{STUCK} attempts gave no result ({why}): look at the disk, the memory and the workers")
    return {chunk: by_chunk[chunk] for chunk in chunks}


def _collect(page: Page, chunks: Sequence[Chunk], by_chunk: dict[Chunk, dict[str, Any]]) -> list[Chunk]:
    """Read finished chunks that were not read yet; return those that are missing."""
    present = page.done()
    missing = []
    for chunk in dict.fromkeys(chunks):
        if chunk not in by_chunk:
            tree = page.read(chunk) if chunk in present else None
            if tree is None:
                missing.append(chunk)
            else:
                by_chunk[chunk] = tree
    return missing


def _cut(chunks: Sequence[Chunk], block: int) -> list[list[Chunk]]:
    """Return blocks of chunks of a single range."""
    by_range: dict[tuple[int, int], list[Chunk]] = {}
    for chunk in chunks:
        by_range.setdefault((chunk.start, chunk.stop), []).append(chunk)
    return [group[i : i + block] for group in by_range.values() for i in range(0, len(group), block)]
