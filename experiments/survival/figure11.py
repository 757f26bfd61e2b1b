"""Figure 11: correlation of the birth's top coordinates with those of every checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, integer
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table
from experiments.base import Experiment, Record
from experiments.survival import persistence_settings, persistence_tables, persistence_tracks

INPUTS = {"tokens": "random tokens", "gaussian": "shared vectors"}


def panels(record: Record) -> Sequence[Panel]:
    """Mean ± standard deviation over the top coordinates, on both kinds of inputs; and the training itself."""
    result = record["result"]
    steps = np.asarray(result["steps"])
    figure, axes = figures.new(columns=3, width=9.6, height=3.2)
    for ax, (kind, words) in zip(axes, INPUTS.items(), strict=False):
        for name, seed, colour in zip(
            ("own", "other"), result["seeds"], (figures.MEASURED, figures.BASELINE), strict=True
        ):
            one = result["taus"][kind][name]
            mean, std = np.asarray(one["mean"]), np.asarray(one["std"])
            figures.line(
                ax, steps, mean, mean - std, mean + std, name=f"checkpoints of seed {seed}", colour=colour, markers=True
            )
        _log_steps(ax, steps)
        figures.label(ax, "step", "Kendall's τ with the birth", words)
        # Room for the legend above the lines, which begin at 1.
        ax.set_ylim(top=1.35)
        ax.set_yticks(np.linspace(0.0, 1.0, 6))
        figures.legend(ax)
    draw_training(axes[2], record)
    caption = (
        f"Correlation of the {result['top']} coordinates with the largest mean output at the birth of seed "
        f"{result['seeds'][0]}, mean and standard deviation over coordinates. Right: held-out loss and movement of the "
        f"weights at the same checkpoints. {persistence_tables.trained_on(record)}"
    )
    return [Panel(figure, caption)]


def draw_training(ax: Any, record: Record) -> None:
    """Held-out loss and ‖W−W₀‖/‖W₀‖ by step, with the unigram entropy and a bigram model's loss."""
    result = record["result"]
    steps = np.asarray(result["steps"])
    for quantity, name, colour in (
        ("loss", "held-out loss (nats)", figures.SERIES[0]),
        ("moved", "‖W−W₀‖/‖W₀‖", figures.SERIES[2]),
    ):
        values_SC = np.array([[row[quantity] for row in by_seed] for by_seed in result["progress"]])
        figures.line(
            ax, steps, values_SC.mean(axis=0), values_SC.min(axis=0), values_SC.max(axis=0), name=name, colour=colour
        )
    figures.reference(ax, result["facts"]["unigram_entropy"], "unigram entropy", colour=figures.MUTED)
    figures.reference(ax, result["facts"]["bigram_loss"], "bigram loss", colour=figures.BASELINE)
    _log_steps(ax, steps)
    figures.label(ax, "step", "", "training")
    ax.set_ylim(top=1.75 * ax.get_ylim()[1])
    figures.legend(ax)


def _log_steps(ax: Any, steps: np.ndarray) -> None:
    # Linear up to the first step, so that the birth at 0 has a place.
    ax.set_xscale("symlog", base=2, linthresh=1)
    ax.set_xticks([step for step in steps if step == 0 or step & (step - 1) == 0][::3])
    ax.xaxis.set_major_formatter(lambda value, position: f"{value:.0f}")
    ax.set_xlim(-0.3 if steps[0] == 0 else 0.8 * steps[0], 1.3 * steps[-1])


def tables(record: Record) -> Sequence[Table]:
    """The same numbers."""
    result = record["result"]
    rows = []
    for index, step in enumerate(result["steps"]):
        own = result["progress"][0][index]
        measured: dict[str, Any] = {
            persistence_tables.MOVED: own["moved"],
            persistence_tables.LOSS: own["loss"],
            persistence_tables.ENTROPY: own["unigram_entropy"],
        }
        for kind, words in INPUTS.items():
            for name, who in (("own", "same seed"), ("other", "another seed")):
                one = result["taus"][kind][name]
                measured[f"{who}, {words}"] = (one["mean"][index], one["std"][index])
        rows.append(Row([integer(step)], measured))
    quantities = [
        Quantity(persistence_tables.MOVED, fixed(2)),
        Quantity(persistence_tables.LOSS, fixed(3)),
        Quantity(persistence_tables.ENTROPY, fixed(3)),
    ]
    quantities += [
        Quantity(f"{who}, {words}", fixed(3)) for words in INPUTS.values() for who in ("same seed", "another seed")
    ]
    note = (
        f"Kendall's τ, mean ± standard deviation over the {result['top']} top coordinates of the birth of seed "
        f"{result['seeds'][0]}; another seed is {result['seeds'][1]}. The paper draws this and prints no numbers. "
        + persistence_tables.trained_on(record)
    )
    return [Table("Correlation with the birth", ["step"], quantities, rows, note=note)]


def claims(record: Record) -> Sequence[Claim]:
    """The correlation at the end."""
    result = record["result"]
    return [
        Claim(
            f"τ of the top {result['top']} coordinates with the birth after {result['steps'][-1]:,} steps, {words}, "
            f"{who}",
            (result["taus"][kind][name]["mean"][-1], result["taus"][kind][name]["std"][-1]),
            format=fixed(3),
        )
        for kind, words in INPUTS.items()
        for name, who in (("own", "same seed"), ("other", "another seed"))
    ]


EXPERIMENT = Experiment(
    name="figure11",
    title="The bias of birth through training",
    paper="Figure 11, Finding 7",
    description=(
        "The outputs at the coordinates that a newborn model favours are held against those of every checkpoint of its "
        "training, and against those of another seed's checkpoints as an uncorrelated baseline.\n\n"
        "With random tokens the baseline is uncorrelated indeed. With the published inputs, vectors that both models "
        "share, it is not: the last vector reaches both outputs in the same coordinates."
    ),
    settings=persistence_settings.settings("llama"),
    cost=persistence_settings.shared_cost("llama"),
    precision=persistence_settings.PRECISION,
    run=persistence_tracks.correlations,
    tables=tables,
    figures=panels,
    claims=claims,
)
