"""A ledger and the processes of one computation: all compute each chunk, the first one decides which, and writes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax

from bornbiased_jax import parallel
from bornbiased_jax.errors import InputError
from bornbiased_jax.ledger.pages import Chunk, Compute, Page, Tree

WAIT_SECONDS = 30.0
"""What one process has written others may see a little later, where they share a folder by network."""

Found = dict[Chunk, dict[str, Any]]


def results(page: Page, chunks: Sequence[Chunk], compute: Compute, lead: Callable[[Compute], Found]) -> Found:
    """Every chunk's result in every process, each computed by all of them together.

    Args:
        page, chunks: as of :func:`.drive.results`, the same in every process.
        compute: the task's function, over all devices.
        lead: what the first process does, given the function that it is to compute with.

    Raises:
        InputError: the processes were asked for different things, or do not share the ledger.
    """
    wanted = json.dumps([page.task.key, *map(list, chunks)])
    parallel.agree(wanted, "task in their ledger")
    if jax.process_index() > 0:
        _follow(page, compute)
        return _read(page, chunks)

    def announced(settings: Mapping[str, Any], sources: Mapping[str, Any], some: list[Chunk]) -> Iterable[Tree]:
        parallel.broadcast(json.dumps(some))
        yield from compute(settings, sources, some)

    try:
        return lead(announced)
    finally:
        parallel.broadcast("")


def _follow(page: Page, compute: Compute) -> None:
    """Compute what the first process does, for as long as it does."""
    while text := parallel.broadcast(""):
        for _ in compute(page.task.settings, {}, [Chunk(*chunk) for chunk in json.loads(text)]):
            pass


def _read(page: Page, chunks: Sequence[Chunk]) -> Found:
    deadline = time.monotonic() + WAIT_SECONDS
    while not page.done() >= set(chunks) and time.monotonic() < deadline:
        time.sleep(0.5)
    found = {chunk: tree for chunk in chunks if (tree := page.read(chunk)) is not None}
    if len(found) < len(set(chunks)):
        raise InputError(
            f"process {jax.process_index()} does not find in {page.path} what process 0 was to write there: give all "
            "processes a folder that they share, and look at what process 0 says"
        )
    return found
