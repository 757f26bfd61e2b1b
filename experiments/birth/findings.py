"""Findings 1.1 to 1.3 and 2.2: what strengthens the preference, what seed and inputs decide, and its direction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record, variants
from bornbiased_jax.experiments.birth import settings
from bornbiased_jax.report.numbers import fixed, integer, mean_std, percent, significant, times
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.intervals import binomial_interval


def findings1_tables(record: Record) -> Sequence[Table]:
    """Show mean and standard deviation across seeds of share and cosine, for every configuration."""
    rows: list[tuple[Any, ...]] = []
    for probed in probing.probed_groups(record):
        group, theory = probed["group"], probed["theory"]
        # Statistics over the seeds of one configuration.
        fractions, ratios, top_ids = (
            probing.values(probed, "preference", name) for name in ("top1_share", "ratio_to_uniform", "top1_id")
        )
        measured: Cells = {
            "fraction": (percent(2), mean_std(fractions)),
            "× uniform": (times(1), float(np.mean(ratios))),
            "cosine": (significant(3), mean_std(probing.cosines(probed))),
            "top-1 tokens": (integer, len(set(top_ids))),
        }
        predicted: Cells = {}
        if theory:
            predicted = {"fraction": theory["top1_share_mean"], "cosine": probing.predicted_cosine(probed)}
        settings = [probing.name_of(group), probing.inputs_of(group), group["seq_len"], len(fractions)]
        rows.append((settings, measured, {}, predicted))
    note = (
        "Mean ± standard deviation across seeds. Fraction: of inputs that the top-1 token answers; × uniform: its "
        "count over the expected top count of as many uniform draws. Cosine: between last-token states of different "
        "sequences after the last block. Top-1 tokens: how many different ones the seeds have; where the fraction is a "
        "few inputs, which token comes first is noise, and another set of inputs gives another."
    )
    if any(measured["top-1 tokens"] == (integer, 1) for _, measured, _, _ in rows):
        # In all of these the embeddings are tied and shared (settings.py), and so are the inputs.
        note += (
            " Where they have one, the preference is too weak to show: models with tied embeddings then answer each "
            "input with its own last token, and the most frequent of these is the same for every seed."
        )
    return [
        tabulate(
            "Strength of the preference by architecture, size and length", ["model", "inputs", "T", "seeds"], rows, note
        )
    ]


def findings1_claims(record: Record) -> Sequence[Claim]:
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
            key=f"different top-1 tokens of {len(probed['records'])} seeds",
        )
    ]


FINDINGS1 = Experiment(
    name="findings1",
    title="The preference by architecture, size and length",
    paper="Findings 1.1, 1.2 and 1.3",
    description=(
        "The same measurement over depth, width, length and architecture with many seeds each. By theory the fraction "
        "of the top-1 token grows with width, depth and length; at the laptop scale the seeds resolve that for "
        "width alone. Different seeds of models 256 wide have different top-1 tokens, but from "
        "counts so small (3 to 13 of 500 at the laptop scale) that different inputs may change them too."
    ),
    settings=settings.FINDINGS1,
    cost={"laptop": "3 min 30 s of CPU on two cores", "paper": "needs a GPU"},
    run=probing.run_groups,
    takes_precision=True,
    tables=findings1_tables,
    claims=findings1_claims,
)


def overlap(probed: probing.Probed) -> tuple[int, int, float, float]:
    """Count seeds whose direction picks the top-1 token and all seeds; add a 95% Clopper–Pearson interval."""
    hits = sum(row["direction_matches_top1"] for row in probed["records"])
    n = len(probed["records"])
    return hits, n, *binomial_interval(hits, n)


def finding2_tables(record: Record) -> Sequence[Table]:
    """Show the overlap by configuration."""
    rows = []
    for probed in probing.probed_groups(record):
        group, theory = probed["group"], probed["theory"]
        hits, n, low, high = overlap(probed)
        is_published = (
            group["model"] == "gpt2-nano" and group["seq_len"] == 1024 and n == 100 and group["num_inputs"] == 2_000
        )
        rows.append(
            (
                [probing.name_of(group), group["seq_len"], group["num_inputs"], n],
                {"overlap": (percent(0), hits / n), "95% interval": (fixed(0), f"{100 * low:.0f}–{100 * high:.0f}%")},
                {"overlap": 0.76} if is_published else {},
                {"overlap": theory["overlap"]} if theory else {},
            )
        )
    return [
        tabulate(
            "Seeds whose contraction direction, projected on the vocabulary, picks their top-1 token",
            ["model", "T", "N", "seeds"],
            rows,
            note=(
                "Overlap: seeds in which the token with the largest logit along the contraction direction is the "
                "top-1 token. The direction is the mean, over all N inputs, of the final norm's outputs scaled to "
                "length 1. 95% interval: Clopper and Pearson's. The paper reports 76% for 100 GPT-2 models at T = "
                "1,024 and N = 2,000."
            ),
        )
    ]


def finding2_claims(record: Record) -> Sequence[Claim]:
    """Claim the overlap of the first group."""
    probed = probing.probed_groups(record)[0]
    hits, n, _, _ = overlap(probed)
    name = probing.name_of(probed["group"])
    theory = probed["theory"]["overlap"]
    return [
        Claim(
            f"The contraction direction picks the top-1 token, {n} seeds of {name}",
            hits / n,
            None,
            theory,
            percent(0),
        )
    ]


def finding2_headline(record: Record) -> str:
    """State the chance level, for contrast."""
    probed = probing.probed_groups(record)[0]
    hits, n, _, _ = overlap(probed)
    chance = f"by chance it would in 1 of {probed['inputs']['vocab_size']:,}"
    return f"In {hits} of {n} seeds the contraction direction names the top-1 token; {chance}."


FINDING2 = Experiment(
    name="finding2",
    title="The direction of contraction and the top-1 token",
    paper="Finding 2.2",
    description=(
        "If inputs of an untrained model all lean along one direction, the token that this direction itself would "
        "predict should be the one that is predicted most often. The paper finds so in 76% of its seeds; theory says "
        "how often it is here."
    ),
    settings=settings.FINDING2,
    cost={"laptop": "40 seconds on two cores", "paper": "needs a GPU"},
    run=probing.run_groups,
    takes_precision=True,
    tables=finding2_tables,
    claims=finding2_claims,
    headline=finding2_headline,
)

EXPERIMENTS = {"findings1": FINDINGS1} | variants(
    FINDING2,
    finding2_64=dict(
        title="The direction of contraction and the top-1 token, T = 64",
        description="As finding2, with the paper's model and its hundred seeds at T = 64 in place of 1,024.",
        settings=settings.FINDING2_64,
        cost={"paper": "a minute on an H100, with --precision bf16x3"},
    ),
    finding2_nano=dict(
        title="The direction of contraction and the top-1 token, in a hundred seeds of the paper's model",
        description=(
            "As finding2, with GPT-2 nano and a hundred seeds. The length is 16 in place of 1,024: theory gives the "
            "overlap for either, and the measurement stands next to theory's value for its own length."
        ),
        settings=settings.FINDING2_NANO,
        cost={"paper": "about an hour and a quarter on two cores"},
    ),
)
