"""Bring all chunks of a task into a ledger, and read them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bornbiased_jax import progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.ledger.engines import Engine, WorkersLost, local
from bornbiased_jax.ledger.jobs import Job, compute_chunks
from bornbiased_jax.ledger.pages import Chunk, Compute, Page, resolve

STUCK = 5
"""Attempts in a row that may pass without a single chunk done."""


def results(
    page: Page,
    chunks: Sequence[Chunk],
    *,
    block: int = 1,
    engine: Engine = local,
    compute: Compute | None = None,
    sources: Callable[[], Mapping[str, Any]] = lambda: {},
    advance: Callable[[Chunk], None] | None = None,
) -> dict[Chunk, dict[str, Any]]:
    """Every chunk's result, computed where it is not on the page yet.

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

    Raises:
        InputError: the ledger cannot be written, or the task refuses; or workers die again and again.
    """
    own = compute or resolve(page.task.function)
    found: dict[Chunk, dict[str, Any]] = {}
    stuck, missing = 0, _collect(page, chunks, found)
    while missing:
        page.open(chunks)
        where = str(page.ledger.path.resolve())
        handed = sources()
        jobs = [Job(where, page.task.key, some, handed) for some in _cut(missing, block)]
        # Drivers at work on the same page seldom meet.
        random.shuffle(jobs)
        why = "what was written was not found again"
        try:
            for job in engine(jobs, functools.partial(compute_chunks, page, compute=own)):
                if advance is not None:
                    for chunk in job.chunks:
                        advance(chunk)
        except WorkersLost as error:
            why = str(error)
            progress.warn(f"a worker died ({why}): what it had not finished is computed again")
        before, missing = len(missing), _collect(page, chunks, found)
        stuck = 0 if len(missing) < before else stuck + 1
        if stuck == STUCK:
            raise InputError(f"{STUCK} attempts gave no result ({why}): look at the disk, the memory and the workers")
    return {chunk: found[chunk] for chunk in chunks}


def _collect(page: Page, chunks: Sequence[Chunk], found: dict[Chunk, dict[str, Any]]) -> list[Chunk]:
    """Read what is there and not read yet; the chunks that are missing."""
    there = page.done()
    missing = []
    for chunk in dict.fromkeys(chunks):
        if chunk not in found:
            tree = page.read(chunk) if chunk in there else None
            if tree is None:
                missing.append(chunk)
            else:
                found[chunk] = tree
    return missing


def _cut(chunks: Sequence[Chunk], block: int) -> list[list[Chunk]]:
    """Blocks of chunks of one range."""
    by_range: dict[tuple[int, int], list[Chunk]] = {}
    for chunk in chunks:
        by_range.setdefault((chunk.start, chunk.stop), []).append(chunk)
    return [some[i : i + block] for some in by_range.values() for i in range(0, len(some), block)]
