"""Executors of jobs: other processes of this machine, a Slurm cluster, or a Ray cluster.

An engine makes a :class:`concurrent.futures.Executor` for a number of jobs, to be used in a ``with`` block. Executors
keep no results: finished chunks lie in the store. Where a worker dies, a future raises
:class:`concurrent.futures.BrokenExecutor`, and the store submits what is missing to the engine's next executor.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import multiprocessing
import os
import signal
import socket
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar

import jax
from typing_extensions import override

from bornbiased_jax import progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import Processes, within

P = ParamSpec("P")
R = TypeVar("R")

Job = Callable[[], object]
Engine = Callable[[Path, int], Executor] | None
"""(folder of the store, number of jobs) -> an executor; None computes in this process."""
local: Engine = None

ENGINES = ("local", "processes", "slurm", "ray")
DEFAULT = "local"
WORKERS = 2
RETRIES = 3
PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
"""Variable that tells JAX whether to take most of a GPU's memory at once; worker processes inherit it."""
CONNECT_SECONDS = 10
SLURM_LOGS = "slurm"
"""Folder of a store with the scripts of Slurm jobs and their output."""


def engine_named(
    name: str, *, workers: int | None = None, submit: Mapping[str, object] | None = None, address: str | None = None
) -> Engine:
    """Return an engine by its name.

    Args:
        name: one of :data:`ENGINES`.
        workers: number of processes or tasks at the same time; :data:`WORKERS` unless given. Not of a running Ray
            cluster, which has as many as it has processors.
        submit: for "slurm", parameters as submitit names them (timeout_min, gpus_per_node, slurm_partition, …).
        address: for "ray", of a running cluster; one of this machine is started for the call unless given.

    Raises:
        InputError: no such engine, an option of another one, no workers, or its extra is not installed.
    """
    if name not in ENGINES:
        raise InputError(f"engine {name!r} is unknown: name {', '.join(ENGINES)}")
    if name == DEFAULT and workers is not None:
        raise InputError(f"the engine {DEFAULT} has no workers: name another --engine, or leave --workers out")
    if submit and name != "slurm":
        raise InputError(f"the engine {name} submits nothing: leave --submit out, or give --engine slurm")
    if address is not None and name != "ray":
        raise InputError(f"the engine {name} has no address: leave --ray-address out, or give --engine ray")
    if address is not None and workers is not None:
        raise InputError("a running Ray cluster has processors of its own: leave --workers out, or --ray-address")
    module = {"slurm": "submitit", "ray": "ray"}.get(name)
    if module is not None and importlib.util.find_spec(module) is None:
        raise InputError(f"--engine {name} needs {module}: pip install 'bornbiased-jax[{name}]'")
    # JAX takes three quarters of a GPU when it first computes there; workers share it, and this process only waits.
    if name != DEFAULT:
        os.environ.setdefault(PREALLOCATE, "false")
    number = WORKERS if workers is None else within(Processes, workers, "workers")
    engines: dict[str, Engine] = {
        "local": local,
        "processes": lambda _, num_jobs: WorkerProcesses(min(number, num_jobs)),
        "slurm": lambda folder, num_jobs: SlurmExecutor(folder, num_jobs, number, submit or {}),
        "ray": lambda _, __: RayExecutor(number, address),
    }
    return engines[name]


class WorkerProcesses(ProcessPoolExecutor):
    """Processes of this machine, started afresh; they end when this process does, however it ends."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers, multiprocessing.get_context("spawn"), _begin_worker)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Wait for the workers, or end them at once after an error: an unfinished file is none."""
        if kind is None:
            return super().__exit__(kind, error, traceback)
        for process in list((self._processes or {}).values()):
            process.terminate()
        self.shutdown(wait=True, cancel_futures=True)
        return None


def _begin_worker() -> None:
    # Ctrl-C reaches every process of a terminal: the first one decides, and the others follow it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class SlurmTask(Protocol):
    """The methods of a submitit job that are used here."""

    job_id: str

    def result(self) -> list[object]:
        """Wait, and return the result."""

    def done(self) -> bool:
        """Return whether it has ended."""

    def cancel(self) -> None:
        """End it."""


class SlurmExecutor(Executor):
    """Gathers jobs and submits them as one array of Slurm tasks; local processes where there is no Slurm.

    A task that runs out of its time or is preempted breaks the executor, and what it lacks is submitted again.

    Raises:
        InputError: submitit does not take the parameters, or, once the jobs are there, Slurm the array.
    """

    def __init__(self, folder: Path, num_jobs: int, workers: int, parameters: Mapping[str, object]) -> None:
        import submitit

        self._executor = submitit.AutoExecutor(folder / SLURM_LOGS)
        if self._executor.cluster != "slurm":
            progress.note(f"no Slurm here: submitit starts {workers} processes of this machine instead")
        try:
            self._executor.update_parameters(name="bornbiased", **parameters)
        except (NameError, TypeError, ValueError) as error:
            raise InputError(f"submitit does not take {dict(parameters)}: {' '.join(str(error).split())}") from error
        self._lost_errors = submitit.core.utils.UncompletedJobError
        # What sbatch says where it fails is a FailedJobError; an answer without a job's number is the other.
        self._refusals = (submitit.core.utils.FailedJobError, submitit.core.utils.FailedSubmissionError)
        self._num_jobs, self._num_tasks = num_jobs, min(workers, num_jobs)
        self._jobs: list[tuple[Future[Any], Job]] = []
        self._tasks: list[SlurmTask] = []
        self._watchers = ThreadPoolExecutor(self._num_tasks)

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Add a job; the last one of the announced number sends all of them."""
        future: Future[R] = Future()
        self._jobs.append((future, functools.partial(fn, *args, **kwargs)))
        if len(self._jobs) == self._num_jobs:
            parts = [self._jobs[first :: self._num_tasks] for first in range(self._num_tasks)]
            try:
                self._tasks = self._executor.map_array(_run_part, [[job for _, job in part] for part in parts])
            except self._refusals as error:
                raise InputError(f"Slurm does not take the tasks: {' '.join(str(error).split())}") from error
            for task, part in zip(self._tasks, parts, strict=True):
                self._watchers.submit(self._watch, task, [entry for entry, _ in part])
        return future

    def _watch(self, task: SlurmTask, futures: list[Future[Any]]) -> None:
        """Wait for a task and hand its results, or its error, to the futures of its jobs."""
        try:
            for future, result in zip(futures, task.result(), strict=True):
                future.set_result(result)
        except self._lost_errors:
            _break(futures, f"task {task.job_id} did not end as it should")
        except Exception as error:
            for future in futures:
                future.set_exception(error)

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the tasks that are not done."""
        for task in self._tasks:
            if not task.done():
                task.cancel()
        self._watchers.shutdown(wait=False)


def _run_part(jobs: list[Job]) -> list[object]:
    """Run the jobs of one Slurm task."""
    return [job() for job in jobs]


def _break(futures: list[Future[Any]], reason: str) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(BrokenExecutor(reason))


class RayExecutor(Executor):
    """Tasks of a Ray cluster, each with a processor, and a GPU where this process computes on one."""

    def __init__(self, workers: int, address: str | None) -> None:
        import ray

        self._ray, self._starts_cluster = ray, not ray.is_initialized()
        if self._starts_cluster:
            unreachable = f"no Ray cluster answers at {address}: start one there, or leave --ray-address out"
            # Ray itself asks for minutes where nobody listens.
            if address is not None and not _listens(address):
                raise InputError(unreachable)
            # "local": Ray itself takes a cluster that RAY_ADDRESS or a file names, which has its processors already.
            alone: dict[str, object] = {} if address else {"num_cpus": workers, "include_dashboard": False}
            try:
                ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **alone)
            except Exception as error:  # a node that starts too slowly is an Exception of no class of its own
                raise InputError(
                    unreachable if address else f"Ray does not start here: {' '.join(str(error).split())}"
                ) from error
        gpus = 0 if jax.default_backend() == "cpu" else 1
        self._remote = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)
        self._tasks: list[tuple[Any, Future[Any]]] = []

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        """Submit a job; an error of Ray's own, as on a crashed worker, becomes :class:`BrokenExecutor`."""
        reference = self._remote(fn).remote(*args, **kwargs)
        future: Future[R] = Future()

        def finish(ended: Future[Any]) -> None:
            error = ended.exception()
            exceptions = self._ray.exceptions
            # A RayTaskError is what the job raised; any other is Ray's: a worker, a node or its memory is gone.
            if isinstance(error, exceptions.RayError) and not isinstance(error, exceptions.RayTaskError):
                _break([future], f"{type(error).__name__} of Ray")
            elif error is not None:
                future.set_exception(error)
            else:
                future.set_result(ended.result())

        reference.future().add_done_callback(finish)
        self._tasks.append((reference, future))
        return future

    @override
    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Cancel the tasks that are not done, and end the cluster that this executor started."""
        for reference, future in self._tasks:
            if not future.done():
                self._ray.cancel(reference, force=True)
        if self._starts_cluster:
            self._ray.shutdown()


def _listens(address: str) -> bool:
    """Tell whether somebody listens at ``HOST:PORT``; of other addresses, as "auto", Ray decides."""
    place = urllib.parse.urlsplit(address if "://" in address else f"//{address}")
    try:
        if place.hostname is None or place.port is None:
            return True
        socket.create_connection((place.hostname, place.port), timeout=CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True
