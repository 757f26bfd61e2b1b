"""Write a run's metrics as it goes: ``metrics.jsonl`` and TensorBoard's event files."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Annotated, Any, NotRequired

from annotated_types import Interval
from typing_extensions import TypedDict

from bornbiased_jax import io, progress, schema
from bornbiased_jax.errors import InputError

Measured = Annotated[float, Interval(ge=-3.5e38, le=3.5e38)]
"""What float32 can say."""


class MetricsLine(TypedDict):
    """What every line has; numbers of seeds are in their order."""

    step: Annotated[int, Interval(ge=1)]
    seeds: list[int]
    loss: list[Measured]
    grad_norm: list[Measured]
    lr: Measured
    tokens: Annotated[int, Interval(ge=0)]
    tokens_per_second: Measured
    validation_loss: NotRequired[list[Measured]]


METRICS_FILE = "metrics.jsonl"
EVENTS = "tensorboard"


def read_metrics(folder: Path | str) -> list[dict[str, Any]]:
    """Read the lines of a run's ``metrics.jsonl``, in order; a last line cut short by a kill is left out.

    Raises:
        InputError: the file cannot be read, or is damaged; the sentence names the line.
    """
    lines, damage = _read(folder)
    if damage is not None:
        raise damage
    return lines


def mend_metrics(folder: Path | str) -> None:
    """Set a corrupted ``metrics.jsonl`` aside, if it is one, and keep its complete lines.

    Raises:
        InputError: the folder cannot be written.
    """
    lines, damage = _read(folder)
    if damage is not None:
        path = Path(folder) / METRICS_FILE
        place = io.set_aside(path)
        progress.warn(f"{damage}: set aside as {place.name}; the {len(lines)} whole lines stay")
        io.write_text(path, "".join(json.dumps(line) + "\n" for line in lines))


def _read(folder: Path | str) -> tuple[list[dict[str, Any]], InputError | None]:
    """Return the complete lines, and what is wrong with the first that is not."""
    path = Path(folder) / METRICS_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    lines: list[dict[str, Any]] = []
    damage: InputError | None = None
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        where = f"line {number} of {path}"
        try:
            record = schema.check(MetricsLine, schema.parse_json(line, where), where, "it is damaged")
            if any(len(value) != len(record["seeds"]) for value in record.values() if isinstance(value, list)):
                raise InputError(f"{where} has not one number for each seed: it is damaged")
            if lines and record["step"] <= lines[-1]["step"]:
                raise InputError(f"{where} has step {record['step']} after step {lines[-1]['step']}: it is damaged")
            lines.append(record)
        except InputError as error:
            damage = damage or error
    return lines, damage


class MetricsWriter:
    """One line a record, appended as it comes; what a resumed run will do again is cut off first."""

    def __init__(self, folder: Path, step: int, seeds: tuple[int, ...], *, tensorboard: bool = True) -> None:
        """Continue after ``step`` updates.

        Raises:
            InputError: the files cannot be written.
        """
        self._path, self._seeds = folder / METRICS_FILE, seeds
        self._events: Any = None
        earlier = [line for line in read_metrics(folder) if line["step"] <= step]
        io.write_text(self._path, "".join(json.dumps(line) + "\n" for line in earlier))
        try:
            self._stream = self._path.open("a")
            if tensorboard:
                self._events = _Events(folder / EVENTS, step)
        except OSError as error:
            raise InputError(f"cannot write metrics in {folder}: {error.strerror}; choose another place") from error

    def write(self, record: dict[str, Any]) -> None:
        """Append one record: ``step`` and numbers, or lists of numbers in the order of the seeds.

        Raises:
            InputError: the disk is full or gone.
        """
        try:
            self._stream.write(json.dumps(record, allow_nan=False) + "\n")
            self._stream.flush()
            if self._events is not None:
                self._write_events(record)
        except OSError as error:
            raise InputError(
                f"cannot write {self._path}: {error.strerror}; the checkpoints are intact: free room, then run "
                "the same command again"
            ) from error

    def _write_events(self, record: dict[str, Any]) -> None:
        for name, value in record.items():
            if name in ("step", "seeds"):
                continue
            if isinstance(value, list):
                for seed, entry in zip(self._seeds, value, strict=True):
                    self._events.add(f"{name}/seed{seed}", entry, record["step"])
            elif isinstance(value, (int, float)):
                self._events.add(name, value, record["step"])
        self._events.flush()

    def close(self) -> None:
        """Flush and close; a full disk was reported before."""
        for stream in (self._stream, self._events):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                continue


class _Events:
    """One TensorBoard event file, written as it comes.

    tensorboardX's usual writer hands events to a thread, whose failures on a full disk nobody can catch.
    """

    def __init__(self, folder: Path, step: int) -> None:
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(folder / "events"), f".{step}")
        if step:
            # TensorBoard drops what earlier files say of later steps.
            start = SessionLog(status=SessionLog.START)
            self._writer.write_event(Event(wall_time=time.time(), step=step + 1, session_log=start))

    def add(self, tag: str, value: float, step: int) -> None:
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event

        self._writer.write_event(Event(wall_time=time.time(), step=step, summary=summary.scalar(tag, value)))

    def flush(self) -> None:
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


def first_bad(record: dict[str, list[float]], seeds: tuple[int, ...]) -> tuple[str, int, float] | None:
    """Return (name, seed, value) of the first number that is NaN or infinite, or None."""
    for name, values in record.items():
        for seed, value in zip(seeds, values, strict=True):
            if not math.isfinite(value):
                return name, seed, value
    return None
