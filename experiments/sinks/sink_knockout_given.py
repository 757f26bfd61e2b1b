"""Sinks cut and joined in a checkpoint that ``--data "model=PATH;TEXT"`` names: :mod:`.sink_knockout`; by name."""

from __future__ import annotations

import dataclasses
from typing import Any

from experiments.base import Context
from experiments.sinks import sink_knockout
from experiments.sinks.subject import given


def run(context: Context) -> dict[str, Any]:
    """Every cut and join on the model that is named."""
    return given(context, sink_knockout.run)


EXPERIMENT = dataclasses.replace(
    sink_knockout.EXPERIMENT, name="sink_knockout_given", title="What a larger real model's sinks hang on", run=run
)
