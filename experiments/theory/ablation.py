"""What each correction of the mean-field theory is worth: the prediction with it and without it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from bornbiased_jax.config import preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.theory import settings
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.report.numbers import percent, significant
from bornbiased_jax.report.tables import Table, tabulate
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import SECOND_ORDER, contraction
from bornbiased_jax.theory.stack import Stack

ROWS = {
    "limit": "infinite width, uniform attention, no ε in norms",
    "all": "with everything",
    "attention": "of it: attention that is not uniform",
    "epsilon": "of it: ε in norms",
    "first order": "of it: first order in 1/D",
    "across seeds": "standard deviation across seeds",
    "second order": "allowance for second order in 1/D, in the interval",
}


def ablate(stack: Stack, length: int) -> dict[str, float]:
    """Compute the cosine after the last block with every correction, without any, and what it loses without each one.

    Returns:
        One value for each of :data:`ROWS`.
    """
    bare = dataclasses.replace(stack, norm_eps=0.0)
    complete = contraction(profile(stack, length))
    mean = float(complete.mean[-1])
    return {
        "limit": float(profile(bare, length, finite=False, uniform=True).inter_cosine[-1]),
        "all": mean,
        "attention": mean - float(contraction(profile(stack, length, uniform=True)).mean[-1]),
        "epsilon": mean - float(contraction(profile(bare, length)).mean[-1]),
        "first order": mean - float(profile(stack, length, finite=False).inter_cosine[-1]),
        "across seeds": float(complete.seed_std[-1]),
        "second order": float(complete.theory_std[-1]),
    }


def run(context: Context) -> Entry:
    """Run every model and length of the settings."""
    rows = [
        {"model": model, "seq_len": length, "cosine": ablate(stack_of(preset(model)), length)}
        for model, length in context.settings["cases"]
    ]
    return {"cases": rows}


def tables(record: Record) -> Sequence[Table]:
    """Show one row for each model and length."""
    cases: Sequence[Entry] = record["result"]["cases"]
    rows: list[tuple[Any, ...]] = [
        (
            [case["model"], case["seq_len"]],
            dict.fromkeys(ROWS.values(), (significant(3), None)),
            {},
            {name: case["cosine"][key] for key, name in ROWS.items()},
        )
        for case in cases
    ]
    note = (
        "Predicted cosine between sequences after the last block, on random tokens; nothing is measured. A column "
        "that begins with “of it” is what the full prediction loses without that correction. First order in 1/D: "
        "what finite width adds to the mean. The allowance for second order widens the interval and is not derived: "
        f"it is {SECOND_ORDER:g}, a chosen constant, times the cosine and the variance of the overlap of two inputs."
    )
    return [tabulate("The theory with and without its corrections", ["model", "T"], rows, note)]


def headline(record: Record) -> str:
    """State what finite width adds to a plain model and to a gated one."""
    gated = {True: 0.0, False: 0.0}
    for case in record["result"]["cases"]:
        kind = preset(case["model"]).gated_mlp
        part = abs(case["cosine"]["first order"]) / abs(case["cosine"]["all"])
        gated[kind] = max(gated[kind], part)
    return (
        f"Finite width is {100 * gated[True]:.0f}% of the contraction that theory predicts for gated MLPs, and at most "
        f"{percent(1)(gated[False])} for plain ones."
    )


EXPERIMENT = Experiment(
    name="ablation",
    title="What the theory's corrections are worth",
    paper="no paper's figure",
    description=(
        "The mean-field prediction of the cosine between sequences follows infinitely wide layers; attention that is "
        "not uniform, the norms' ε and terms of first order in 1/D are added to it. Here each is left out in turn. "
        "Nothing is measured or sampled."
    ),
    settings=settings.ABLATION,
    cost={"smoke": "a second", "laptop": "a minute on two cores", "paper": "two minutes on two cores"},
    run=run,
    precision="float64",
    tables=tables,
    headline=headline,
)
