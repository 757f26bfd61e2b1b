"""What an experiment takes over all the calls that it takes: the time and memory of a killed one count."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bornbiased_jax import files
from bornbiased_jax.errors import InputError
from bornbiased_jax.record import Measurement, jsonable, measure

EVERY_S = 30.0
"""Seconds between two notes: what a killed call took is known to within as many."""


@dataclasses.dataclass
class Elapsed:
    """A measurement that goes on where that of a killed call ended.

    Attributes:
        now: of this call.
        earlier_s: elapsed time of the calls before it.
        earlier_peak_memory_bytes: the largest resident set of those.
        calls: how many there were, this one too.
    """

    now: Measurement
    earlier_s: float = 0.0
    earlier_peak_memory_bytes: int = 0
    calls: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As :meth:`Measurement.to_dict` has it, over all calls, with their number where it is not 1."""
        taken = self.now.to_dict()
        taken["wall_time_s"] = round(taken["wall_time_s"] + self.earlier_s, 3)
        taken["peak_memory_bytes"] = max(taken["peak_memory_bytes"], self.earlier_peak_memory_bytes)
        return taken | ({"wall_time_calls": self.calls} if self.calls > 1 else {})


@contextlib.contextmanager
def elapsed(path: Path, identity: Any) -> Iterator[Elapsed]:
    """Measure a block as :func:`measure` does, and add what earlier calls took that were killed in it.

    Args:
        path: where a call notes what it has taken so far, each :data:`EVERY_S`; gone when the block ends well.
        identity: of the work, JSON-ready; what another one took is not counted.
    """
    with measure() as measurement:
        found = _after(path, jsonable(identity), measurement)
        over = threading.Event()
        keeper = threading.Thread(target=_keep, args=(path, jsonable(identity), found, over), daemon=True)
        keeper.start()
        try:
            yield found
        finally:
            over.set()
            keeper.join()
    with contextlib.suppress(OSError):
        path.unlink()


def _after(path: Path, identity: Any, now: Measurement) -> Elapsed:
    """The measurement that goes on from the note of a call that ended early, where there is one of this work."""
    try:
        noted = files.read_json(path)
        if noted["identity"] == identity:
            return Elapsed(
                now,
                earlier_s=float(noted["wall_time_s"]),
                earlier_peak_memory_bytes=int(noted["peak_memory_bytes"]),
                calls=int(noted.get("wall_time_calls", 1)) + 1,
            )
    except (InputError, KeyError, TypeError, ValueError):
        pass  # None, or a damaged one: the time so far is not known.
    return Elapsed(now)


def _keep(path: Path, identity: Any, found: Elapsed, over: threading.Event) -> None:
    while not over.wait(EVERY_S):
        with measure():  # Notes the peak so far of the blocks around it.
            pass
        # What cannot be noted is no reason for the work to fail.
        with contextlib.suppress(InputError, OSError):
            files.write_json(path, {"identity": identity, **found.to_dict()})
