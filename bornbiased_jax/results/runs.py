"""Results of `pretrain` and `adapt`: how the seeds of a run learned."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax import io
from bornbiased_jax.config import FieldValue
from bornbiased_jax.errors import InputError
from bornbiased_jax.report import figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Result
from bornbiased_jax.results.wording import count, rounded, span
from bornbiased_jax.training import read_metrics
from bornbiased_jax.training.metrics import MetricsLine
from bornbiased_jax.training.runs import RunDescription, describe


class RunProgress(TypedDict):
    """The state of a run, as far as it is shown; JSON-ready, lists in the order of the seeds."""

    out: str
    seeds: list[int]
    steps: int
    step: int
    finished: bool
    loss: list[float] | None
    validation_loss: list[float] | None
    tokens: int
    peak_share: float | None


class LoggedRun(RunDescription):
    """A run that was read from its folder; of its speed nothing is known."""

    out: str
    peak_share: float | None


@dataclasses.dataclass(frozen=True, repr=False)
class Training(Result):
    """A run and the lines that it logged.

    Attributes:
        run: what training returned, or a :class:`LoggedRun`.
        lines: those of ``metrics.jsonl``, one a logged step; losses in nats a token, in the order of the seeds.
        model: the configuration, all fields; None of a run that was read from its folder, which names its model.
    """

    question = "How did the seeds of a run learn?"
    axes = ("step", "seed")
    run: RunProgress
    lines: Sequence[MetricsLine] = ()
    model: Mapping[str, FieldValue] | None = None

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        return {**self.run} if self.model is None else {**self.run, "model": self.model}

    def summary(self) -> list[str]:
        """Say how far the run came, what it reached and how fast."""
        run, losses, held_out = self.run, self.run["loss"], self.run["validation_loss"]
        step = f"Step {run['step']:,}"
        if losses:
            step = f"{count(len(losses), 'seed')} at step {run['step']:,} of {run['steps']:,}"
        sentences = [f"{step}, after {run['tokens']:,} tokens each."]
        if losses:
            perplexity = rounded(math.exp(min(min(losses), 700)))
            validation = "." if held_out is None else f"; on text held out it is {span(held_out)}."
            sentences.append(
                f"The last logged loss on training text is {span(losses)} nats a token, a perplexity of {perplexity} "
                f"at best{validation}"
            )
        if run["peak_share"] is not None:
            sentences.append(
                f"Training ran at {100 * run['peak_share']:.0f}% of the matmul rate, the speed of bare matrix "
                "products of these shapes on this machine."
            )
        elif not run["finished"]:
            sentences.append("It was stopped before its end, and the same command resumes there.")
        else:
            sentences.append(f"Each seed opens as {run['out']}@seed=N wherever a checkpoint is asked for.")
        return sentences

    def tables(self) -> list[Listing]:
        """List a row for each seed: the first and the last loss, and the last on text held out; none without lines."""
        if not self.lines:
            return []
        first, last, held_out = self.lines[0], self.lines[-1], self.run["validation_loss"]
        rows = [
            [str(seed), first["loss"][at], last["loss"][at], None if held_out is None else held_out[at]]
            for at, seed in enumerate(self.run["seeds"])
        ]
        columns = ["seed", f"loss at step {first['step']}", f"at step {last['step']}", "held out"]
        return [Listing(f"{self.run['out']}, nats a token", columns, rows)]

    def figures(self) -> dict[str, Panel]:
        """Draw loss by step, smoothed over raw, of the first six seeds; the loss on text held out as open circles."""
        caption = "Loss on training text by step, smoothed over raw; circles: on text held out."
        return {"loss": Panel(self.draw(), caption + figures.left_out(len(self.run["seeds"])))}

    def draw(self, ax: Axes | None = None) -> Figure:
        """Draw that figure, into axes if given."""
        figure, ax = figures.new(ax=ax)
        steps = [line["step"] for line in self.lines]
        held_out = [line for line in self.lines if "validation_loss" in line]
        for at, (seed, color) in enumerate(zip(self.run["seeds"], figures.SERIES, strict=False)):
            figures.smoothed(ax, steps, [line["loss"][at] for line in self.lines], f"seed {seed}", color)
            if held_out:
                heights = [line["validation_loss"][at] for line in held_out]
                figures.points(ax, [line["step"] for line in held_out], heights, f"seed {seed}, held out", color)
        figures.label(ax, "step", "loss, nats a token")
        figures.legend(ax)
        return figure

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each logged step and seed."""
        rows: list[dict[str, object]] = []
        for line in self.lines:
            for index, seed in enumerate(self.run["seeds"]):
                rows.append({"step": line["step"], "seed": seed, "loss": line["loss"][index]})
                if "validation_loss" in line:
                    rows[-1]["validation_loss"] = line["validation_loss"][index]
        return rows


def training(folder: str | Path) -> Training:
    """Read what a run of :func:`bornbiased_jax.training.pretrain` logged so far.

    Args:
        folder: the run's.

    Raises:
        InputError: no run, one that is corrupted, or one that has logged nothing yet.
    """
    path = io.user_path(folder)
    description, lines = describe(path), read_metrics(path)
    if not lines:
        raise InputError(f"{path} has logged nothing yet: let it run first")
    run: LoggedRun = {**description, "path": str(folder), "out": str(folder), "peak_share": None}
    return Training(run, lines)
