"""How the seeds of a run learned, by what it logged."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bornbiased_jax.errors import InputError
from bornbiased_jax.results import sentences
from bornbiased_jax.results.listing import Listing, fragment

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclasses.dataclass(frozen=True, repr=False)
class Training:
    """A run and the lines that it logged.

    Attributes:
        run: one entry of what ``bornbiased runs --json`` writes.
        lines: those of ``metrics.jsonl``, one a logged step; losses in nats a token, in the order of the seeds.
    """

    run: Mapping[str, Any]
    lines: Sequence[Mapping[str, Any]]

    def sentences(self) -> list[str]:
        """How far the run came and what it reached, as `bornbiased pretrain` ends, but for its speed."""
        return sentences.training({**self.run, "out": self.run["path"], "peak_share": None})

    def listing(self) -> Listing:
        """A row for each seed: the first and the last loss, and the last on text held out."""
        first, last, held_out = self.lines[0], self.lines[-1], self.run["validation_loss"]
        rows = [
            [str(seed), first["loss"][at], last["loss"][at], "–" if held_out is None else held_out[at]]
            for at, seed in enumerate(self.run["seeds"])
        ]
        columns = ["seed", f"loss at step {first['step']}", f"at step {last['step']}", "held out"]
        return Listing(f"{self.run['path']}, nats a token", columns, rows)

    def plot(self) -> Figure:
        """Loss by step, a curve for each of the first six seeds; the loss on text held out as open circles."""
        from bornbiased_jax.report import figures

        figure, ax = figures.new()
        steps = [line["step"] for line in self.lines]
        held_out = [line for line in self.lines if "validation_loss" in line]
        for at, (seed, colour) in enumerate(zip(self.run["seeds"], figures.SERIES, strict=False)):
            figures.line(ax, steps, [line["loss"][at] for line in self.lines], name=f"seed {seed}", colour=colour)
            if held_out:
                heights = [line["validation_loss"][at] for line in held_out]
                figures.points(ax, [line["step"] for line in held_out], heights, f"seed {seed}, held out", colour)
        figures.label(ax, "step", "loss, nats a token")
        figures.legend(ax)
        return figure

    def __repr__(self) -> str:
        return " ".join(self.sentences())

    def _repr_html_(self) -> str:
        return fragment(self.sentences(), [self.listing()])


def training(folder: str | Path) -> Training:
    """What a run of :func:`bornbiased_jax.pretrain.pretrain` logged so far.

    Args:
        folder: the run's.

    Raises:
        InputError: no run, one that is damaged, or one that has logged nothing yet.
    """
    from bornbiased_jax import files
    from bornbiased_jax.pretrain import read_metrics
    from bornbiased_jax.pretrain.runs import describe

    path = files.user_path(folder)
    run, lines = describe(path), read_metrics(path)
    if not lines:
        raise InputError(f"{path} has logged nothing yet: let it run first")
    return Training({**run, "path": str(folder)}, lines)
