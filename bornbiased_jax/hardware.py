"""The machine: cores, memory, and what fits in it. Asked here and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

from bornbiased_jax.errors import InputError

MEMINFO = Path("/proc/meminfo")
"""Where Linux tells of its memory."""
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells of the limits of a container."""
GIB = 2**30


def cores() -> int:
    """Count the cores that this process may use: those of its affinity mask where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_memory() -> int | None:
    """Return the bytes that the first local device may hold, or None where it does not say (a CPU)."""
    import jax  # noqa: PLC0415 (takes a second)

    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


def available_memory() -> int | None:
    """Return the bytes of main memory that this process may still take, or None where the system does not say.

    The least of what is free without swapping, what a container leaves and what the process's own limit leaves.
    """
    rooms = [room for room in (_free(), _left_in_container(), _left_to_process()) if room is not None]
    return max(0, min(rooms)) if rooms else None


def _free() -> int | None:
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _left_in_container() -> int | None:
    """Return the memory left in a control group of version 2.

    Its page cache counts as in use and is given up when needed.
    """
    try:
        limit, used = (int((CGROUP / name).read_text()) for name in ("memory.max", "memory.current"))
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return limit - used + int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
    except (OSError, ValueError):  # no container, or one without a limit ("max")
        return None


def _left_to_process() -> int | None:
    """Return the memory left of the limit on address space (``ulimit -v``)."""
    try:
        import resource  # noqa: PLC0415 (no module of Windows)

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        return int(limit) - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError, IndexError):
        return None


def check_memory(needed: float, description: str, remedy: str, *, on_host: bool = False) -> None:
    """Refuse what cannot fit, before any of it is allocated.

    Args:
        needed: bytes that it takes at the least.
        description: what takes them, to stand before "needs".
        remedy: what to do about it.
        on_host: in main memory; else where the first device has its arrays.

    Raises:
        InputError: there is less; the sentence gives both sizes.
    """
    if needed < GIB // 16:
        return
    available = None if on_host else device_memory()
    available = available_memory() if available is None else available
    if available is not None and needed > available:
        raise InputError(
            f"{description} needs about {_gib(needed)} GiB of memory, and {_gib(available)} GiB are available: {remedy}"
        )


def _gib(size: float) -> str:
    return f"{size / GIB:,.1f}" if size < 1000 * GIB else f"{size / GIB:,.0f}"


def memory_in_use_peak() -> int | None:
    """Return the most bytes that the first device has held so far, or None where it does not say."""
    import jax  # noqa: PLC0415 (takes a second)

    peak = (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return None if peak is None else int(peak)
