"""The table of ``sink_cures`` at more than eight times the parameters; no paper's table."""

from __future__ import annotations

from bornbiased_jax.config import preset
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import count_parameters
from experiments.base import Experiment
from experiments.sinks import sink_cures, sink_training
from experiments.sinks.mitigations import MITIGATIONS


def times_larger() -> float:
    """Parameters of this size over those of ``sink_cures``, both baselines."""
    sizes = [settings(["baseline"]) for settings in (sink_training.larger, sink_training.laptop)]
    larger, smaller = (count_parameters(parameter_shapes(preset(size["model"], **size["changes"]))) for size in sizes)
    return larger / smaller


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
