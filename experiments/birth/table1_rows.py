"""Table 1 row by row at the paper's sizes, as far as two cores go: a record for each row that was printed."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.report.tables import Claim, Panel, Table
from experiments._shared import births
from experiments.base import Experiment, Record
from experiments.birth import figure1, figure2, figure10, table1

PARTS = {"a": "gpt2-nano", "b": "llama-nano", "c": "gpt2-1.2b"}
"""The part of Table 1 -> its model."""

HOURS: dict[tuple[str, int], float] = {
    ("a", 64): 0.03,
    ("a", 256): 0.15,
    ("a", 1024): 0.6,
    ("b", 64): 0.2,
    ("b", 256): 0.8,
    ("b", 1024): 4.0,
    ("c", 64): 0.9,
    ("c", 256): 4.0,
    ("c", 1024): 18.0,
}
"""(part, T) -> hours of two cores for one seed, from the rates of shorter runs."""
SEEDS = (42, 43)


def name_of(part: str, seq_len: int, seed: int) -> str:
    """A row's name on the command line."""
    return f"table1_{part}_{seq_len}_{seed}"


def tables(record: Record) -> Sequence[Table]:
    """The row beside the printed one, its contraction, and its dimensions."""
    return [*table1.tables(record), *figure2.tables(record), *figure10.tables(record)]


def panels(record: Record) -> Sequence[Panel]:
    """Figures 1, 2 and 10 of this birth."""
    return [*figure1.panels(record), *figure2.panels(record), *figure10.panels(record)]


def claims(record: Record) -> Sequence[Claim]:
    """The share alone: one seed says nothing of others."""
    return list(table1.claims(record))[:1]


def _row(part: str, seq_len: int, seed: int) -> Experiment:
    model = PARTS[part]
    probed = births.group(model, [seed], seq_len, table1.PAPER_INPUTS[model])
    hours = HOURS[part, seq_len]
    return Experiment(
        name=name_of(part, seq_len, seed),
        title=f"{model}, T = {seq_len:,}, seed {seed}",
        paper=f"Table 1({part})",
        description=(
            "One row of Table 1 with as many inputs as its p-values ask for, and what Figures 1, 2 and 10 draw of the "
            "same birth. Token ids are those of this implementation's weights."
        ),
        settings={
            "smoke": {"seeds": [seed], "groups": [{**births.GPT2_SMOKE, "seeds": [seed]}]},
            "paper": {"seeds": [seed], "groups": [probed]},
        },
        cost={"smoke": "seconds", "paper": f"about {hours:g} hours of two cores by the rate of shorter runs"},
        run=births.run_groups,
        tables=tables,
        claims=claims,
        figures=panels,
    )


EXPERIMENTS = {name_of(part, seq_len, seed): _row(part, seq_len, seed) for part, seq_len in HOURS for seed in SEEDS}
