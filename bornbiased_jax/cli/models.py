"""``bornbiased models``."""

from __future__ import annotations

import click

from bornbiased_jax.cli import outputs
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.config import PRESETS
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import count_parameters
from bornbiased_jax.results.lineage_reports import Models


@click.command("models", cls=Command)
@outputs.result_options
def list_models(json_file: str | None) -> None:
    """List presets, their fields and parameter counts.

    \b
    Example:
      bornbiased models
      bornbiased models --json models.json
    """
    sizes = {name: count_parameters(parameter_shapes(cfg)) for name, cfg in PRESETS.items()}
    outputs.OutputFiles(json_file).show(Models(sizes))
