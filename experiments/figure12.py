"""Figure 12: sink rate by sequence length for the baseline and the two positional calibrations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bornbiased_jax.report import sink_figures
from bornbiased_jax.report.numbers import fixed, percent, significant
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table
from experiments import sink_training
from experiments.base import Experiment, Record
from experiments.cures import FIGURE_12

SMALL = (
    "At this scale the baseline grows no sink, so nothing is shown about cures: compare the largest score "
    "of any head with ε = 0.25. Sinks need the GPU scale; see sink-interventions for those of a trained "
    "model."
)


def grew_sinks(record: Record) -> bool:
    """Whether any head of any seed of the baseline is a sink on average."""
    base = record["result"]["cures"]["baseline"]
    return any(seed["largest_score"] > sink_training.EPSILON for seed in base["by_seed"])


def tables(record: Record) -> Sequence[Table]:
    """Sink rate at every length, and the largest score."""
    result, lengths = record["result"]["cures"], record["settings"]["lengths"]
    rows = []
    for name, one in result.items():
        measured = {
            f"T = {length}": sink_training.over_seeds(one, lambda seed, at=str(length): seed["sink_rate"][at])
            for length in lengths
        }
        measured["largest score"] = sink_training.over_seeds(one, lambda seed: seed["largest_score"])
        rows.append(Row([name, one["steps"]], measured))
    quantities = [Quantity(f"T = {length}", percent(1)) for length in lengths]
    quantities.append(Quantity("largest score", significant(2)))
    note = (
        f"Share of (layer, head) with α₁ > {sink_training.EPSILON}, averaged over sequences; ± over seeds. "
        "The paper draws Figure 12 and prints no numbers: the baseline high at every length, amplification "
        "lower, attenuation near zero."
    )
    if not grew_sinks(record):
        note += " " + SMALL
    return [Table("Sink rate by sequence length", ["attention", "steps"], quantities, rows, note=note)]


def panels(record: Record) -> Sequence[Panel]:
    """The figure, and the training curves behind it."""
    result = record["result"]["cures"]
    rates = {
        name: {
            length: [seed["sink_rate"][str(length)] for seed in one["by_seed"]]
            for length in record["settings"]["lengths"]
        }
        for name, one in result.items()
    }
    caption = f"Sink rate after {next(iter(result.values()))['steps']:,} steps; bands span the seeds."
    if not grew_sinks(record):
        caption += " " + SMALL
    return [Panel(sink_figures.sink_rate_by_length(rates), caption)]


def claims(record: Record) -> Sequence[Claim]:
    """The mean over lengths."""
    made = []
    for name, one in record["result"]["cures"].items():
        rate = float(np.mean([list(seed["sink_rate"].values()) for seed in one["by_seed"]]))
        words = f"Sink rate after training, {name}, {one['steps']:,} steps"
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
        "smoke": sink_training.smoke(FIGURE_12, marked=True),
        "laptop": sink_training.laptop(FIGURE_12),
        "paper": sink_training.paper(FIGURE_12),
    },
    cost={"smoke": "seconds", "laptop": "minutes on two cores", "paper": "weeks on one GPU (52B tokens a model)"},
    precision="float32 highest; bfloat16 training at paper scale",
    run=sink_training.run_cures,
    tables=tables,
    figures=panels,
    claims=claims,
)
