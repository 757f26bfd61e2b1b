"""The machine: cores, memory, and what fits in it. Asked here and nowhere else."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import jax

from bornbiased_jax.errors import InputError

MEMINFO = Path("/proc/meminfo")
"""Where Linux tells of its memory."""
CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells of the limits of a container."""
PROCESS_GROUPS = Path("/proc/self/cgroup")
"""Where Linux names the control groups of this process."""
GIB = 2**30


def cores() -> int:
    """Count the cores that this process may use: those of its affinity mask where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_memory() -> int | None:
    """Return the bytes that the first local device may hold, or None where it does not say (a CPU)."""
    return _memory_stat("bytes_limit")


def peak_device_memory() -> int | None:
    """Return the most bytes that the first local device has held so far, or None where it does not say."""
    return _memory_stat("peak_bytes_in_use")


def _memory_stat(name: str) -> int | None:
    value = (jax.local_devices()[0].memory_stats() or {}).get(name)
    return None if value is None else int(value)


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
    """Return the memory left in this process's control group and those around it, of either version.

    Their page cache counts as in use and is given up when needed.
    """
    rooms: list[int] = []
    for folder, (limit, used, prefix) in _control_groups():
        # Not every group has a limit ("max"), and a container does not see those around it.
        with contextlib.suppress(OSError, ValueError):
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cache = sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("inactive", "active"))
            rooms.append(int((folder / limit).read_text()) - int((folder / used).read_text()) + cache)
    return min(rooms, default=None)


def _control_groups() -> Iterator[tuple[Path, tuple[str, str, str]]]:
    """Yield folders of control groups, with their names of limit and use, and of fields that count groups below."""
    second = (CGROUP, ("memory.max", "memory.current", ""))
    first = (CGROUP / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
    # The roots in any case: in a container they are its own group, whatever the name outside.
    paths = [(second, "/"), (first, "/")]
    with contextlib.suppress(OSError, ValueError):
        for line in PROCESS_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                paths.append((first if controllers else second, path))
    for (root, names), path in paths:
        relative = Path(path.lstrip("/"))
        yield from ((root / place, names) for place in (relative, *relative.parents))


def _left_to_process() -> int | None:
    """Return the memory left of the limit on address space (``ulimit -v``)."""
    try:
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        return int(limit) - int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, IndexError):
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
