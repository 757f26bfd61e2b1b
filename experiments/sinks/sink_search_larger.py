"""The search for a setting of more than eight times the parameters in which the baseline grows sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bornbiased_jax.report.tables import Table
from experiments.base import Experiment, Record
from experiments.sinks import sink_growth, sink_search, sink_training
from experiments.sinks.sink_search import BATCHED_COLUMNS, tried

_BASE = sink_training.laptop(["baseline"])
_DEEP: dict[str, Any] = {"num_layers": 4, "d_model": 96, "num_heads": 4, "learning_rate": 6e-3}
_WIDE: dict[str, Any] = {"num_layers": 2, "d_model": 128, "num_heads": 4, "learning_rate": 6e-3}
_SHORT: dict[str, Any] = {"context": 32, "batch_size": 32, "steps": 600}

_LAPTOP = {
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


def tables(record: Record) -> Sequence[Table]:
    """Every setting that was tried."""
    return sink_search.table(record, BATCHED_COLUMNS)


EXPERIMENT = Experiment(
    name="sink_search_larger",
    title="The search for a larger setting in which sinks grow",
    paper="no paper's table",
    description=(
        "What was tried before sink_cures_larger settled on two layers of width 128 and 32 positions: depth, width, "
        "heads, learning rate, weight decay, batch and context."
    ),
    settings={
        "smoke": sink_search.EXPERIMENT.settings["smoke"],
        "laptop": {"seeds": [42, 123, 1000], "variants": _LAPTOP},
    },
    cost={"smoke": "seconds", "laptop": "about 15 minutes on two cores"},
    run=sink_growth.run,
    tables=tables,
)
