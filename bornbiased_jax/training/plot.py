"""A run's curves as one figure."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

from bornbiased_jax import io
from bornbiased_jax.checkpoints.formats.run import read_run
from bornbiased_jax.errors import InputError
from bornbiased_jax.report import figures
from bornbiased_jax.training.metrics import read_metrics

FIGURE_FILE = "curves.png"


def plot_run(folder: Path | str, out: Path | str | None = None) -> Path:
    """Draw loss (training, smoothed over raw, and held-out, by seed), learning rate, gradient norm and speed by step.

    Args:
        folder: a run's folder.
        out: the image; its suffix chooses the format. None: ``curves.png`` in the run's folder.

    Returns:
        Where the figure is.

    Raises:
        InputError: not a run, nothing logged yet, or an image that cannot be written.
    """
    folder = io.user_path(folder)
    config = read_run(folder)["config"]
    lines = read_metrics(folder)
    if not lines:
        raise InputError(f"{folder} has logged nothing yet: let it run first")
    path = io.check_writable(folder / FIGURE_FILE if out is None else Path(out))

    # Logged numbers, one row for each seed.
    steps = [line["step"] for line in lines]
    loss_SN = np.asarray([line["loss"] for line in lines]).T
    norm_SN = np.asarray([line["grad_norm"] for line in lines]).T
    validated = [line for line in lines if "validation_loss" in line]
    # Four panels by step: losses and gradient norms of each seed, and what all seeds share.
    figure, axes = figures.new(columns=2, rows=2, width=9.0, height=6.0)
    loss, rate, norm, speed = axes.ravel()
    for index, (seed, color) in enumerate(zip(config["seeds"], itertools.cycle(figures.SERIES), strict=False)):
        figures.smoothed(loss, steps, loss_SN[index], f"seed {seed}", color)
        if validated:
            heights = [line["validation_loss"][index] for line in validated]
            figures.points(loss, [line["step"] for line in validated], heights, f"seed {seed}, held out", color)
        figures.smoothed(norm, steps, norm_SN[index], color=color)
    figures.line(rate, steps, [line["lr"] for line in lines], color=figures.INK)
    figures.smoothed(speed, steps, [line["tokens_per_second"] for line in lines], color=figures.INK)
    norm.set_yscale("log")
    names = ("loss, nats per token", "learning rate", "gradient norm", "tokens per second, all seeds")
    for ax, name in zip((loss, rate, norm, speed), names, strict=True):
        figures.label(ax, "step", name)
    figures.legend(loss)
    # Render into memory, so that a failure leaves no partial file.
    return io.write_bytes(path, figures.drawn(figure, path, dpi=150))
