"""Who computes the jobs of a ledger: this process, other processes here, a Slurm cluster, or a Ray cluster.

An engine is a function of jobs that yields each when it is done, in any order. It keeps no state: what is done is in
the ledger. Where a worker dies, the engine raises :class:`WorkersLost` and is called again with what is missing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool

from bornbiased_jax.errors import InputError
from bornbiased_jax.ledger.jobs import Job, Perform, parse_job, perform

Engine = Callable[[Sequence[Job], Perform], Iterator[Job]]
"""(jobs, what does one in this process) -> jobs that are done."""

ENGINES = ("local", "processes")
DEFAULT = "local"


class WorkersLost(RuntimeError):
    """Workers died before their jobs were done."""


def engine_named(name: str, *, workers: int | None = None) -> Engine:
    """An engine by its name.

    Args:
        name: one of :data:`ENGINES`.
        workers: how many processes; what the machine or the cluster offers unless given.

    Raises:
        InputError: no such engine, or workers for an engine that has none.
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r} is unknown: name {', '.join(ENGINES)}")
    if name == DEFAULT:
        if workers is not None:
            raise InputError(f"the engine {DEFAULT} has no workers: give --engine processes, or leave --workers out")
        return local
    return lambda jobs, _: processes(jobs, workers or 2)


def local(jobs: Sequence[Job], here: Perform) -> Iterator[Job]:
    """In this process, one job after the other."""
    for job in jobs:
        here(job)
        yield job


def processes(jobs: Sequence[Job], workers: int) -> Iterator[Job]:
    """In so many processes of this machine.

    Each starts afresh, compiles for itself and stays for further jobs; it ends when this process does, however that
    ends.
    """
    pool = ProcessPoolExecutor(min(workers, len(jobs)), multiprocessing.get_context("spawn"), _begin_worker)
    try:
        for future in as_completed([pool.submit(perform, job.text()) for job in jobs]):
            yield parse_job(future.result())
    except BrokenProcessPool as error:
        raise WorkersLost(str(error)) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _begin_worker() -> None:
    # Ctrl-C reaches every process of a terminal: the first one decides, and the others follow it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
