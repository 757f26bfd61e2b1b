"""Table 1 row by row at the paper's sizes, as far as two cores go: a record for each row that was printed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments._shared.probing import of_sequence
from bornbiased_jax.experiments.base import Experiment, Record, by_scale
from bornbiased_jax.experiments.birth import figure2, figure10, table1
from bornbiased_jax.report.numbers import percent
from bornbiased_jax.report.tables import Claim, Quantity, Table

PARTS = {"a": "gpt2-nano", "b": "llama-nano", "c": "gpt2-1.2b"}
"""The part of Table 1 -> its model."""

LENGTHS = (64, 256, 1024)
SEEDS = (42, 43)
TENTHS = {"first tenth": "top1_share_p10", "median": "top1_share_p50", "last tenth": "top1_share_p90"}
"""A column of theory's -> its name in a record."""


def name_of(part: str, seq_len: int, seed: int) -> str:
    """Return a row's name on the command line."""
    return f"table1_{part}_{seq_len}_{seed}"


def operations(group: probing.Group) -> float:
    """Count the operations of a row's forward passes, the head at the last position alone."""
    sequence = of_sequence(preset(group["model"]), group["seq_len"], head=True)
    return len(group["seeds"]) * group["num_inputs"] * sequence


def tables(record: Record) -> Sequence[Table]:
    """Show the row beside the printed one, its contraction, its dimensions, and its place among theory's seeds."""
    return [*table1.tables(record), *figure2.tables(record), *figure10.tables(record), _among_seeds(record)]


def _among_seeds(record: Record) -> Table:
    """Show the row's fraction and the printed one beside theory's tenths of seeds."""
    (row,) = table1.tables(record)[0].rows
    theory = probing.probed_groups(record)[0]["theory"]
    measured, paper = (
        {name: value for name, value in values.items() if name == "fraction"} for values in (row.measured, row.paper)
    )
    tenths = {name: theory[key] for name, key in TENTHS.items()}
    return Table(
        "The fraction among theory's seeds",
        probing.HEADS,
        [Quantity("fraction", percent(2)), *(Quantity(name, percent(2)) for name in TENTHS)],
        [dataclasses.replace(row, measured=measured, paper=paper, theory=tenths)],
        note=(
            "One seed tells little of a mean: by theory the fraction of a tenth of all seeds lies below the first "
            "number, that of half of them below the median, that of a tenth above the last. The paper's seeds are "
            "other draws than these of the same numbers."
        ),
    )


def claims(record: Record) -> Sequence[Claim]:
    """Claim the fraction alone, with its seed: one seed says nothing of others."""
    fraction, *_ = table1.claims(record)
    (seed,) = probing.probed_groups(record)[0]["group"]["seeds"]
    return [dataclasses.replace(fraction, statement=f"{fraction.statement}, seed {seed}")]


def _row(part: str, seq_len: int, seed: int) -> Experiment:
    model = PARTS[part]
    smallest = probing.LLAMA_SMOKE if model.startswith("llama") else probing.GPT2_SMOKE
    probed = probing.group(model, [seed], seq_len, table1.PAPER_INPUTS[model])
    return Experiment(
        name=name_of(part, seq_len, seed),
        title=f"{model}, T = {seq_len:,}, seed {seed}",
        paper=f"Table 1({part})",
        description=(
            "One row of Table 1 with as many inputs as its p-values ask for, and what Figures 1, 2 and 10 draw of the "
            "same initialization. Token ids are those of this implementation's weights."
        ),
        settings=by_scale(("smoke", "paper"), seeds=[seed], groups=([{**smallest, "seeds": [seed]}], [probed])),
        cost={"smoke": "seconds", "paper": f"{operations(probed):.1e} floating-point operations"},
        run=probing.run_groups,
        tables=tables,
        claims=claims,
    )


EXPERIMENTS = {
    name_of(part, seq_len, seed): _row(part, seq_len, seed) for part in PARTS for seq_len in LENGTHS for seed in SEEDS
}
