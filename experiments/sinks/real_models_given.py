"""What the checkpoint that ``--data "model=PATH;TEXT"`` names looks like: :mod:`.real_models`; run by name alone."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.base import Context
from experiments.sinks import real_models
from experiments.sinks.subject import given


def run(context: Context) -> dict[str, Any]:
    """Every measurement on the model that is named."""
    return given(context, real_models.run)


_LAPTOP = real_models.EXPERIMENT.settings["laptop"]
# A larger model costs more: a quarter of the sequences, chosen before any number.
_FEWER = {
    **_LAPTOP,
    "protocol": {**_LAPTOP["protocol"], "num_sequences": 25},
    "rounding": {**_LAPTOP["rounding"], "num_sequences": 4},
    "streaming": {**_LAPTOP["streaming"], "length": 512},
}

EXPERIMENT = dataclasses.replace(
    real_models.EXPERIMENT,
    name="real_models_given",
    title="What a larger real model looks like",
    settings={**real_models.EXPERIMENT.settings, "laptop": _FEWER},
    run=run,
)
