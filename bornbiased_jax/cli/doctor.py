"""``bornbiased doctor``."""

from __future__ import annotations

import click

from bornbiased_jax.cli import outputs
from bornbiased_jax.cli.sections import Command


@click.command("doctor", cls=Command)
@outputs.result_options
def doctor(json_file: str | None) -> None:
    """Say what this installation has: versions, devices, memory, the cache, and what each extra lacks.

    \b
    Example:
      bornbiased doctor
      bornbiased doctor --json -
    """
    from bornbiased_jax.doctor import diagnose
    from bornbiased_jax.results.run_reports import Diagnosis

    outputs.prepare_json(json_file)
    outputs.print_result(Diagnosis(diagnose()), json_file)
