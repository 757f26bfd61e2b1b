"""What is left to run of the paper's own sizes: operations, and hours at the rate of the records that were made.

Not part of a record's own module, so that what is said of records does not count as code that made them.
"""

from __future__ import annotations

from types import ModuleType

from bornbiased_jax.report.numbers import significant
from bornbiased_jax.report.tables import Quantity, Row, Table
from experiments import results
from experiments.birth import table1_rows
from experiments.lineage import table4a_sizes

SELECTIONS: dict[str, ModuleType] = {"table1_rows": table1_rows, "table4a_sizes": table4a_sizes}
"""Name on the command line -> module with ``EXPERIMENTS`` by name and ``operations`` of one group of their settings."""


def table(selection: str, scale: str) -> Table | None:
    """The experiments of a selection that have no record at a scale; None where all have.

    Hours are operations over the rate of the quickest that has one: others may have been made beside other work.
    Where there is none, operations stand alone.
    """
    module = SELECTIONS[selection]
    needed = {
        name: sum(map(module.operations, experiment.settings[scale]["groups"]))
        for name, experiment in module.EXPERIMENTS.items()
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
        rows.append(Row([name, module.EXPERIMENTS[name].paper], measured, configuration="ours"))
    note = ""
    if quickest is not None:
        machine = "{cores} cores of {cpu}".format_map(made[quickest]["provenance"]["platform"])
        note = f"At the {rates[quickest] / 1e9:.0f} GFLOP/s of the quickest record above, on {machine}."
    return Table(
        title="What is left, with its hours",
        settings=["experiment", "part of the paper"],
        quantities=[Quantity("operations, 10¹²", significant(2)), Quantity("hours", significant(2))],
        rows=rows,
        note=note,
    )
