"""The table of ``sink_cures`` at more than eight times the parameters; no paper's table."""

from __future__ import annotations

from experiments.base import Experiment
from experiments.sinks import sink_cures, sink_training
from experiments.sinks.mitigations import MITIGATIONS

EXPERIMENT = Experiment(
    name="sink_cures_larger",
    title="Every mitigation at a larger size",
    paper="no paper's table",
    description=(
        "What sink_cures shows of two layers of width 32, for two of width 128, trained on half the context: what "
        "holds at one size alone shows where the two tables differ."
    ),
    settings={
        "smoke": {**sink_cures.EXPERIMENT.settings["smoke"], "cures": ["baseline", "head-wise gate"]},
        "laptop": {
            **sink_training.larger(list(MITIGATIONS)),
            "seeds": sink_training.FIVE_SEEDS,
            "price": sink_training.PRICED_SHORT,
            "timing": {"rounds": 5, "steps": 5},
        },
    },
    cost={
        "smoke": "seconds",
        "laptop": "an hour or two on two cores",
    },
    precision=sink_cures.EXPERIMENT.precision,
    run=sink_cures.run,
    tables=sink_cures.tables,
    figures=sink_cures.panels,
    claims=sink_cures.claims,
)
