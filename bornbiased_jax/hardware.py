"""The machine: cores, memory, and what fits in it. Asked here and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
"""Where Linux tells of its memory."""


def cores() -> int:
    """How many cores this process may use: those of its affinity mask where the system has one."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_memory() -> int | None:
    """Bytes that the first local device may hold, or None where it does not say (a CPU)."""
    import jax

    limit = (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")
    return None if limit is None else int(limit)


def available_memory() -> int | None:
    """Bytes of main memory that programs may still take without swapping, or None where the system does not say."""
    try:
        lines = MEMINFO.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def memory_in_use_peak() -> int | None:
    """Bytes that the first device held at most so far, or None where it does not say."""
    import jax

    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return None if peak is None else int(peak)
