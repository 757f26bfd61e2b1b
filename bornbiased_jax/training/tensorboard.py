"""Write a run's metrics as a TensorBoard event file."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event

from bornbiased_jax.training.metrics import EVENTS, MetricsLine, scalars


class TensorBoardLogger:
    """One TensorBoard event file, written as it comes; that of a resumed run replaces those before, with their lines.

    tensorboardX's usual writer hands events to a thread, whose failures on a full disk nobody can catch.
    """

    def __init__(self, folder: Path, earlier: Sequence[MetricsLine]) -> None:
        (folder / EVENTS).mkdir(parents=True, exist_ok=True)
        before = list((folder / EVENTS).glob("events.*"))
        self._writer = EventsWriter(str(folder / EVENTS / "events"), f".{len(earlier)}.{os.getpid()}")
        for line in earlier:
            self.write(line)
        # Two files would show steps twice that a killed run had made and the resumed one makes again.
        for path in before:
            path.unlink(missing_ok=True)

    def write(self, line: MetricsLine) -> None:
        """Append an event for each number."""
        for tag, value in scalars(line):
            scalar = summary.scalar(tag, value)
            self._writer.write_event(Event(wall_time=time.time(), step=line["step"], summary=scalar))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()
