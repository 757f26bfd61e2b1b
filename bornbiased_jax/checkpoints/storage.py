"""Classify storage errors, and keep the libraries below Orbax quiet about them."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import sys
from collections.abc import Iterator

# What says nothing about a file's content: limits, rights, a server that is away.
_PASSING_ERRNO = frozenset(
    getattr(errno, name)
    for name in ("EMFILE", "ENFILE", "ENOMEM", "EIO", "ESTALE", "EACCES", "EPERM", "ETIMEDOUT", "EAGAIN", "ENETDOWN")
    if hasattr(errno, name)
)
_PASSING_STATUS = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "UNAUTHENTICATED")


def may_pass(error: BaseException) -> bool:
    """Tell whether a read failed for a reason that may pass, so that it is no sign of a corrupted file."""
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _PASSING_ERRNO):
        return True
    text = str(error)
    # The layers below turn the system's error into words.
    if any(status in text for status in _PASSING_STATUS) or any(os.strerror(code) in text for code in _PASSING_ERRNO):
        return True
    return any(cause is not None and may_pass(cause) for cause in (error.__cause__, error.__context__))


def out_of_room(error: BaseException) -> bool:
    """Tell whether a write failed because the disk, or what may be used of it, is full."""
    codes = [getattr(errno, name) for name in ("ENOSPC", "EFBIG", "EDQUOT") if hasattr(errno, name)]
    return getattr(error, "errno", None) in codes or any(os.strerror(code) in str(error) for code in codes)


def first_line(error: BaseException) -> str:
    """Return the reason in one line, without what the storage layers add."""
    text = (str(error).splitlines() or [""])[0]
    reason = error.strerror if isinstance(error, OSError) and error.strerror else text
    reason = reason.split(" [tensorstore_spec")[0]
    return reason[:300] or type(error).__name__


# What fails there is told in one sentence here; their own reports of it, also from threads, would bury that.
_LOUD_LIBRARIES = ("absl", "asyncio")


@contextlib.contextmanager
def silent_libraries() -> Iterator[None]:
    """Silence Orbax and the libraries below it."""
    loggers = [logging.getLogger(name) for name in _LOUD_LIBRARIES]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    _drop_late_reports()
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@functools.cache
def _drop_late_reports() -> None:
    """Drop reports of concurrent writes to an event loop that the first failure has closed.

    They come when all is over, each with a traceback; so this stays in place.
    """
    hook = sys.unraisablehook

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == "Event loop is closed"):
            hook(unraisable)

    sys.unraisablehook = report
