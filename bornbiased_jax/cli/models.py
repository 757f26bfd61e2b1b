"""``bornbiased models``."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from bornbiased_jax.cli import outputs
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.config import FIELDS, PRESETS
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import count_parameters
from bornbiased_jax.results.lineage_reports import Models
from bornbiased_jax.schemes import SCHEMES


@click.command("models", cls=Command)
@outputs.result_options
def list_models(json_file: str | None) -> None:
    """List presets, their fields and parameter counts.

    \b
    Example:
      bornbiased models
      bornbiased models --json models.json
    """
    described: dict[str, dict[str, Any]] = {
        name: {"num_parameters": count_parameters(parameter_shapes(cfg)), "fields": dataclasses.asdict(cfg)}
        for name, cfg in PRESETS.items()
    }
    value = {"models": described, "fields": list(FIELDS), "schemes": list(SCHEMES)}
    outputs.print_result(Models(value), json_file)
