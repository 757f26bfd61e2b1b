"""How small a model can be, and how short its training, for sinks to grow: what it takes on two cores."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from bornbiased_jax.experiments.base import Context, Experiment, Record
from bornbiased_jax.experiments.sinks import sink_training
from bornbiased_jax.experiments.sinks.settings import HELD_OUT, settings_of
from bornbiased_jax.report.numbers import fixed, integer, percent, significant
from bornbiased_jax.report.tables import Claim, Table, tabulate

ONE_LAYER = {"num_layers": 1, "num_heads": 4}
"""What the smallest model that grew a sink in every seed changes in the laptop's setting."""


def run(context: Context) -> dict[str, Any]:
    """Train the baseline in every variant of the settings."""
    variants = {}
    for name, settings in context.settings["variants"].items():
        inner = dataclasses.replace(context, settings=settings)
        variants[name] = sink_training.run_mitigations(inner)["cures"]["baseline"]
    return {"variants": variants}


def _first_step(run: Mapping[str, Any]) -> int | None:
    """Return the first step at which the strongest head of some seed was above ε."""
    for step, scores in zip(run["curve_steps"], run["curve_largest_score"], strict=True):
        if max(scores) > sink_training.EPSILON:
            return int(step)
    return None


def tables(record: Record) -> Sequence[Table]:
    """Show each variant with its strongest head."""
    rows = []
    for name, run in record["result"]["variants"].items():
        settings = record["settings"]["variants"][name]
        schedule, changes = settings["schedule"], settings["changes"]
        # The first snapshot with a head above ε.
        grown = _first_step(run)
        over_seeds = functools.partial(sink_training.over_seeds, run)
        size = f"{changes['num_layers']} × {changes['d_model']}"
        measured = {
            "largest score": (significant(2), over_seeds(lambda seed: seed["largest_score"])),
            "sink rate": (percent(1), over_seeds(lambda seed: list(seed["sink_rate"].values())[-1])),
            "DomRatio, first token": (fixed(1), over_seeds(lambda seed: seed["dom_ratio_first"][-1])),
            "above ε from step": "never" if grown is None else integer(grown),
            "validation loss": (fixed(3), over_seeds(lambda seed: seed["loss"][HELD_OUT])),
        }
        rows.append(([name, size, integer(schedule["steps"]), "yes" if settings["bos_token"] else "no"], measured))
    note = (
        f"ε = {sink_training.EPSILON}; ± across seeds. The step is the first snapshot in which a head of "
        "some seed was above ε."
    )
    heads = ["variant", "layers × width", "steps", "BOS token"]
    return [tabulate("What it takes to grow a sink", heads, rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the strongest head of the first variant and of the one without a BOS token."""
    return [
        Claim(
            f"Largest score α₁ of any head after training: {name}",
            sink_training.over_seeds(run, lambda seed: seed["largest_score"]),
            format=fixed(3),
        )
        for name, run in record["result"]["variants"].items()
    ]


def _variants(base: Mapping[str, Any], single: Mapping[str, Any]) -> dict[str, Any]:
    one_layer = {**base, "changes": {**base["changes"], **single}}
    return {
        "two layers": dict(base),
        "two layers, no BOS token": {**base, "bos_token": False},
        "one layer": one_layer,
        "one layer, no BOS token": {**one_layer, "bos_token": False},
    }


_SMALL = {"seeds": [42, 123, 1000], "variants": _variants(settings_of("laptop", ["baseline"]), ONE_LAYER)}

EXPERIMENT = Experiment(
    name="sink_growth",
    title="The smallest setting in which sinks grow",
    description=(
        "Models that two cores can train grow no sink on packed text, whose windows begin anywhere. Give every "
        "sequence a first id of its own, as a beginning-of-sequence token is, and one layer of width 32 grows sinks "
        "in under a thousand steps of 1,024 tokens: the first position must be recognizable before it can be used as "
        "a sink, and in a small model that is what takes long.\n\nThat one layer suffices says something about the "
        "cause, too: its keys are read before any attention, so the variance of no attention output stands behind "
        "these sinks. A token that can be told apart, and a softmax that must spend its weight somewhere, are enough."
    ),
    settings={
        "smoke": {
            "seeds": [42, 123],
            "variants": _variants(settings_of("smoke", ["baseline"], bos_token=True), {"num_layers": 1}),
        },
        "laptop": _SMALL,
        "paper": _SMALL,
    },
    cost={"smoke": "seconds", "laptop": "3 minutes on two cores", "paper": "3 minutes on two cores"},
    run=run,
    tables=tables,
    claims=claims,
)
