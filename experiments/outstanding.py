"""What is left to run of Table 1: operations, and hours at the rate of the rows that were made.

Not part of a row's own module, so that what is said of rows does not count as code that made them.
"""

from __future__ import annotations

from bornbiased_jax.report.numbers import significant
from bornbiased_jax.report.tables import Quantity, Row, Table
from experiments import results
from experiments.birth import table1_rows


def table(scale: str) -> Table | None:
    """The rows that have no record at a scale; None where all have.

    Hours are operations over the rate of the quickest row that has one: others may have been made beside other work.
    Where there is none, operations stand alone.
    """
    needed = {
        name: sum(map(table1_rows.operations, experiment.settings[scale]["groups"]))
        for name, experiment in table1_rows.EXPERIMENTS.items()
    }
    made = {name: record for name in needed if (record := results.committed(name, scale)) is not None}
    if len(made) == len(needed):
        return None
    rates = {name: needed[name] / results.taken(record)["wall_time_s"] for name, record in made.items()}
    quickest = max(rates, key=rates.__getitem__, default=None)
    rows = []
    for name in (name for name in needed if name not in made):
        hours = {} if quickest is None else {"hours": needed[name] / rates[quickest] / 3600}
        measured = {"operations, 10¹²": needed[name] / 1e12, **hours}
        rows.append(Row([name, table1_rows.EXPERIMENTS[name].paper], measured, configuration="ours"))
    note = ""
    if quickest is not None:
        machine = "{cores} cores of {cpu}".format_map(made[quickest]["provenance"]["platform"])
        note = f"At the {rates[quickest] / 1e9:.0f} GFLOP/s of the quickest row above, on {machine}."
    return Table(
        title="What is left, with its hours",
        settings=["experiment", "part of the paper"],
        quantities=[Quantity("operations, 10¹²", significant(2)), Quantity("hours", significant(2))],
        rows=rows,
        note=note,
    )
