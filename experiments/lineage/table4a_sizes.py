"""Tables 4a and 9 with the paper's models and inputs, at lengths that two cores can afford: a record for each."""

from __future__ import annotations

from experiments.base import Experiment
from experiments.lineage import table4a

LENGTHS = (16, 64)


def name_of(family: str, seq_len: int) -> str:
    """A record's name on the command line."""
    return f"table4a_{family}_{seq_len}"


def _at(family: str, seq_len: int) -> Experiment:
    # Baselines read no inputs of this length: one record of a family has them, with their null.
    num_null = 12 if seq_len == LENGTHS[0] else 0
    smoke = {"num_inputs": 64, "seq_len": 4, "num_null": 0, "reef": table4a.sentences_of(12, 8, "builtin:code")}
    paper = {"num_inputs": 10_000, "seq_len": seq_len, "num_null": num_null, "reef": table4a.sentences_of(200, 64)}
    return Experiment(
        name=name_of(family, seq_len),
        title=f"Models of different seeds at birth: {family}-nano, T = {seq_len}",
        paper="Table 4a" if family == "llama" else "Table 9",
        description=(
            "As table4a, with the paper's model, pairs of seeds and number of inputs; sequences are shorter than the "
            "1,024 tokens that the paper's table was made with, so that its numbers do not stand beside these."
        ),
        settings={
            "smoke": table4a.families("tiny", table4a.TINY, [family], **smoke),
            "paper": table4a.families("nano", {}, [family], **paper),
        },
        cost={"smoke": "seconds", "paper": f"{seq_len / 20:.1f} hours on two cores"},
        run=table4a.run,
        tables=table4a.tables,
        claims=table4a.claims,
    )


EXPERIMENTS = {name_of(family, length): _at(family, length) for family in table4a.PAIRS for length in LENGTHS}
