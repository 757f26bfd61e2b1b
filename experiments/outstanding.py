"""What is left to run at a scale: operations, and hours at the rate of the records that were made."""

from __future__ import annotations

from collections.abc import Sequence

import experiments
from bornbiased_jax.report.numbers import significant
from bornbiased_jax.report.tables import Quantity, Row, Table
from experiments import results, runner
from experiments.base import Experiment
from experiments.birth import table1_rows


def operations(experiment: Experiment, scale: str) -> float:
    """Floating-point operations of an experiment's births, all of the models' own sizes."""
    return sum(table1_rows.operations(group) for group in experiment.settings[scale]["groups"])


def table(names: Sequence[str], scale: str) -> Table | None:
    """Those of the experiments that have no record at a scale; None where all have.

    Hours are operations over the rate of the quickest of Table 1's records at this scale: others may have been made
    beside other work. Where it has none, operations stand alone.
    """
    rows = experiments.SELECTIONS["table1_rows"]
    made = {name: record for name in rows if (record := results.committed(name, scale)) is not None}
    left = [name for name in names if results.committed(name, scale) is None]
    if not left:
        return None
    rates = {
        operations(runner.load(name), scale) / record["provenance"]["wall_time_s"]: record
        for name, record in made.items()
    }
    rate = max(rates, default=None)
    found = []
    for experiment in map(runner.load, left):
        needed = operations(experiment, scale)
        hours = {} if rate is None else {"hours": needed / rate / 3600}
        found.append(
            Row([experiment.name, experiment.paper], {"operations, 10¹²": needed / 1e12, **hours}, configuration="ours")
        )
    note = ""
    if rate is not None:
        machine = "{cores} cores of {cpu}".format_map(rates[rate]["provenance"]["platform"])
        note = f"At the {rate / 1e9:.0f} GFLOP/s of the quickest row above, on {machine}."
    return Table(
        title="What is left, with its hours",
        settings=["experiment", "part of the paper"],
        quantities=[Quantity("operations, 10¹²", significant(2)), Quantity("hours", significant(2))],
        rows=found,
        note=note,
    )
