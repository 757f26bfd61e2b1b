"""``bornbiased reproduce``."""

from __future__ import annotations

from typing import Any

import click

from bornbiased_jax.cli import options


@click.command("reproduce")
@click.argument("names", nargs=-1, metavar="[NAMES|demo|all]")
@click.option("--scale", type=click.Choice(["smoke", "laptop", "paper"]), default="laptop", show_default=True)
@click.option("--out", default="out", show_default=True, metavar="DIR", help="Records and the page go here.")
@click.option("--data", metavar="DATA", help="Text for the experiments that read some: a file, folder or builtin:…")
@click.option("--list", "only_list", is_flag=True, help="List the experiments and their cost, and run nothing.")
@options.common_options
def reproduce(names: tuple[str, ...], scale: str, out: str, data: str | None, only_list: bool, **common: Any) -> int:
    """Run the papers' tables and figures and write one record each and OUT/index.html; again: resumes.

    \b
    Example:
      bornbiased reproduce demo --scale laptop --out out/demo
      bornbiased reproduce table1 figure2 --scale smoke --out out/smoke
    """
    import experiments
    from experiments import runner

    if only_list:
        rows = []
        for name in experiments.MODULES:
            experiment = runner.load(name)
            rows.append([name, experiment.paper, experiment.title, experiment.cost.get(scale, "")])
        options.print_table("Experiments", ["name", "paper", "title", f"cost ({scale})"], rows)
        return 0
    mesh = options.start(**common)
    outcome = runner.reproduce(names, scale, out, data, quiet=common["quiet"], mesh=mesh)
    click.echo(f"The page: {outcome.page}")
    for name, reason in outcome.failed.items():
        click.echo(f"bornbiased: {name} has no result: {reason}", err=True)
    return outcome.exit_code
