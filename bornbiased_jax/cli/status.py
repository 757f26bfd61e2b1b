"""``bornbiased status``."""

from __future__ import annotations

import click

from bornbiased_jax.cli import outputs
from bornbiased_jax.cli.sections import Command


@click.command("status", cls=Command)
@click.argument("directory", metavar="DIR", help="The store.")
@outputs.result_options
def status(directory: str, json_file: str | None) -> None:
    """How far is the work that a store keeps (--resume DIR), how fast does it go, and what failed?

    \b
    Example:
      bornbiased status out/probes
    """
    from bornbiased_jax.results.run_reports import StoreStatus
    from bornbiased_jax.store import status as read_status

    outputs.prepare_json(json_file)
    outputs.print_result(StoreStatus(read_status(directory)), json_file)
