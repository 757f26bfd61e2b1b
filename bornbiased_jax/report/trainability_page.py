"""A trainability diagram as one page: contraction, gradient ratio and attention entropy over two planes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

import numpy as np

import bornbiased_jax
from bornbiased_jax.report import figures
from bornbiased_jax.report.page import Section, render
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.trainability import Diagram, Plane

PARTS = (
    ("contraction", "cosine between sequences"),
    ("gradient_ratio", "log₁₀ of first over last block's gradient"),
    ("entropy", "entropy of attention over its maximum"),
)
CAPTION = (
    "{plane} At initialization, from theory: nothing is built or sampled. Empty cells have no theory: gradients where "
    "attention is far from uniform, or a residual stream that vanishes or explodes."
)


def draw_diagram(report: Diagram, model: str, *, command: Sequence[str] = ()) -> str:
    """Render the page of one diagram, as a text of HTML without outside references.

    Args:
        report: what :func:`bornbiased_jax.trainability.diagram` returns.
        model: the name of the configuration.
        command: the words of the command line that made it.
    """
    section = Section(
        name="trainability",
        title="Trainability at initialization",
        paper="",
        description=f"Sequences of {report['seq_len']} random tokens. Signal and gradients pass where the cosine is "
        "far from 1 and the ratio of gradients near 1; attention chooses where its entropy is below its maximum.",
        command=shlex.join(command),
        scale="",
        panels=[
            _panel(report["depth"], "Scale of all weights of the blocks, and depth."),
            _panel(report["attention"], "Standard deviation of logits, and strength of the residual branches."),
        ],
        record={"settings": {"model": model}, "provenance": {"version": bornbiased_jax.__version__}, **report},
    )
    return render("Where can this model be trained?", model, [section])


def _panel(plane: Plane, sentence: str) -> Panel:
    """Draw the three statistics of a plane side by side."""
    figure, axes = figures.new(columns=len(PARTS), width=14.0, height=4.0)
    values = {"contraction": plane["contraction"], "entropy": plane["entropy"]}
    for ax, (name, label) in zip(axes, PARTS, strict=True):
        matrix = np.array(values.get(name, plane["gradient_ratio"]), dtype=float)
        is_ratio = name == "gradient_ratio"
        if is_ratio:
            matrix = np.log10(np.where(matrix > 0, matrix, np.nan))
        x_labels, y_labels = ([f"{value:g}" for value in plane[axis]] for axis in ("x_values", "y_values"))
        if np.any(np.isfinite(matrix)):
            limits = None if is_ratio else (0.0, 1.0)
            figures.heatmap(ax, matrix, x_labels, y_labels, name=label, diverging=is_ratio, digits=2, limits=limits)
        figures.label(ax, plane["x"], plane["y"], label)
    layers = "" if plane["num_layers"] is None else f" {plane['num_layers']} blocks."
    return Panel(figure, CAPTION.format(plane=sentence + layers))
