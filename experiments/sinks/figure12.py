"""Figure 12: sink rate by sequence length for the baseline and the two positional calibrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from bornbiased_jax.report import figures, sink_figures
from bornbiased_jax.report.numbers import fixed, integer, percent, significant
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table
from experiments.base import Experiment, Record
from experiments.sinks import sink_training
from experiments.sinks.mitigations import FIGURE_12

SMALL = (
    "At this scale the baseline grows no sink, so nothing is shown about mitigations: compare the largest score "
    "of any head with ε = 0.25. Sinks need the GPU scale; see sink_interventions for those of a trained "
    "model."
)


def grew_sinks(record: Record) -> bool:
    """Whether any head of any seed of the baseline is a sink on average."""
    base = record["result"]["cures"]["baseline"]
    return any(seed["largest_score"] > sink_training.EPSILON for seed in base["by_seed"])


def setting_note(record: Record) -> str:
    """What a reader must know about how these models were trained, and what uniform attention would score."""
    lengths = record["settings"]["lengths"]
    floors = ", ".join(f"{sum(1 / i for i in range(1, length + 1)) / length:.3f} at T = {length}" for length in lengths)
    note = f"Uniform attention would score {floors}."
    if record["settings"].get("bos_token"):
        note += (
            " Every sequence, in training and here, begins with an id of its own, as with a "
            "beginning-of-sequence token: without it no sink grows in this time (see sink_growth)."
        )
    if not grew_sinks(record):
        note += " " + SMALL
    return note


def tables(record: Record) -> Sequence[Table]:
    """Sink rate at every length, and the largest score."""
    result, lengths = record["result"]["cures"], record["settings"]["lengths"]
    rows = []
    for name, run in result.items():
        measured = {
            f"T = {length}": sink_training.over_seeds(run, lambda seed, at=str(length): seed["sink_rate"][at])
            for length in lengths
        }
        measured["largest score"] = sink_training.over_seeds(run, lambda seed: seed["largest_score"])
        rows.append(Row([name, integer(run["steps"])], measured))
    quantities = [Quantity(f"T = {length}", percent(1)) for length in lengths]
    quantities.append(Quantity("largest score", significant(2)))
    note = (
        f"Fraction of (block, head) pairs with α₁ > {sink_training.EPSILON}, averaged over sequences; ± across seeds. "
        f"Largest score: the mean α₁ of the strongest head at T = {max(lengths)}. "
        "The paper draws Figure 12 and prints no numbers: the baseline high at every length, amplification "
        "lower, attenuation near zero. " + setting_note(record)
    )
    return [Table("Sink rate by sequence length", ["attention", "steps"], quantities, rows, note=note)]


def panels(record: Record) -> Sequence[Panel]:
    """The figure, and how the strongest head grew where that was watched."""
    result = record["result"]["cures"]
    rates = {
        name: {
            length: [seed["sink_rate"][str(length)] for seed in run["by_seed"]]
            for length in record["settings"]["lengths"]
        }
        for name, run in result.items()
    }
    caption = f"Sink rate after {next(iter(result.values()))['steps']:,} steps; bands span the seeds. "
    drawn = [Panel(sink_figures.sink_rate_by_length(rates), caption + setting_note(record))]
    if all("curve_largest_score" in run for run in result.values()):
        drawn.append(
            Panel(
                growth(result),
                f"Score of the first position in the strongest head while training, T = "
                f"{max(record['settings']['lengths'])}; bands span the seeds.",
            )
        )
    return drawn


def growth(result: Mapping[str, Mapping[str, Any]]) -> Figure:
    """The largest score of any head by step, one line a model."""
    figure, ax = figures.new()
    for index, (name, run) in enumerate(result.items()):
        score_ES = np.asarray(run["curve_largest_score"])
        figures.line(
            ax,
            run["curve_steps"],
            score_ES.mean(axis=1),
            score_ES.min(axis=1),
            score_ES.max(axis=1),
            name=name,
            colour=figures.SERIES[index % len(figures.SERIES)],
            markers=True,
        )
    figures.reference(ax, sink_training.EPSILON, "ε", colour=figures.MUTED)
    figures.label(ax, "step", "largest score of the first position")
    ax.legend(frameon=False)
    return figure


def claims(record: Record) -> Sequence[Claim]:
    """The mean over lengths."""
    made = []
    for name, run in record["result"]["cures"].items():
        rate = float(np.mean([list(seed["sink_rate"].values()) for seed in run["by_seed"]]))
        words = f"Sink rate after training, {name}, {run['steps']:,} steps"
        made.append(Claim(words, rate, format=fixed(3)))
    return made


EXPERIMENT = Experiment(
    name="figure12",
    title="Positional calibration against attention sinks",
    paper="Figure 12",
    description=(
        "The aggregated value of position i is multiplied by √i (amplification) or √(i/T) (attenuation) "
        "during training, so that no position stands out at birth. All models start from the same seeds "
        "and see the same data in the same order."
    ),
    settings={
        "smoke": sink_training.smoke(FIGURE_12, bos_token=True),
        "laptop": sink_training.laptop(FIGURE_12),
        "paper": sink_training.paper(FIGURE_12),
    },
    cost={"smoke": "seconds", "laptop": "2 minutes on two cores", "paper": "weeks on one GPU (52B tokens a model)"},
    precision="float32 highest; bfloat16 training at paper scale",
    run=sink_training.run_mitigations,
    tables=tables,
    figures=panels,
    claims=claims,
)
