"""A job: some chunks of a page, computed by whoever is handed its text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bornbiased_jax import io, schema
from bornbiased_jax.errors import InputError
from bornbiased_jax.ledger.pages import TASK_FILE, Chunk, Compute, Ledger, Page, Task, TaskRecord, resolve, task_of


class Job(NamedTuple):
    """What crosses to a worker.

    Attributes:
        ledger: the folder, absolute.
        key: of the page.
        chunks: that are to be there afterwards.
        sources: where to find what the settings name by its digest (a checkpoint, a table of ids); JSON-ready.
    """

    ledger: str
    key: str
    chunks: list[Chunk]
    sources: Mapping[str, Any]

    def text(self) -> str:
        """Return the job as JSON."""
        return json.dumps(self._asdict(), allow_nan=False)


def parse_job(text: str) -> Job:
    """Read a job from its text."""
    content = json.loads(text)
    return Job(**{**content, "chunks": [Chunk(*chunk) for chunk in content["chunks"]]})


def perform(text: str) -> None:
    """Compute the missing chunks of a job, in whichever process this is.

    Raises:
        InputError: this process has other code, libraries or devices than the one that asked, or the task's own.
    """
    job = parse_job(text)
    place = Path(job.ledger) / job.key / TASK_FILE
    requested = Task(**schema.check(TaskRecord, io.read_json(place), str(place), "remove its folder"))
    local_task = task_of(requested.function, requested.settings)
    for name in ("code", "libraries", "device"):
        requested_part, local_part = getattr(requested, name), getattr(local_task, name)
        if requested_part != local_part:
            raise InputError(
                f"page {job.key} of {job.ledger} is of other {name} ({_unlike(requested_part, local_part)}) than this "
                f"worker has ({_unlike(local_part, requested_part)}): give all workers the same installation and kind "
                "of device"
            )
    compute_chunks(Ledger(job.ledger).page(local_task), job, resolve(requested.function))


def attempt(texts: list[str]) -> str | None:
    """Perform jobs, and return the sentence of one that was refused: not every engine carries exceptions."""
    try:
        for text in texts:
            perform(text)
    except InputError as error:
        return str(error)
    return None


def compute_chunks(
    page: Page, job: Job, compute: Compute, there_already: Callable[[Chunk], None] | None = None
) -> None:
    """Compute the chunks of a job that are not there yet, and keep them; an error is noted on the page and raised.

    Args:
        page: where they are kept.
        job: which.
        compute: the task's function.
        there_already: called with each chunk that another driver has computed meanwhile.
    """
    present = page.done()
    todo = [chunk for chunk in job.chunks if chunk not in present]
    if there_already is not None:
        for chunk in job.chunks:
            if chunk in present:
                there_already(chunk)
    if not todo:
        return
    try:
        for chunk, tree in zip(todo, compute(page.task.settings, job.sources, todo), strict=True):
            page.write(chunk, tree)
    except Exception as error:
        if not isinstance(error, InputError):
            present = page.done()
            page.fail([chunk for chunk in todo if chunk not in present], error)
        raise


def _unlike(first: object, second: object) -> str:
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return str(first)
    differences = [f"{name} {first[name]}" for name in sorted(first) if second.get(name) != first[name]]
    return ", ".join(differences) or "fewer libraries"


Perform = Callable[[Job], None]
