"""Finding 2.2: the contraction direction's own prediction is the top-1 token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from scipy import stats

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.report.numbers import fixed, percent
from bornbiased_jax.report.tables import Claim, Table, tabulate


def overlap(probed: probing.Probed) -> tuple[int, int, float, float]:
    """Count seeds whose direction picks the top-1 token and all seeds; add a 95% Clopper–Pearson interval."""
    hits = sum(row["direction_matches_top1"] for row in probed["records"])
    n = len(probed["records"])
    interval = stats.binomtest(hits, n).proportion_ci(method="exact")
    return hits, n, float(interval.low), float(interval.high)


def tables(record: Record) -> Sequence[Table]:
    """Show the overlap by configuration."""
    rows = []
    for probed in probing.probed_groups(record):
        group, theory = probed["group"], probed["theory"]
        hits, n, low, high = overlap(probed)
        same = group["model"] == "gpt2-nano" and group["seq_len"] == 1024 and n == 100 and group["num_inputs"] == 2_000
        rows.append(
            (
                [probing.name_of(group), group["seq_len"], group["num_inputs"], n],
                {"overlap": (percent(0), hits / n), "95% interval": (fixed(0), f"{100 * low:.0f}–{100 * high:.0f}%")},
                {"overlap": 0.76} if same else {},
                {"overlap": theory["overlap"]} if theory else {},
                "paper" if same else "other",
            )
        )
    return [
        tabulate(
            "Seeds whose contraction direction, projected on the vocabulary, picks their top-1 token",
            ["model", "T", "N", "seeds"],
            rows,
            note=(
                "The direction is the mean unit output of the final norm over all inputs. The paper reports 76% for "
                "100 GPT-2 models at T = 1,024 and N = 2,000."
            ),
        )
    ]


def claims(record: Record) -> Sequence[Claim]:
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


def headline(record: Record) -> str:
    """State the chance level, for contrast."""
    probed = probing.probed_groups(record)[0]
    hits, n, _, _ = overlap(probed)
    return f"In {hits} of {n} seeds the contraction direction names the top-1 token; chance would be 1 in thousands."


WIDE: dict[str, Any] = dict(num_layers=8, d_model=256, d_ff=1024)

EXPERIMENT = Experiment(
    name="finding2",
    title="The direction of contraction is the preference",
    paper="Finding 2.2",
    description=(
        "If inputs of an untrained model all lean along one direction, the token that this direction itself would "
        "predict should be the one that is predicted most often. The paper finds so in 76% of its seeds; theory says "
        "how often it is here."
    ),
    settings={
        "smoke": {"seeds": [0, 1, 2, 3], "groups": [probing.group("gpt2-tiny", range(4), 16, 64, **probing.SMOKE)]},
        "laptop": {
            "seeds": list(range(16)),
            "groups": [probing.group("gpt2-tiny", range(16), 64, 500, vocab_size=1024, **WIDE)],
        },
        "paper": {"seeds": list(range(100)), "groups": [probing.group("gpt2-nano", range(100), 1024, 2_000)]},
    },
    cost={"smoke": "seconds", "laptop": "40 seconds on two cores", "paper": "needs a GPU"},
    run=probing.run_groups,
    tables=tables,
    claims=claims,
    headline=headline,
)

EXPERIMENTS = {
    "finding2": EXPERIMENT,
    "finding2_nano": dataclasses.replace(
        EXPERIMENT,
        name="finding2_nano",
        title="The direction of contraction is the preference, in a hundred seeds of the paper's model",
        description=(
            "As finding2, with GPT-2 nano and a hundred seeds. The length is 16 in place of 1,024: theory gives the "
            "overlap for either, and the measurement stands next to theory's value for its own length."
        ),
        settings={
            "smoke": EXPERIMENT.settings["smoke"],
            "paper": {"seeds": list(range(100)), "groups": [probing.group("gpt2-nano", range(100), 16, 2_000)]},
        },
        cost={"smoke": "seconds", "paper": "about an hour and a quarter on two cores"},
    ),
}
