"""A run's curves as one figure."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np

from bornbiased_jax import io
from bornbiased_jax.checkpoints.formats.run import read_run
from bornbiased_jax.errors import InputError
from bornbiased_jax.training.metrics import read_metrics

FIGURE_FILE = "curves.png"


def plot_run(folder: Path | str, out: Path | str | None = None) -> Path:
    """Draw loss (training and held-out, by seed), learning rate, gradient norm and speed against the step.

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

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Four panels, which share the step as their horizontal axis.
    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    loss, rate, norm, speed = figure.subplots(2, 2).ravel()
    # Logged numbers, one row for each seed.
    steps = np.asarray([line["step"] for line in lines])
    loss_SN = np.asarray([line["loss"] for line in lines]).T
    norm_SN = np.asarray([line["grad_norm"] for line in lines]).T
    validated = [line for line in lines if "validation_loss" in line]
    for index, seed in enumerate(config["seeds"]):
        color = f"C{index % 10}"
        loss.plot(steps, loss_SN[index], color=color, linewidth=0.8, label=f"seed {seed}")
        if validated:
            loss.plot(
                [line["step"] for line in validated], [line["validation_loss"][index] for line in validated],
                "o--", color=color, markersize=3, label=f"seed {seed}, held out",
            )  # fmt: skip
        norm.plot(steps, norm_SN[index], color=color, linewidth=0.8)
    # Labels, and the curves that all seeds share.
    loss.set_ylabel("loss, nats per token")
    loss.legend(fontsize=7)
    rate.plot(steps, [line["lr"] for line in lines], color="black")
    rate.set_ylabel("learning rate")
    norm.set_ylabel("gradient norm")
    norm.set_yscale("log")
    speed.plot(steps, [line["tokens_per_second"] for line in lines], color="black", linewidth=0.8)
    speed.set_ylabel("tokens per second, all seeds")
    for axes in (loss, rate, norm, speed):
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    # Render into memory, so that a failure leaves no partial file.
    kind = path.suffix.lstrip(".") or "png"
    stream = BytesIO()
    try:
        figure.savefig(stream, format=kind, dpi=150)
    except ValueError as error:
        raise InputError(f"cannot draw {path}: {error}") from error
    return io.write_bytes(path, stream.getvalue())
