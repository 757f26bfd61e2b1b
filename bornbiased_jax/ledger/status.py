"""How far a ledger is: chunks done and wanted, their rate, and what failed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from bornbiased_jax import io
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import MARKER, Folder
from bornbiased_jax.ledger.pages import MAKER, Ledger, Page, resolve

WINDOW = 3600.0
"""Seconds before the latest chunk over which its rate is taken."""


class PageStatus(TypedDict):
    """One task's chunks."""

    page: str
    """Folder of the ledger and name of the page."""
    function: str
    settings: dict[str, Any]
    same_code: bool
    """Whether it was made by the code that is installed here; a page of other code is not gone on with."""
    done: int
    asked: int
    """Done or wanted by any driver so far."""
    failed: int
    failures: dict[str, str]
    """Chunk to reason, of the first few."""
    per_minute: float | None
    """Chunks of the last hour of work; None where there are fewer than two."""
    seconds_left: float | None
    seconds_since_last: NotRequired[float]


class Status(TypedDict):
    """All pages, and their sums."""

    folder: str
    done: int
    asked: int
    failed: int
    pages: list[PageStatus]


SHOWN_FAILURES = 10


def status(folder: Path | str) -> Status:
    """Summarize a ledger, or all ledgers below a folder; nothing is computed or written.

    Raises:
        InputError: there is none, or a page cannot be read.
    """
    path = io.user_path(folder)
    if not path.is_dir():
        raise InputError(f"{path} is no folder: name the one that was given to --resume")
    markers = sorted(io.below(path, MARKER))
    places = [marker.parent for marker in markers if Folder(marker.parent, MAKER).made_here]
    if not places:
        raise InputError(f"{path} holds no ledger: name the folder that was given to --resume")
    pages = [_page_status(page) for place in places for page in Ledger(place).pages()]
    sums = {name: sum(page[name] for page in pages) for name in ("done", "asked", "failed")}
    return {"folder": str(path), "done": sums["done"], "asked": sums["asked"], "failed": sums["failed"], "pages": pages}


def _page_status(page: Page) -> PageStatus:
    times, failures, finished = page.times(), page.failures(), page.done()
    num_asked = len(page.asked() | finished)
    rate = _rate(times)
    row: PageStatus = {
        "page": str(page.path),
        "function": page.task.function,
        "settings": dict(page.task.settings),
        "same_code": _code_here(page.task.function) == page.task.code,
        "done": len(finished),
        "asked": num_asked,
        "failed": len(failures),
        "failures": {chunk.name: failures[chunk] for chunk in sorted(failures)[:SHOWN_FAILURES]},
        "per_minute": None if rate is None else 60.0 * rate,
        "seconds_left": None if rate is None else (num_asked - len(finished)) / rate,
    }
    if times:
        row["seconds_since_last"] = max(0.0, time.time() - times[-1])
    return row


def _rate(times: list[float]) -> float | None:
    """Return chunks a second over the last hour of work."""
    recent = [at for at in times if at >= times[-1] - WINDOW]
    return (len(recent) - 1) / (recent[-1] - recent[0]) if len(recent) > 1 and recent[-1] > recent[0] else None


def _code_here(function: str) -> str | None:
    try:
        return code_digest(resolve(function))
    except InputError:
        return None
