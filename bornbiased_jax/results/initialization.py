"""Results about an initialization as a whole: the trainability diagram, and the coordinate check over widths."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax.config import FieldValue, ModelConfig
from bornbiased_jax.report import figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Result
from bornbiased_jax.trainability import Diagram, Plane
from bornbiased_jax.training.scaling import Scaling, ScalingRow

# Statistics of a plane, each with the label of its heat map.
_STATISTICS = (
    ("contraction", "cosine between sequences"),
    ("gradient_ratio", "log₁₀ of first over last block's gradient"),
    ("entropy", "entropy of attention over its maximum"),
)
_CAPTION = (
    "{plane} At initialization, from theory: nothing is built or sampled. Empty cells have no theory: gradients where "
    "attention or the predictions are far from uniform, or a residual stream that vanishes or explodes."
)


@dataclasses.dataclass(frozen=True, repr=False)
class Trainability(Result):
    """A trainability diagram.

    Attributes:
        name: of the model, for a reader.
        diagram: what :func:`bornbiased_jax.trainability.diagram` returns.
        model: the configuration, all fields.
    """

    question = "Where can this model be trained?"
    name: str
    diagram: Diagram
    model: Mapping[str, FieldValue]

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        return {**self.diagram, "model": self.model}

    def title(self) -> str:
        """Return the heading of its page."""
        return f"Trainability of {self.name} at initialization, T = {self.diagram['seq_len']}"

    def summary(self) -> list[str]:
        """Say what the planes are over and how they are read."""
        planes = " and ".join(f"({plane['x']}, {plane['y']})" for plane in self._planes())
        return [
            f"Contraction, gradient ratio and attention entropy over {planes}; nothing was sampled.",
            "Signal and gradients pass where the cosine is far from 1 and the ratio of gradients near 1; attention "
            "chooses where its entropy is below its maximum.",
        ]

    def figures(self) -> dict[str, Panel]:
        """Draw the three statistics of each plane side by side."""
        depth, attention = self._planes()
        return {
            "depth": _panel(depth, "Scale of all weights of the blocks, and depth."),
            "attention": _panel(attention, "Standard deviation of attention logits, and residual branches' strength."),
        }

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each cell of a plane."""
        return [
            {plane["x"]: x, plane["y"]: y, **{name: plane[name][j][i] for name, _ in _STATISTICS}}  # type: ignore[literal-required]
            for plane in self._planes()
            for j, y in enumerate(plane["y_values"])
            for i, x in enumerate(plane["x_values"])
        ]

    def _planes(self) -> tuple[Plane, Plane]:
        return self.diagram["depth"], self.diagram["attention"]


@dataclasses.dataclass(frozen=True, repr=False)
class WidthCheck(Result):
    """The coordinate check: activations against width at the first steps of training.

    Attributes:
        scaling: what :func:`bornbiased_jax.training.scaling.scaling` returns.
        model: the configuration at the base width.
    """

    question = "Do activations keep their size when the model gets wider?"
    axes = ("step", "activation")
    scaling: Scaling
    model: ModelConfig

    def to_json(self) -> dict[str, object]:
        """Return what the command writes with --json."""
        return {**self.scaling.to_json(), "model": self.model.to_dict()}

    def summary(self) -> list[str]:
        """Say whether activations keep their size over widths as under muP, or which first do not."""
        scaling = self.scaling
        widths = f"{min(scaling.widths)} to {max(scaling.widths)}"
        first: dict[str, ScalingRow] = {}
        for row in scaling.rows:
            if not row.is_flat:
                first.setdefault(row.activation, row)
        if not first:
            intervals = [(row.low, row.high) for row in scaling.rows]
            low, high = max(intervals, key=lambda ends: ends[1] - ends[0], default=(0.0, 0.0))
            return [
                f"muP holds: from width {widths} nothing shows that an activation grows or vanishes with width, at any "
                f"step and over {scaling.num_seeds} seeds; the widest 95% interval of a slope is {low:.2f} to "
                f"{high:.2f}.",
                *self._rates(),
            ]
        parts = [
            f"{name} {'grows' if row.slope > 0 else 'vanishes'} from step {row.step} (slope {row.slope:.2f}, "
            f"95% interval {row.low:.2f} to {row.high:.2f})"
            for name, row in first.items()
        ]
        return [f"muP does not hold: from width {widths} {'; '.join(parts)}.", *self._rates()]

    def _rates(self) -> list[str]:
        """Say which learning rates the widths had, and what the scheme of muP lacks here to be muP."""
        base, model = self.scaling.base_width, self.model
        if base is None:
            return ["Every width was trained at one learning rate, as this scheme is published."]
        parts = [f"Learning rates of hidden matrices and of the head fell with the width, from width {base} on."]
        lacks = [] if model.attention_scale else ["attention_scale=1/head_dim, as a number"]
        lacks += ["tie_embeddings=false"] if model.tie_embeddings else []
        if lacks:
            parts.append(f"init=mup alone is not muP: also set {' and '.join(lacks)}.")
        return parts

    def tables(self) -> list[Listing]:
        """List slopes and standard deviations before training, after one update and at the end."""
        last = max((row.step for row in self.scaling.rows), default=0)
        columns = ["activation", "step", "slope", "95% interval"]
        columns += [f"std at {width}" for width in self.scaling.widths]
        rows = [
            [row.activation, row.step, row.slope, f"{row.low:.3f} to {row.high:.3f}", *row.std_by_width]
            for row in self.scaling.rows
            if row.step in (0, 1, last)
        ]
        return [Listing("Standard deviation against width, slopes of logarithms", columns, rows)]

    def figures(self) -> dict[str, Panel]:
        """Draw the slope of each activation by step, with its interval."""
        caption = "Slopes near 0: the activation keeps its size over widths. Bands are 95% intervals over seeds."
        return {"scaling": Panel(self.draw(), caption)}

    def draw(self, ax: Axes | None = None) -> Figure:
        """Draw that figure, into axes if given."""
        figure, ax = figures.new(ax=ax)
        names = dict.fromkeys(row.activation for row in self.scaling.rows)
        for name, color in zip(names, figures.SERIES, strict=False):
            rows = [row for row in self.scaling.rows if row.activation == name]
            steps, slopes = [row.step for row in rows], [row.slope for row in rows]
            figures.line(ax, steps, slopes, ([row.low for row in rows], [row.high for row in rows]), name, color)
        figures.count_axis(ax)
        figures.label(ax, "update", "slope of log std against log width")
        # Slopes lie anywhere: no place inside is free for certain.
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return figure

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each activation and step."""
        return [row.to_json() for row in self.scaling.rows]


def _panel(plane: Plane, sentence: str) -> Panel:
    """Draw the three statistics of a plane side by side."""
    figure, axes = figures.new(columns=len(_STATISTICS), width=14.0, height=4.0)
    for ax, (name, label) in zip(axes, _STATISTICS, strict=True):
        matrix = np.array(plane[name], np.float64)  # type: ignore[literal-required]
        is_ratio = name == "gradient_ratio"
        if is_ratio:
            matrix = np.log10(np.where(matrix > 0, matrix, np.nan))
        x_labels, y_labels = ([f"{value:g}" for value in values] for values in (plane["x_values"], plane["y_values"]))
        if np.any(np.isfinite(matrix)):
            scale = None if is_ratio else figures.Scale(0.0, 1.0)
            figures.heatmap(ax, matrix, x_labels, y_labels, name=label, diverging=is_ratio, digits=2, scale=scale)
        figures.label(ax, plane["x"], plane["y"], label)
    layers = "" if plane["num_layers"] is None else f" {plane['num_layers']} blocks."
    return Panel(figure, _CAPTION.format(plane=sentence + layers))
