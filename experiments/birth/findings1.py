"""Findings 1.1 to 1.3: every architecture, larger and longer means stronger, and the seed decides which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.report.numbers import fixed, integer, mean_std, percent, times
from bornbiased_jax.report.tables import Claim, Table, tabulate


def tables(record: Record) -> Sequence[Table]:
    """Show mean and standard deviation across seeds of share and cosine, for every configuration."""
    rows: list[tuple[Any, ...]] = []
    for probed in probing.probed_groups(record):
        group, theory = probed["group"], probed["theory"]
        # Statistics over the seeds of one configuration.
        fractions, ratios, top_ids = (
            probing.values(probed, "preference", name) for name in ("top1_share", "ratio_to_uniform", "top1_id")
        )
        measured: dict[str, Any] = {
            "fraction": (percent(2), mean_std(fractions)),
            "× uniform": (times(1), float(np.mean(ratios))),
            "cosine": (fixed(4), mean_std(probing.cosines(probed))),
            "top-1 tokens": (integer, len(set(top_ids))),
        }
        predicted: dict[str, Any] = {}
        if theory:
            predicted = {
                "fraction": theory["top1_share_mean"],
                "cosine": (theory["inter_cosine_by_layer"][-1], theory["inter_cosine_by_layer_std"][-1]),
            }
        settings = [probing.name_of(group), probing.inputs_of(group), group["seq_len"], len(fractions)]
        rows.append((settings, measured, {}, predicted))
    return [
        tabulate(
            "Strength of the preference by architecture, size and length",
            ["model", "inputs", "T", "seeds"],
            rows,
            note=(
                "Mean ± standard deviation across seeds. Fraction: of the top-1 token. Cosine: between last-token "
                "states of different sequences after the last block. Top-1 tokens: how many different tokens "
                "the seeds favor."
            ),
        )
    ]


def claims(record: Record) -> Sequence[Claim]:
    """Claim how many different top-1 tokens the seeds have, with the counts that decide them."""
    probed = probing.probed_groups(record)[0]
    top_tokens = set(probing.values(probed, "preference", "top1_id"))
    counts = probing.values(probed, "preference", "top1_count")
    return [
        Claim(
            f"Different top-1 tokens among {len(probed['records'])} seeds of {probing.name_of(probed['group'])}, from "
            f"counts of {min(counts)} to {max(counts)} of {probed['group']['num_inputs']:,}",
            len(top_tokens),
            format=integer,
            configuration="ours",
            key=f"different top-1 tokens of {len(probed['records'])} seeds",
        )
    ]


def _grid(num_seeds: int, num_inputs: int, **base: object) -> list[probing.Group]:
    seeds = range(num_seeds)
    make = lambda model, length, **changes: probing.group(model, seeds, length, num_inputs, **{**base, **changes})  # noqa: E731
    return [
        make("gpt2-tiny", 32, d_model=256, d_ff=1024, num_layers=6),
        make("gpt2-tiny", 32, d_model=256, d_ff=1024, num_layers=2),
        make("gpt2-tiny", 32, d_model=64, d_ff=256, num_layers=6),
        make("gpt2-tiny", 128, d_model=256, d_ff=1024, num_layers=6),
        make("gpt2-tiny", 8, d_model=256, d_ff=1024, num_layers=6),
        make("llama-tiny", 32, d_model=256, d_ff=704, num_layers=6),
        make("qwen-tiny", 32, d_model=256, d_ff=704, num_layers=6),
    ]


EXPERIMENT = Experiment(
    name="findings1",
    title="Every architecture, stronger with size and length, another token for another seed",
    paper="Findings 1.1, 1.2 and 1.3",
    description=(
        "The same measurement over depth, width, length and architecture with many seeds each: the share of the "
        "top-1 token grows with the model and with the sequence. Different seeds have different top-1 tokens, but from "
        "counts so small (3 to 7 of 500 at the laptop scale) that different inputs would change them too."
    ),
    settings={
        "smoke": {
            "seeds": [0, 1, 2],
            "groups": [
                probing.group("gpt2-tiny", range(3), 8, 64, **probing.SMOKE),
                probing.group("qwen-tiny", range(3), 8, 64, **probing.SMOKE),
            ],
        },
        "laptop": {"seeds": list(range(8)), "groups": _grid(8, 500)},
        "paper": {"seeds": list(range(64)), "groups": _grid(64, 10_000)},
    },
    cost={"smoke": "seconds", "laptop": "3 min 30 s of CPU on two cores", "paper": "needs a GPU"},
    run=probing.run_groups,
    tables=tables,
    claims=claims,
)
