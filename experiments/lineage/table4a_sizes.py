"""Tables 4a and 9 with the paper's models and inputs, at lengths that two cores can afford and at the paper's.

At the shortest length a record holds all pairs of a family, at the others a single pair. Up to T = 64 none takes over
an hour on two cores; the paper's T = 1,024 needs a GPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared.probing import of_sequence
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.experiments.lineage import table4a
from bornbiased_jax.report.numbers import from_log10
from bornbiased_jax.report.tables import Claim

TOGETHER, APART = 16, (64, 1_024)
"""Sequence length of a record of all pairs, and those of a record of one."""


def name_of(family: str, seq_len: int, pair: Sequence[int] = ()) -> str:
    """Return a record's name on the command line."""
    return "_".join(["table4a", family, str(seq_len), *map(str, pair)])


def operations(group: Mapping[str, Any]) -> float:
    """Count what its forward passes need: tokens once for each seed, vectors for either side of each pair."""
    passes = len({seed for pair in group["pairs"] for seed in pair}) + 2 * len(group["pairs"])
    sequence = of_sequence(preset(group["model"], **group["changes"]), group["seq_len"], head=False)
    return passes * group["num_inputs"] * sequence


def claims_of_pair(record: Record) -> Sequence[Claim]:
    """State the p of one pair, on the published inputs and on tokens."""
    (outcome,) = record["result"]["groups"]
    group, (entry,) = outcome["group"], outcome["pairs"]
    sizes = f"{group['model']}, N = {group['num_inputs']:,}, T = {group['seq_len']}"
    seeds = f"p of the initializations of {entry['base']} and {entry['suspect']}"
    vectors, tokens = entry["tests"]["gaussian"]["paper"], entry["tests"]["tokens"]["permutation"]
    log10_p_by_test = {
        "paper test on gaussian": vectors.get("log10_p_t"),
        "permutation test on tokens": None if tokens["p_value"] is None else float(np.log10(tokens["p_value"])),
    }
    printed = {}
    if table4a.is_paper(group):
        p, _ = table4a.PRINTED[group["model"].split("-")[0], entry["base"], entry["suspect"]]
        printed["paper test on gaussian"] = float(np.log10(p))
    return [
        Claim(
            f"{seeds}, {test} ({sizes})",
            log10_p,
            printed.get(test),
            format=from_log10(2),
            configuration="paper" if test in printed else "other",
        )
        for test, log10_p in log10_p_by_test.items()
        if log10_p is not None
    ]


def _of(family: str, seq_len: int, pairs: Sequence[Sequence[int]], num_null: int) -> Experiment:
    smoke = {"num_inputs": 64, "seq_len": 4, "num_null": 0, "reef": table4a.sentences_of(12, 8, "builtin:code")}
    paper = {
        "num_inputs": 10_000,
        "seq_len": seq_len,
        "num_null": num_null,
        "reef": table4a.sentences_of(200, 64),
        "pairs": [list(pair) for pair in pairs],
    }
    settings = {
        "smoke": table4a.families("tiny", table4a.TINY, [family], **{**smoke, "pairs": paper["pairs"]}),
        "paper": table4a.families("nano", {}, [family], **paper),
    }
    needed = sum(map(operations, settings["paper"]["groups"]))
    length = ", and its length of sequences."
    if seq_len != table4a.PAPER_SIZES[1]:
        length = (
            "; sequences are shorter than the 1,024 tokens that the paper's table was made with, so that its numbers "
            "are no match for these."
        )
    return Experiment(
        name=name_of(family, seq_len),
        title=f"Models of different seeds at initialization: {family}-nano, T = {seq_len}",
        paper="Table 4a" if family == "llama" else "Table 9",
        description="As table4a, with the paper's model, pairs of seeds and number of inputs" + length,
        settings=settings,
        cost={"smoke": "seconds", "paper": f"{needed:.1e} floating-point operations"},
        run=table4a.run,
        tables=table4a.tables,
        claims=table4a.claims,
    )


def _of_pair(family: str, seq_len: int, pair: Sequence[int]) -> Experiment:
    # Baselines read no inputs of this length: their null is in the record of all pairs.
    experiment = _of(family, seq_len, [pair], num_null=0)
    base, suspect = pair
    return dataclasses.replace(
        experiment,
        name=name_of(family, seq_len, pair),
        title=f"{experiment.title}, seeds {base} and {suspect}",
        settings={scale: {**settings, "seeds": [base, suspect]} for scale, settings in experiment.settings.items()},
        claims=claims_of_pair,
    )


_ALL = [_of(family, TOGETHER, pairs, num_null=12) for family, pairs in table4a.PAIRS.items()]
_ALL += [
    _of_pair(family, seq_len, pair) for seq_len in APART for family, pairs in table4a.PAIRS.items() for pair in pairs
]
EXPERIMENTS = {experiment.name: experiment for experiment in _ALL}
