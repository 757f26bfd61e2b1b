"""The searches for the smallest setting, and for one of eight times the parameters, in which every seed grows sinks."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.experiments.sinks import sink_growth, sink_training
from bornbiased_jax.experiments.sinks.settings import settings_of
from bornbiased_jax.report.numbers import fixed, integer, percent, significant
from bornbiased_jax.report.tables import Table, tabulate
from bornbiased_jax.training import PretrainConfig

SCHEDULE = ("steps", "learning_rate", "tokenizer", "batch_size", "context", "weight_decay")
"""Changes that are the training's, not the model's."""
Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""What a table says of a setting, by the column's name."""

_SIZE: Columns = {
    "layers × width, heads": lambda tried: "{num_layers} × {d_model}, {num_heads}".format(**tried["changes"]),
}
_STEPS: Columns = {
    "steps": lambda tried: integer(tried["schedule"]["steps"]),
    "learning rate": lambda tried: significant(2)(tried["schedule"]["learning_rate"]),
}
COLUMNS: Columns = {
    **_SIZE,
    "tokenizer": lambda tried: str(tried["schedule"]["tokenizer"]),
    "BOS token": lambda tried: "yes" if tried["bos_token"] else "no",
    **_STEPS,
}
BATCHED_COLUMNS: Columns = {
    **_SIZE,
    "batch × T": lambda tried: "{batch_size} × {context}".format(**tried["schedule"]),
    "weight decay": lambda tried: significant(2)(tried["schedule"].get("weight_decay", PretrainConfig.weight_decay)),
    **_STEPS,
}


def tables(record: Record, columns: Columns = COLUMNS) -> Sequence[Table]:
    """Show every setting that was tried, with the outcome of every seed in the order of the settings."""
    rows = []
    for name, run in record["result"]["variants"].items():
        settings = record["settings"]["variants"][name]
        scores = [seed["largest_score"] for seed in run["by_seed"]]
        rates = [list(seed["sink_rate"].values())[-1] for seed in run["by_seed"]]
        rows.append(
            (
                [describe(settings) for describe in columns.values()],
                {
                    "largest score by seed": ", ".join(map(fixed(2), scores)),
                    "sink rate by seed": ", ".join(map(percent(0), rates)),
                },
            )
        )
    lengths = sorted({variant["lengths"][-1] for variant in record["settings"]["variants"].values()})
    seeds = ", ".join(map(str, record["settings"]["seeds"]))
    return [
        tabulate(
            "Settings tried in the search",
            list(columns),
            rows,
            note=f"ε = {sink_training.EPSILON}, T = {', '.join(map(str, lengths))}; seeds {seeds} in this order, "
            "as far as they go.",
        )
    ]


def tried(base: Mapping[str, Any], seeds: int = 3, bos_token: bool = True, **changes: object) -> dict[str, Any]:
    """Vary layers, widths, heads or schedule of the base setting; the last learning rate is a tenth of the first."""
    schedule = {**base["schedule"], **{key: value for key, value in changes.items() if key in SCHEDULE}}
    model: dict[str, Any] = {key: value for key, value in changes.items() if key not in SCHEDULE}
    schedule["min_learning_rate"] = schedule["learning_rate"] / 10
    if "d_model" in model:
        model["d_ff"] = 8 * round(model["d_model"] * 8 / 3 / 8)
    if schedule["tokenizer"] == "byte":
        model["vocab_size"] = 260
    lengths = [length for length in base["lengths"] if length <= schedule["context"]]
    evaluation = {**base["evaluation"], "context": schedule["context"]}
    fields = {"seeds": list(base["seeds"][:seeds]), "bos_token": bos_token, "num_sequences": 30}
    fields |= {"lengths": lengths, "evaluation": evaluation}
    return {**base, **fields, "changes": {**base["changes"], **model}, "schedule": schedule}


_BASE = settings_of("laptop", ["baseline"])
_FOUR: dict[str, Any] = {"num_heads": 4}

_LAPTOP = {
    "one layer": tried(_BASE, num_layers=1, **_FOUR),
    "two layers, two heads": tried(_BASE),
    "two layers, four heads": tried(_BASE, **_FOUR),
    "slower": tried(_BASE, steps=1200, learning_rate=0.01, **_FOUR),
    "faster": tried(_BASE, 2, steps=600, learning_rate=0.03, **_FOUR),
    "wider": tried(_BASE, 1, d_model=64, steps=800, **_FOUR),
    "deeper": tried(_BASE, 2, num_layers=4, learning_rate=0.01, **_FOUR),
    "wider and deeper": tried(_BASE, 1, num_layers=4, d_model=64, steps=1200, learning_rate=0.008, **_FOUR),
    "bytes": tried(_BASE, 1, num_layers=3, tokenizer="byte", **_FOUR),
    "no BOS token": tried(_BASE, 1, bos_token=False, **_FOUR),
}

_DEEP: dict[str, Any] = {"num_layers": 4, "d_model": 96, "num_heads": 4, "learning_rate": 6e-3}
_WIDE: dict[str, Any] = {"num_layers": 2, "d_model": 128, "num_heads": 4, "learning_rate": 6e-3}
_SHORT: dict[str, Any] = {"context": 32, "batch_size": 32, "steps": 600}

_LARGER = {
    "deep": tried(_BASE, 1, **_DEEP),
    "deep, faster": tried(_BASE, 1, **_DEEP | {"learning_rate": 0.015}),
    "deep, two heads": tried(_BASE, 1, **_DEEP | {"num_heads": 2}),
    "wide, two heads": tried(_BASE, 1, **_WIDE | {"num_heads": 2}),
    "wide, two heads, decayed": tried(_BASE, 1, **_WIDE | {"num_heads": 2, "weight_decay": 0.5}),
    "wide, slower": tried(_BASE, 1, **_WIDE | {"learning_rate": 3e-3}),
    "deep, short": tried(_BASE, 1, **_DEEP | _SHORT),
    "deep, short, half the batch": tried(_BASE, 1, **_DEEP | _SHORT | {"batch_size": 16}),
    "wide, short, half the batch": tried(_BASE, 1, **_WIDE | _SHORT | {"batch_size": 16}),
    "wide, short": tried(_BASE, 3, **_WIDE | _SHORT),
}

_TINY = settings_of("smoke", ["baseline"], bos_token=True)

EXPERIMENT = Experiment(
    name="sink_search",
    title="The search for a setting in which sinks grow",
    description=(
        "What was tried before the experiments on sinks settled on two layers of width 32: depth, width, heads, steps, "
        "learning rate, bytes, and sequences without a BOS token."
    ),
    settings={
        "smoke": {
            "seeds": [42, 123],
            "variants": {"one layer": {**_TINY, "changes": {**_TINY["changes"], "num_layers": 1}}},
        },
        "laptop": {"seeds": [42, 123, 1000], "variants": _LAPTOP},
    },
    cost={"smoke": "seconds", "laptop": "about 13 minutes of CPU on two cores"},
    run=sink_growth.run,
    tables=tables,
)

EXPERIMENTS = {
    "sink_search": EXPERIMENT,
    "sink_search_larger": dataclasses.replace(
        EXPERIMENT,
        name="sink_search_larger",
        title="The search for a larger setting in which sinks grow",
        description=(
            "What was tried before sink_cures_larger settled on two layers of width 128 and 32 positions: depth, "
            "width, heads, learning rate, weight decay, batch and context."
        ),
        settings={**EXPERIMENT.settings, "laptop": {"seeds": [42, 123, 1000], "variants": _LARGER}},
        cost={"smoke": "seconds", "laptop": "about 15 minutes on two cores"},
        tables=functools.partial(tables, columns=BATCHED_COLUMNS),
    ),
}
