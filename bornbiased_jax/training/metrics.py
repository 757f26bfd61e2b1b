"""A run's metrics: the hook that reads them, the loggers that write them, and the lines as they are read back."""

from __future__ import annotations

import csv
import functools
import hashlib
import importlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Annotated, NotRequired, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from annotated_types import Interval
from typing_extensions import TypedDict

from bornbiased_jax import io, progress, schema
from bornbiased_jax.errors import InputError
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.step import Metrics
from bornbiased_jax.training.throughput import TrainingClock

Float32Value = Annotated[float, Interval(ge=-3.5e38, le=3.5e38)]
"""What float32 can say."""


class MetricsLine(TypedDict):
    """A line of ``metrics.jsonl``; a list holds a number for each seed, in their order."""

    step: Annotated[int, Interval(ge=1)]
    seeds: list[int]
    loss: list[Float32Value]
    grad_norm: list[Float32Value]
    lr: Float32Value
    tokens: Annotated[int, Interval(ge=0)]
    tokens_per_second: Float32Value
    validation_loss: NotRequired[list[Float32Value]]


METRICS_FILE = "metrics.jsonl"
CSV_FILE = "metrics.csv"
EVENTS = "tensorboard"


def read_metrics(folder: Path | str) -> list[MetricsLine]:
    """Read the lines of a run's ``metrics.jsonl``, in order; a last line cut short by a kill is left out.

    Raises:
        InputError: the file cannot be read, or is corrupted; the sentence names the line.
    """
    lines, damage = _read(folder)
    if damage is not None:
        raise damage
    return lines


def repair_metrics(folder: Path | str) -> None:
    """Set a corrupted ``metrics.jsonl`` aside, if it is one, and keep its complete lines.

    Raises:
        InputError: the folder cannot be written.
    """
    lines, damage = _read(folder)
    if damage is not None:
        # Keep the corrupted file for whoever wants to look at it.
        path = Path(folder) / METRICS_FILE
        place = io.set_aside(path)
        progress.warn(f"{damage}: set aside as {place.name}; the {len(lines)} whole lines stay")
        io.write_text(path, "".join(map(json_line, lines)))


def _read(folder: Path | str) -> tuple[list[MetricsLine], InputError | None]:
    """Return the complete lines, and what is wrong with the first that is not."""
    path = Path(folder) / METRICS_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return [], None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error
    lines: list[MetricsLine] = []
    damage: InputError | None = None
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        where = f"line {number} of {path}"
        try:
            # Types and ranges first, then what holds between fields and between lines.
            record = schema.check(MetricsLine, schema.parse_json(line, where), where, "it is corrupted")
            if any(len(value) != len(record["seeds"]) for value in record.values() if isinstance(value, list)):
                raise InputError(f"{where} has not one number for each seed: it is corrupted")
            if lines and record["step"] <= lines[-1]["step"]:
                raise InputError(f"{where} has step {record['step']} after step {lines[-1]['step']}: it is corrupted")
            lines.append(record)
        except InputError as error:
            damage = damage or error
    return lines, damage


class Logger(Protocol):
    """A place where lines of metrics go; it raises ``OSError`` where it cannot write."""

    def write(self, line: MetricsLine) -> None:
        """Write one line."""

    def close(self) -> None:
        """Flush and release what is open."""


class FileLogger:
    """A text file of metrics, appended as they come."""

    def __init__(
        self, path: Path, earlier: Iterable[MetricsLine], text_of: Callable[[MetricsLine], str], head: str = ""
    ) -> None:
        # What a resumed run will do again is cut off first.
        io.write_text(path, head + "".join(map(text_of, earlier)))
        self._stream, self._text_of = path.open("a", newline=""), text_of

    def write(self, line: MetricsLine) -> None:
        """Append a line."""
        self._stream.write(self._text_of(line))
        self._stream.flush()

    def close(self) -> None:
        """Close the file."""
        self._stream.close()


def json_line(line: MetricsLine) -> str:
    """Write a line of ``metrics.jsonl``."""
    return json.dumps(line, allow_nan=False) + "\n"


def csv_row(columns: Sequence[str], line: MetricsLine) -> str:
    """Write a row of ``metrics.csv``; what is not measured at a step is an empty cell."""
    numbers = {"step": line["step"], **dict(scalars(line))}
    text = StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerow(numbers.get(column, "") for column in columns)
    return text.getvalue()


def csv_columns(seeds: Sequence[int]) -> list[str]:
    """Name the columns of ``metrics.csv``: one for each number of each seed."""
    by_seed = [f"{name}/seed{seed}" for name in ("loss", "grad_norm", "validation_loss") for seed in seeds]
    return ["step", "tokens", "lr", "tokens_per_second", *by_seed]


class TensorBoardLogger:
    """One TensorBoard event file, written as it comes; that of a resumed run replaces those before, with their lines.

    tensorboardX's usual writer hands events to a thread, whose failures on a full disk nobody can catch. It imports
    PyTorch where that is installed, for which commands that write no events need not wait.
    """

    def __init__(self, folder: Path, earlier: Sequence[MetricsLine]) -> None:
        from tensorboardX.event_file_writer import EventsWriter

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
        from tensorboardX import summary
        from tensorboardX.proto.event_pb2 import Event

        for tag, value in scalars(line):
            scalar = summary.scalar(tag, value)
            self._writer.write_event(Event(wall_time=time.time(), step=line["step"], summary=scalar))
        self._writer.flush()

    def close(self) -> None:
        """Close the file."""
        self._writer.close()


class WandbLogger:
    """A run of Weights & Biases in the folder ``wandb``, offline unless ``WANDB_MODE`` says otherwise.

    ``wandb sync`` sends it later. A resumed run is the same one: its id is a digest of the folder's name. It is given
    the earlier lines too: of several offline parts of one run the server keeps the last alone.

    Raises:
        InputError: the extra ``wandb`` is not installed.
    """

    def __init__(self, folder: Path, config: PretrainConfig, earlier: Iterable[MetricsLine]) -> None:
        wandb = require_wandb()
        self._run = wandb.init(
            project="bornbiased",
            name=folder.name,
            id=hashlib.sha256(str(folder).encode()).hexdigest()[:16],
            resume="allow",
            dir=str(folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            config=config.to_dict(),
        )
        for line in earlier:
            self.write(line)

    def write(self, line: MetricsLine) -> None:
        """Log the numbers of a step, unless the server has it from before a resume."""
        if line["step"] >= self._run.starting_step:
            self._run.log(dict(scalars(line)), step=line["step"])

    def close(self) -> None:
        """End the run."""
        self._run.finish()


def require_wandb() -> ModuleType:
    """Import Weights & Biases.

    Raises:
        InputError: it is not installed.
    """
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise InputError("--wandb needs Weights & Biases: pip install 'bornbiased-jax[wandb]'") from error


def scalars(line: MetricsLine) -> list[tuple[str, float]]:
    """List the numbers of a line but for its step, those of seeds under names such as ``loss/seed42``."""
    numbers: list[tuple[str, float]] = []
    for name, value in line.items():
        if isinstance(value, list) and name != "seeds":
            numbers += [(f"{name}/seed{seed}", entry) for seed, entry in zip(line["seeds"], value, strict=True)]
        elif isinstance(value, (int, float)) and name != "step":
            numbers.append((name, value))
    return numbers


def csv_logger(folder: Path, seeds: Sequence[int], earlier: Iterable[MetricsLine]) -> FileLogger:
    """Write the earlier lines as ``metrics.csv``, and return the logger that appends the next ones."""
    columns = csv_columns(seeds)
    return FileLogger(folder / CSV_FILE, earlier, functools.partial(csv_row, columns), ",".join(columns) + "\n")


def resumed_loggers(folder: Path, config: PretrainConfig, first: int) -> list[Logger]:
    """Open a run's loggers, which continue after ``first`` updates.

    Raises:
        InputError: their files cannot be written.
    """
    earlier = [line for line in read_metrics(folder) if line["step"] <= first]
    # Where a signal stopped the run its last step has a line that an undisturbed run would not write.
    if earlier and earlier[-1]["step"] == first and not has_line(config, first, earlier[-1]):
        earlier.pop()
    # The lines come first: rows of the CSV are made again from them.
    try:
        loggers: list[Logger] = [FileLogger(folder / METRICS_FILE, earlier, json_line)]
        if config.csv:
            loggers.append(csv_logger(folder, config.seeds, earlier))
        if config.tensorboard:
            loggers.append(TensorBoardLogger(folder, earlier))
        if config.wandb:
            loggers.append(WandbLogger(folder, config, earlier))
    except OSError as error:
        raise InputError(f"cannot write metrics in {folder}: {error.strerror}; choose another place") from error
    return loggers


def write_finished(folder: Path, config: PretrainConfig) -> None:
    """Write what a run was finished without and is asked for now, from its lines.

    Raises:
        InputError: the files cannot be written.
    """
    lines = read_metrics(folder)
    if config.csv:
        csv_logger(folder, config.seeds, lines).close()
    if config.tensorboard and not (folder / EVENTS).exists():
        with io.writing(folder / EVENTS):
            TensorBoardLogger(folder, lines).close()
    if config.wandb:
        progress.warn(f"{folder} is a finished run: nothing more is logged to Weights & Biases")


def has_line(config: PretrainConfig, step: int, values: Mapping[str, object]) -> bool:
    """Return whether a step has a line by itself: it is due, or has a held-out loss."""
    return step % config.log_every == 0 or "validation_loss" in values


class MetricsLog:
    """The hook that brings the numbers of each step to the host, checks them and hands lines to the loggers.

    An accelerator must never wait for the host: there the numbers of a step are read while the next step runs. A CPU
    computes and reads in turn.

    Attributes:
        step: the last step that was read.
        loss: its loss, by seed; None before the first.
    """

    def __init__(
        self, config: PretrainConfig, schedule: optax.Schedule, clock: TrainingClock, loggers: Sequence[Logger]
    ) -> None:
        self._config, self._schedule, self._clock, self._loggers = config, schedule, clock, loggers
        self.reads_behind = jax.default_backend() != "cpu"
        self.step = 0
        self.loss: list[float] | None = None
        # The last step whose numbers were not read yet, and the last that was read and that no line was due for.
        self._pending: tuple[int, Metrics] | None = None
        self._unwritten: dict[str, list[float]] | None = None

    def __call__(self, step: int, state: object, metrics: Metrics) -> None:  # noqa: ARG002 (a hook)
        """Take the numbers of a step; those of the step before are on the host and written when this returns."""
        self.flush()
        self._pending = (step, metrics)
        if not self.reads_behind:
            self.flush()

    def flush(self) -> None:
        """Read the numbers of the pending step, if there is one, and write its line where one is due.

        Raises:
            InputError: a number is not finite, or the disk is full or gone.
        """
        if self._pending is None:
            return
        # Wait for the numbers; the clock takes the time until they are here for that of their step.
        (self.step, metrics), self._pending = self._pending, None
        values = {name: np.asarray(value, np.float64).tolist() for name, value in jax.device_get(metrics).items()}
        self._clock.count_step()
        self._check_finite(values)
        self.loss = values["loss"]
        self._unwritten = values
        if has_line(self._config, self.step, values):
            self._write_line()

    def close(self) -> None:
        """Read and write what is left: the last step has a line in any case.

        Raises:
            InputError: as of :meth:`flush`.
        """
        self.flush()
        self._write_line()

    def _check_finite(self, values: dict[str, list[float]]) -> None:
        # One seed that diverges ends the run, and is named.
        for name, by_seed in values.items():
            for seed, value in zip(self._config.seeds, by_seed, strict=True):
                if not math.isfinite(value):
                    raise InputError(
                        f"the {name} of seed {seed} is {value} at step {self.step}: what was saved before is intact; "
                        "lower the learning rate or raise the warm-up, with another --out"
                    )

    def _write_line(self) -> None:
        # A line is written once.
        values, self._unwritten = self._unwritten, None
        if values is None:
            return
        line: MetricsLine = {
            "step": self.step,
            "loss": values["loss"],
            "seeds": list(self._config.seeds),
            "grad_norm": values["grad_norm"],
            # The rate that made this step's update.
            "lr": float(self._schedule(jnp.asarray(self.step - 1))),
            "tokens": self.step * self._config.tokens_per_step,
            "tokens_per_second": self._clock.lap(),
        }
        if "validation_loss" in values:
            line["validation_loss"] = values["validation_loss"]
        try:
            for logger in self._loggers:
                logger.write(line)
        except OSError as error:
            raise InputError(
                f"cannot write {METRICS_FILE} in {self._config.out}: {error.strerror}; the checkpoints are intact: "
                "free room, then run the same command again"
            ) from error
