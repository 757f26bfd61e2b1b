"""Figure 12: sink rate by sequence length for the baseline and the two positional calibrations."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bornbiased_jax.experiments._shared.training import SHORTER
from bornbiased_jax.experiments.base import SCALES, Experiment, Record
from bornbiased_jax.experiments.sinks import sink_training
from bornbiased_jax.experiments.sinks.settings import EPSILON, FIGURE_12, WIDE, settings_of
from bornbiased_jax.report import sink_figures
from bornbiased_jax.report.numbers import fixed, integer, percent, significant
from bornbiased_jax.report.tables import Cells, Claim, Panel, Table, tabulate

SMALL = (
    "Here the baseline grows no sink, so nothing is shown about mitigations: compare the largest score of any head "
    "with ε = 0.25, and see sink_interventions for sinks of a trained model."
)


def setting_note(record: Record) -> str:
    """Describe how these models were trained, and what uniform attention would score."""
    lengths = record["settings"]["lengths"]
    floors = ", ".join(f"{sum(1 / i for i in range(1, length + 1)) / length:.3f} at T = {length}" for length in lengths)
    note = f"Uniform attention would score {floors}."
    if record["settings"].get("bos_token"):
        note += (
            " Every sequence, in training and here, begins with an id of its own, a BOS token: without it no sink "
            "grows in this time (see sink_growth)."
        )
    # No head of any seed of the baseline is a sink on average.
    if all(seed["largest_score"] <= EPSILON for seed in record["result"]["cures"]["baseline"]["by_seed"]):
        note += " " + SMALL
    return note


def tables(record: Record) -> Sequence[Table]:
    """Show the sink rate at every length, and the largest score."""
    result, lengths = record["result"]["cures"], record["settings"]["lengths"]
    rows = []
    for name, run in result.items():
        measured: Cells = {
            f"T = {length}": (
                percent(1),
                sink_training.over_seeds(run, lambda seed, at=str(length): seed["sink_rate"][at]),
            )
            for length in lengths
        }
        measured["largest score"] = significant(2), sink_training.over_seeds(run, lambda seed: seed["largest_score"])
        rows.append(([name, integer(run["steps"])], measured))
    note = (
        f"Fraction of heads whose attention to the first position, α₁, exceeds {EPSILON} in a sequence, mean over "
        f"sequences; ± across seeds. Largest score: the mean α₁ of the strongest head at T = {max(lengths)}. The "
        "paper draws Figure 12 and prints no numbers: the baseline is high at every length, amplification lower, "
        "attenuation near zero. " + setting_note(record)
    )
    return [tabulate("Sink rate by sequence length", ["attention", "steps"], rows, note)]


def panels(record: Record) -> Sequence[Panel]:
    """Draw the figure."""
    result = record["result"]["cures"]
    rates = {
        name: {
            length: [seed["sink_rate"][str(length)] for seed in run["by_seed"]]
            for length in record["settings"]["lengths"]
        }
        for name, run in result.items()
    }
    caption = f"Sink rate after {next(iter(result.values()))['steps']:,} steps; bands span the seeds. "
    return [Panel(sink_figures.sink_rate_by_length(rates), caption + setting_note(record))]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the rate at the greatest length, which is that of training."""
    length = max(record["settings"]["lengths"])
    page_claims = []
    for name, run in record["result"]["cures"].items():
        rate = float(np.mean([seed["sink_rate"][str(length)] for seed in run["by_seed"]]))
        words = f"Sink rate at T = {length} after training, {name}, {run['steps']:,} steps, {len(run['by_seed'])} seeds"
        page_claims.append(Claim(words, rate, format=fixed(3)))
    return page_claims


EXPERIMENT = Experiment(
    name="figure12",
    title="Positional calibration against attention sinks",
    paper="Figure 12",
    description=(
        "The aggregated value of position i is multiplied by √i (amplification) or √(i/T) (attenuation) during "
        "training. All models start from the same seeds and see the same data in the same order."
    ),
    settings={
        "smoke": settings_of("smoke", FIGURE_12, bos_token=True),
        "laptop": settings_of("laptop", FIGURE_12),
        "paper": settings_of("paper", FIGURE_12),
    },
    cost={"laptop": "2 minutes on two cores", "paper": "weeks on one GPU (52B tokens a model)"},
    precision="float32 highest; bfloat16 training at paper scale",
    run=sink_training.run_mitigations,
    takes_data=SCALES,
    tables=tables,
    figures=panels,
    claims=claims,
)

PRINTED = {
    "baseline": {"WikiText-2": 21.33, "C4": 30.36},
    "positional amplification": {"WikiText-2": 21.95, "C4": 28.70},
    "positional attenuation": {"WikiText-2": 21.02, "C4": 30.48},
}
"""Perplexities of Table 7."""


def perplexities(record: Record) -> Sequence[Table]:
    """Show the perplexity on every text, next to what is printed where the run is the paper's."""
    is_paper = record["scale"] == "paper" and record["data"] is None
    evaluation = record["settings"]["evaluation"]
    rows = []
    for name, run in record["result"]["cures"].items():
        texts = list(run["by_seed"][0]["perplexity"])
        measured = {
            text: (fixed(2), sink_training.over_seeds(run, lambda seed, text=text: seed["perplexity"][text]))
            for text in texts
        }
        paper = {text: PRINTED[name][text] for text in texts} if is_paper else {}
        rows.append(([name, integer(run["tokens"])], measured, paper))
    note = (
        f"The models of Figure 12 on {evaluation['num_sequences']} sequences of {evaluation['context']} tokens, each "
        "scored on its own; ± across seeds. Perplexities of different tokenizers do not compare."
    )
    title, heads = "Perplexity with and without positional calibration", ["attention", "training tokens"]
    return [tabulate(title, heads, rows, note)]


EXPERIMENTS = {
    "figure12": EXPERIMENT,
    "table7": Experiment(
        name="table7",
        title="What positional calibration costs in perplexity",
        paper="Table 7",
        description="The models of Figure 12, scored on held-out text.",
        settings=EXPERIMENT.settings,
        cost=dict.fromkeys(EXPERIMENT.settings, "shared with figure12"),
        precision=EXPERIMENT.precision,
        run=sink_training.run_mitigations,
        takes_data=SCALES,
        tables=perplexities,
    ),
}
for _suffix, _tokens, _changes, _cost in (
    ("_256", "17 million", {}, "not measured: hours on two cores for the models that both share"),
    ("_256_2m", "2 million", SHORTER, "three quarters of an hour on two cores for the models that both share"),
):
    _laptop = {**WIDE, "schedule": {**WIDE["schedule"], **_changes}, "cures": list(FIGURE_12)}
    for _name in ("figure12", "table7"):
        EXPERIMENTS[f"{_name}{_suffix}"] = dataclasses.replace(
            EXPERIMENTS[_name],
            name=f"{_name}{_suffix}",
            title=f"{EXPERIMENTS[_name].title}, 4 × 256, {_tokens} tokens, no BOS token",
            settings={"smoke": {**EXPERIMENT.settings["smoke"], "bos_token": False}, "laptop": _laptop},
            cost={"laptop": _cost},
        )
