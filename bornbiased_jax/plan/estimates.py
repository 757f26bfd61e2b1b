"""From needs and rates to devices, memory and hours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bornbiased_jax import hardware
from bornbiased_jax.plan.needs import Needs, Part

MOST_DEVICES = 65_536
"""More are not looked for: what no device shares does not fit in one."""


def estimate(
    needs: Needs,
    rates: Mapping[str, float],
    *,
    on: str | None = None,
    process_bytes: float = 0.0,
    passes_take: float = 1.0,
) -> dict[str, Any]:
    """What a command needs, JSON-ready.

    Args:
        needs: what it holds and computes.
        rates: units a second of each kind of work, of one device; one that is missing is left out, and named.
        on: a name of :data:`bornbiased_jax.hardware.ACCELERATORS`; None for this machine.
        process_bytes: of a process before it holds any of the parts.
        passes_take: what the program of a forward pass takes, in the bytes of the arrays that are alive together in it:
            compilers give it copies of a block's weights, and let arrays lie side by side.
    """
    remote = on is not None and not needs.host_only
    limit = hardware.USABLE_FRACTION * hardware.ACCELERATORS[str(on)].memory_bytes if remote else None
    if limit is None:
        found = hardware.device_memory() or hardware.available_memory()
        limit = None if found is None else float(found)
    memory = _at_the_peak(needs.memory, passes_take, remote)
    there = [part for part in memory if not (remote and part.on_host)]
    shared = sum(part.bytes for part in there if part.divided)
    each = (0.0 if remote else process_bytes) + sum(part.bytes for part in there if not part.divided)
    least = _least_devices(shared, each, limit)
    devices = needs.devices or (least if remote else 1) or 1
    if not remote and hardware.device_memory() is None:
        devices = 1  # those of a mesh are the same cores and the same memory
    # Processes of one machine have its memory between them.
    of_one = (shared / devices + each) * needs.processes
    times: list[dict[str, Any]] = [
        {"part": work.name, "amount": work.amount, "rate": rates[work.rate], "seconds": work.amount / rates[work.rate]}
        for work in needs.work
        if work.amount and work.rate in rates
    ]
    seconds = sum(row["seconds"] for row in times) / devices
    host = process_bytes + sum(part.bytes for part in memory if part.on_host)
    return {
        "what": needs.what,
        "on": on if remote else "this machine",
        "devices": devices,
        "devices_at_least": least,
        "device_memory_bytes": limit,
        "memory_bytes": of_one,
        "host_memory_bytes": host * needs.processes if remote else None,
        "fits": None if limit is None else of_one <= limit,
        "memory": [
            {
                "part": part.name,
                "bytes": part.bytes / (devices if part.divided else 1),
                "on": "host" if remote and part.on_host else "device",
            }
            for part in memory
        ],
        "process_bytes": process_bytes,
        "operations": sum(work.operations for work in needs.work),
        "dtype": needs.dtype,
        "times": times,
        "seconds": seconds,
        "hours": seconds / 3600,
        "device_hours": seconds * devices / 3600,
        "rates": {row.rate: rates[row.rate] for row in needs.work if row.amount and row.rate in rates},
        "left_out": [*needs.left_out, *(work.name for work in needs.work if work.amount and work.rate not in rates)],
        "host_only": needs.host_only,
    }


def _at_the_peak(memory: Sequence[Part], passes_take: float, remote: bool) -> list[Part]:
    """Parts as they are when most is held: of what the forward passes find freed, the rest that they do not fill."""
    passes = passes_take * sum(part.bytes for part in memory if part.turn == "passes")
    found = []
    for part in memory:
        if part.turn == "passes":
            part = part._replace(bytes=passes_take * part.bytes)
        elif part.turn == "before" and not (remote and part.on_host):
            part = part._replace(bytes=max(0.0, part.bytes - passes))
        found.append(part)
    return found


def _least_devices(shared: float, each: float, limit: float | None) -> int | None:
    """The fewest devices of so much memory; None where no number of them does."""
    if limit is None:
        return 1
    if each + shared <= limit:
        return 1
    left = limit - each
    count = math.ceil(shared / left) if left > 0 else MOST_DEVICES + 1
    return count if count <= MOST_DEVICES else None
