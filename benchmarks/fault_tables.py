"""How records of what was broken on purpose are shown: kills, moved constants, damaged files, extreme options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.facts import facts
from bornbiased_jax.report.numbers import fixed, integer
from bornbiased_jax.report.tables import Quantity, Row, Table
from bornbiased_jax.stats.intervals import binomial_interval

Record = Mapping[str, Any]


def kill_resume(record: Record) -> list[Table]:
    """A run that was killed again and again beside one that nobody disturbed."""
    equal = {True: "equal, bit for bit", False: "DIFFERENT"}
    return facts(
        "A run killed with SIGKILL at random moments and resumed each time",
        [
            ("kills, of them while a checkpoint was written", f"{record['kills']}, {record['kills_during_a_write']}"),
            (f"losses of {record['steps']} steps", equal[record["losses_equal"]]),
            ("digests of the weights", equal[record["digests_equal"]]),
        ],
    )


def theory_mutations(record: Record) -> list[Table]:
    """How many moved constants of the theory its tests notice, by module."""
    tried: dict[str, list[Mapping[str, Any]]] = {module: [] for module in record["constants"]}
    for mutation in record["mutations"]:
        tried[mutation["module"]].append(mutation)
    rows = []
    for module, mutations in tried.items():
        unnoticed = [
            f"line {mutation['line']}: {mutation['old']}" for mutation in mutations if mutation["outcome"] == "passes"
        ]
        counts = {
            "constants": float(record["constants"][module]),
            "moved": float(len(mutations)),
            "noticed": float(len(mutations) - len(unnoticed)),
        }
        rows.append(Row([module], {**counts, "not noticed": "; ".join(unnoticed) or None}))
    quantities = [*(Quantity(name, integer) for name in ("constants", "moved", "noticed")), Quantity("not noticed")]
    moved, total = len(record["mutations"]), sum(record["constants"].values())
    noticed = sum(mutation["outcome"] != "passes" for mutation in record["mutations"])
    low, high = (100 * end for end in binomial_interval(noticed, moved))
    note = (
        f"A constant is multiplied by {record['factor']:g} in a copy of theory/ and the module's tests are run. "
        f"Moved: {moved} of {total} constants, drawn at random; noticed {noticed}"
        + (f", a fraction of all within {low:.1f}% to {high:.1f}% (95%)." if moved < total else ".")
    )
    return [Table("Constants of the theory moved, one at a time", ["module"], quantities, rows, note)]


def fuzz(record: Record) -> list[Table]:
    """What came of damaged files and extreme options, by kind."""
    rows = [
        Row(
            [kind],
            {
                "cases": float(row["cases"]),
                "done": float(row["cases"] - row["refused"] - len(row["faults"])),
                "refused": float(row["refused"]),
                "faults": float(len(row["faults"])),
                "longest": row["most_seconds"],
            },
        )
        for kind, row in record["kinds"].items()
    ]
    cases = sum(row["cases"] for row in record["kinds"].values())
    goals = record["goals"]
    note = (
        f"{cases:,} cases of seeds {record['first']:,} to {record['last']:,} in {record['minutes']:g} minutes. Done: "
        "the damage changed nothing that the reader must refuse, or the command did its work. Refused: one sentence "
        "that names the thing (a command: and exit code 2). Anything else is a fault, and so is what takes more than "
        f"{goals['seconds']} s of processor time or {goals['bytes'] / 2**30:g} GiB. Longest: seconds of one case."
    )
    counts = [Quantity(name, integer) for name in ("cases", "done", "refused", "faults")]
    quantities = [*counts, Quantity("longest", fixed(1))]
    return [Table("Damaged files and extreme options", ["what is damaged"], quantities, rows, note=note)]
