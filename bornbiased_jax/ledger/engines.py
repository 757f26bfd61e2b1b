"""Who computes the jobs of a ledger: this process, other processes here, a Slurm cluster, or a Ray cluster.

An engine is a function of jobs that yields each when it is done, in any order. It keeps no state: what is done is in
the ledger. Where a worker dies, the engine raises :class:`WorkersLostError` and is called again with what is missing.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from bornbiased_jax import progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.ledger.jobs import Job, Perform, attempt

Engine = Callable[[Sequence[Job], Perform], Iterator[Job]]
"""(jobs, what does one in this process) -> jobs that are done."""

ENGINES = ("local", "processes", "slurm", "ray")
DEFAULT = "local"
WORKERS = 2
RETRIES = 3
SLURM_LOGS = "slurm"
"""Folder of a ledger with the jobs' scripts and what they printed."""


class WorkersLostError(RuntimeError):
    """Workers died before their jobs were done."""


def engine_named(
    name: str, *, workers: int | None = None, submit: Mapping[str, Any] | None = None, address: str | None = None
) -> Engine:
    """Return an engine by its name.

    Args:
        name: one of :data:`ENGINES`.
        workers: how many processes or tasks side by side; :data:`WORKERS` unless given.
        submit: for "slurm", parameters as submitit names them (timeout_min, gpus_per_node, slurm_partition, …).
        address: for "ray", of a running cluster; one of this machine is started for the call unless given.

    Raises:
        InputError: no such engine, an option of another one, or its extra is not installed.
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r} is unknown: name {', '.join(ENGINES)}")
    if name == DEFAULT and workers is not None:
        raise InputError(f"the engine {DEFAULT} has no workers: name another --engine, or leave --workers out")
    if submit and name != "slurm":
        raise InputError(f"the engine {name} submits nothing: leave --submit out, or give --engine slurm")
    if address is not None and name != "ray":
        raise InputError(f"the engine {name} has no address: leave --ray-address out, or give --engine ray")
    number = workers or WORKERS
    if name == "slurm":
        _extra("submitit", name)
        return lambda jobs, _: slurm(jobs, number, submit or {})
    if name == "ray":
        _extra("ray", name)
        return lambda jobs, _: ray(jobs, number, address)
    return local if name == DEFAULT else lambda jobs, _: processes(jobs, number)


def _extra(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise InputError(f"--engine {extra} needs {module}: pip install 'bornbiased-jax[{extra}]'")


def local(jobs: Sequence[Job], perform_job: Perform) -> Iterator[Job]:
    """Perform jobs in this process, one after the other."""
    for job in jobs:
        perform_job(job)
        yield job


def processes(jobs: Sequence[Job], workers: int) -> Iterator[Job]:
    """Perform jobs in several processes of this machine.

    Each starts afresh, compiles for itself and stays for further jobs; it ends when this process does, however that
    ends.
    """
    earlier, through = set(multiprocessing.active_children()), False
    pool = ProcessPoolExecutor(min(workers, len(jobs)), multiprocessing.get_context("spawn"), _begin_worker)
    try:
        futures = {pool.submit(attempt, [job.text()]): job for job in jobs}
        for future in as_completed(futures):
            _refuse(future.result())
            yield futures[future]
        through = True
    except BrokenProcessPool as error:
        raise WorkersLostError(str(error)) from error
    finally:
        # What they have under way nobody asks for any more, and a file that is not whole is none.
        for child in () if through else set(multiprocessing.active_children()) - earlier:
            child.terminate()
        pool.shutdown(wait=not through, cancel_futures=True)


def _refuse(sentence: str | None) -> None:
    if sentence is not None:
        raise InputError(sentence)


def _begin_worker() -> None:
    # Ctrl-C reaches every process of a terminal: the first one decides, and the others follow it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def slurm(jobs: Sequence[Job], workers: int, submit: Mapping[str, Any]) -> Iterator[Job]:
    """Submit jobs as one array of Slurm tasks, each with its part; local processes where there is no Slurm.

    A task that runs out of its time or is preempted is submitted again with what it lacks.
    """
    import submitit

    executor = submitit.AutoExecutor(Path(jobs[0].ledger) / SLURM_LOGS)
    if executor.cluster != "slurm":
        progress.note(f"no Slurm here: submitit starts {workers} processes of this machine instead")
    try:
        executor.update_parameters(name="bornbiased", **submit)
    except (NameError, TypeError, ValueError) as error:
        raise InputError(f"submitit does not take {dict(submit)}: {' '.join(str(error).split())}") from error
    parts = [list(jobs[first::workers]) for first in range(min(workers, len(jobs)))]
    tasks = executor.map_array(attempt, [[job.text() for job in part] for part in parts])
    try:
        for task, part in zip(tasks, parts, strict=True):
            try:
                _refuse(task.result())
            except submitit.core.utils.UncompletedJobError as error:
                raise WorkersLostError(f"task {task.job_id} did not end as it should") from error
            yield from part
    finally:
        for task in tasks:
            if not task.done():
                task.cancel()


def ray(jobs: Sequence[Job], workers: int, address: str | None) -> Iterator[Job]:
    """Run jobs as tasks of a Ray cluster, each with a processor, and a GPU where this process computes on one."""
    import jax
    import ray as cluster

    starts_cluster = not cluster.is_initialized()
    if starts_cluster:
        alone: dict[str, Any] = {} if address else {"num_cpus": workers, "include_dashboard": False}
        try:
            cluster.init(address, log_to_driver=False, logging_level=logging.ERROR, **alone)
        except (ConnectionError, RuntimeError) as error:
            raise InputError(
                f"no Ray cluster answers at {address}: start one there, or leave --ray-address out"
            ) from error
    gpus = 0 if jax.default_backend() == "cpu" else 1
    task = cluster.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(attempt)
    waiting = {task.remote([job.text()]): job for job in jobs}
    try:
        while waiting:
            (reference, *_), _ = cluster.wait(list(waiting))
            _refuse(cluster.get(reference))
            yield waiting.pop(reference)
    except cluster.exceptions.WorkerCrashedError as error:
        raise WorkersLostError("a Ray worker crashed") from error
    finally:
        for reference in waiting:
            cluster.cancel(reference, force=True)
        if starts_cluster:
            cluster.shutdown()
