"""The search for the smallest setting in which every seed of the baseline grows sinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bornbiased_jax.report.numbers import fixed, integer, percent, significant
from bornbiased_jax.report.tables import Quantity, Row, Table
from experiments.base import Experiment, Record
from experiments.sinks import sink_growth, sink_training


def tables(record: Record) -> Sequence[Table]:
    """Every setting that was tried, with the outcome of every seed in the order of the settings."""
    rows = []
    for name, run in record["result"]["variants"].items():
        settings = record["settings"]["variants"][name]
        schedule, changes = settings["schedule"], settings["changes"]
        scores = [seed["largest_score"] for seed in run["by_seed"]]
        rates = [list(seed["sink_rate"].values())[-1] for seed in run["by_seed"]]
        rows.append(
            Row(
                [
                    f"{changes['num_layers']} × {changes['d_model']}, {changes['num_heads']}",
                    schedule["tokenizer"],
                    "yes" if settings["bos_token"] else "no",
                    integer(schedule["steps"]),
                    significant(2)(schedule["learning_rate"]),
                ],
                {
                    "largest score by seed": ", ".join(map(fixed(2), scores)),
                    "sink rate by seed": ", ".join(map(percent(0), rates)),
                },
                configuration="ours",
            )
        )
    lengths = sorted({variant["lengths"][-1] for variant in record["settings"]["variants"].values()})
    return [
        Table(
            "Settings tried in the search",
            ["layers × width, heads", "tokenizer", "BOS token", "steps", "learning rate"],
            [Quantity("largest score by seed"), Quantity("sink rate by seed")],
            rows,
            note=f"ε = {sink_training.EPSILON}, T = {', '.join(map(str, lengths))}; seeds 42, 123, 1000 in this order, "
            "as far as they go.",
        )
    ]


def _tried(base: Mapping[str, Any], seeds: int = 3, bos_token: bool = True, **changes: Any) -> dict[str, Any]:
    """The base setting with other layers, widths, heads or schedule; the last learning rate is a tenth of the first."""
    schedule = dict(base["schedule"])
    schedule |= {key: changes.pop(key) for key in ("steps", "learning_rate", "tokenizer") if key in changes}
    schedule["min_learning_rate"] = schedule["learning_rate"] / 10
    if "d_model" in changes:
        changes["d_ff"] = 8 * round(changes["d_model"] * 8 / 3 / 8)
    if schedule["tokenizer"] == "byte":
        changes["vocab_size"] = 260
    found = {"seeds": list(base["seeds"][:seeds]), "bos_token": bos_token, "num_sequences": 30}
    return {**base, **found, "changes": {**base["changes"], **changes}, "schedule": schedule}


_BASE = sink_training.laptop(["baseline"])
_FOUR: dict[str, Any] = {"num_heads": 4}

_LAPTOP = {
    "one layer": _tried(_BASE, num_layers=1, **_FOUR),
    "two layers, two heads": _tried(_BASE),
    "two layers, four heads": _tried(_BASE, **_FOUR),
    "slower": _tried(_BASE, steps=1200, learning_rate=0.01, **_FOUR),
    "faster": _tried(_BASE, 2, steps=600, learning_rate=0.03, **_FOUR),
    "wider": _tried(_BASE, 1, d_model=64, steps=800, **_FOUR),
    "deeper": _tried(_BASE, 2, num_layers=4, learning_rate=0.01, **_FOUR),
    "wider and deeper": _tried(_BASE, 1, num_layers=4, d_model=64, steps=1200, learning_rate=0.008, **_FOUR),
    "bytes": _tried(_BASE, 1, num_layers=3, tokenizer="byte", **_FOUR),
    "no BOS token": _tried(_BASE, 1, bos_token=False, **_FOUR),
}

_TINY = sink_training.smoke(["baseline"], bos_token=True)

EXPERIMENT = Experiment(
    name="sink_search",
    title="The search for a setting in which sinks grow",
    paper="no paper's table",
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
