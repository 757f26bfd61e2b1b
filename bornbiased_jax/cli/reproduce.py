"""``bornbiased reproduce``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from bornbiased_jax.cli import options


@click.command("reproduce")
@click.argument("names", nargs=-1, metavar="[NAMES|demo|all]")
@click.option("--scale", type=click.Choice(["smoke", "laptop", "paper"]), default="laptop", show_default=True)
@click.option("--out", default="out", show_default=True, metavar="DIR", help="Records and the page go here.")
@click.option("--data", metavar="DATA", help="Text for the experiments that read some: a file, folder or builtin:…")
@click.option("--list", "only_list", is_flag=True, help="List the experiments and their cost, and run nothing.")
@click.option(
    "--compare", is_flag=True, help="Run again below DIR/compare and print what moved since the committed records."
)
@options.common_options
def reproduce(
    names: tuple[str, ...], scale: str, out: str, data: str | None, only_list: bool, compare: bool, **common: Any
) -> int:
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
    out = str(Path(out) / "compare") if compare else out
    outcome = runner.reproduce(names, scale, out, data, quiet=common["quiet"], mesh=mesh)
    if compare:
        _print_what_moved([*outcome.done, *outcome.kept], scale, out)
    click.echo(f"The page: {outcome.page}")
    for name, reason in outcome.failed.items():
        click.echo(f"bornbiased: {name} has no result: {reason}", err=True)
    return outcome.exit_code


MOST_LINES = 20
"""Differences of one experiment that are printed."""


def _print_what_moved(names: list[str], scale: str, out: str) -> None:
    from bornbiased_jax import files
    from experiments import results, runner

    for name in names:
        before = results.committed(name, scale)
        if before is None:
            click.echo(f"{name}: no committed record at scale {scale}")
            continue
        moved = results.differences(before, files.read_json(runner.record_path(out, name)))
        within = f"within {results.TOLERANCE:g} of the committed record"
        click.echo(f"{name}: {len(moved)} values moved, the others {within}" if moved else f"{name}: all {within}")
        for place, old, new in moved[:MOST_LINES]:
            click.echo(f"  {place}: {old} -> {new}")
        if len(moved) > MOST_LINES:
            click.echo(f"  … and {len(moved) - MOST_LINES} more")
