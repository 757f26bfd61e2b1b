"""``bornbiased reproduce``, ``status`` and ``doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from bornbiased_jax import experiments, io
from bornbiased_jax.cli import engines, options, outputs
from bornbiased_jax.cli.sections import Command
from bornbiased_jax.doctor import diagnose
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import results, runner
from bornbiased_jax.experiments.base import SCALES
from bornbiased_jax.results.run_reports import (
    Diagnosis,
    Difference,
    ExperimentList,
    ListedExperiment,
    Reproduction,
    StoreStatus,
)
from bornbiased_jax.store import status as read_status


@click.command("reproduce", cls=Command)
@click.argument("names", nargs=-1, metavar="[NAMES|demo|all]", help="Experiments by name (--list), or a set of them.")
@click.option(
    "--scale",
    type=click.Choice(SCALES),
    default="laptop",
    help="Seconds, minutes to an hour or two on two cores, or the papers' sizes.",
)
@click.option("--out", default="out", metavar="DIR", help="Records and the page go here.")
@click.option(
    "--overwrite", is_flag=True, help="Use a folder that holds other files, and replace files of the same names."
)
@click.option("--data", metavar="DATA", help="Text for the experiments that read some: a file, folder or builtin:…")
@click.option(
    "--list",
    "only_list",
    is_flag=True,
    help="List the experiments (or those of NAMES) and their cost, and run nothing.",
)
@click.option(
    "--compare", is_flag=True, help="Run again below DIR/compare and print what moved since the committed records."
)
@options.precision_option
@engines.engine_options
@outputs.result_options
@options.quiet_option
@options.process_options
def reproduce(
    names: tuple[str, ...],
    scale: str,
    out: str,
    overwrite: bool,
    data: str | None,
    only_list: bool,
    compare: bool,
    json_file: str | None,
    **common: Any,
) -> int:
    """Run the papers' tables and figures and write a record of each and OUT/index.html; run again to resume.

    \b
    Example:
      bornbiased reproduce demo --scale laptop --out out/demo
      bornbiased reproduce table1 figure2 --scale smoke --out out/smoke
      bornbiased reproduce table1 calibration --out out/laptop \\
        --engine processes --workers 4
    """
    # --list: the experiments and their cost.
    if only_list:
        loaded = {name: runner.load(name) for name in (runner.select(names) if names else experiments.MODULES)}
        rows = [ListedExperiment(name, row.paper, row.title, row.cost_at(scale)) for name, row in loaded.items()]
        outputs.OutputFiles(json_file).show(ExperimentList(scale, rows))
        return 0
    # Run them, and write records and page.
    if (common["num_processes"] or 1) > 1:
        raise InputError(
            "experiments keep what they compute, which processes that compute together cannot: start each process on "
            "its own with the same --out instead of --coordinator"
        )
    computing = runner.Computing(engines.engine(common), common.pop("precision"))
    mesh = options.start(**common, axis="seed")
    out = str(Path(out) / runner.COMPARE) if compare else out
    outcome = runner.reproduce(
        names,
        scale,
        out,
        data,
        quiet=common["quiet"],
        mesh=mesh,
        overwrite=overwrite,
        computing=computing,
    )
    # Summarize, with the differences from committed records if requested.
    moved = _moved([*outcome.done, *outcome.kept], scale, out) if compare else None
    headlines = runner.headlines(out, [*outcome.done, *outcome.kept])
    for name, reason in outcome.failed.items():
        click.echo(f"bornbiased: {name} has no result: {reason}", err=True)
    result = Reproduction(scale, out, str(outcome.page), outcome.done, outcome.kept, outcome.failed, headlines, moved)
    outputs.OutputFiles(json_file).show(result, line="\n".join(_lines(moved or {})))
    return outcome.exit_code


MOST_LINES = 20
"""Differences of one experiment that are printed."""


def _moved(names: list[str], scale: str, out: str) -> dict[str, list[Difference] | None]:
    """Compare with the committed records: by experiment place, old and new value; None where none has its data."""
    moved: dict[str, list[Difference] | None] = {}
    for name in names:
        before = results.committed(name, scale)
        now = io.read_json(runner.record_path(out, name))
        moved[name] = None
        if before is not None and before["data"] == results.data_names(now["data"]):
            moved[name] = results.differences(before, now)
    return moved


def _lines(moved: dict[str, list[Difference] | None]) -> Iterator[str]:
    """Describe what moved, for a reader."""
    within = f"within {results.TOLERANCE:g} of the committed record"
    for name, rows in moved.items():
        if rows is None:
            yield f"{name}: no committed record of this scale and data"
            continue
        yield f"{name}: {len(rows)} values moved, the others {within}" if rows else f"{name}: all {within}"
        for place, old, new in rows[:MOST_LINES]:
            yield f"  {place}: {old} -> {new}"
        if len(rows) > MOST_LINES:
            yield f"  … and {len(rows) - MOST_LINES} more"


@click.command("status", cls=Command)
@click.argument("directory", metavar="DIR", help="The store.")
@outputs.result_options
def status(directory: str, json_file: str | None) -> None:
    """Show the progress, the speed and the failures of the work in a store (--resume DIR).

    \b
    Example:
      bornbiased status out/probes
    """
    outputs.OutputFiles(json_file).show(StoreStatus(read_status(directory)))


@click.command("doctor", cls=Command)
@outputs.result_options
def doctor(json_file: str | None) -> None:
    """Say what this installation has: versions, devices, memory, the cache, and what each extra lacks.

    \b
    Example:
      bornbiased doctor
      bornbiased doctor --json -
    """
    outputs.OutputFiles(json_file).show(Diagnosis(diagnose()))
