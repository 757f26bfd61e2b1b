"""Limits of memory and time for one case, and the form of a refusal."""

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MEMORY = 2 * 2**30
"""Bytes of address space that a case may add."""
SECONDS = 20
"""Of the process's own time, so that a busy machine is no fault; and six times that by the clock, for what waits."""


class SlowError(Exception):
    """A case took longer than ``SECONDS``."""


@contextlib.contextmanager
def bounds() -> Iterator[None]:
    """Within the block this process may take ``MEMORY`` more and ``SECONDS``."""

    def late(*unused: Any) -> None:
        raise SlowError(f"more than {SECONDS} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = [signal.signal(number, late) for number in (signal.SIGALRM, signal.SIGPROF)]
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    signal.setitimer(signal.ITIMER_REAL, 6 * SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        for timer, number, handler in zip(
            (signal.ITIMER_REAL, signal.ITIMER_PROF), (signal.SIGALRM, signal.SIGPROF), before, strict=True
        ):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


def is_one_sentence(text: str) -> bool:
    """Return whether an error is a line that a person reads in one go."""
    return bool(text.strip()) and "\n" not in text.strip() and len(text) < 1500 and "Traceback" not in text
