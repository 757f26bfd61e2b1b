"""The demo's first pillar: preference and contraction of a paper-size model before training."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.experiments.birth import seed_figures, table1
from bornbiased_jax.experiments.demo import settings
from bornbiased_jax.report.numbers import fixed, from_log10, percent
from bornbiased_jax.report.tables import Claim


def claims(record: Record) -> Sequence[Claim]:
    """Claim the top-1 fraction and the cosine between states."""
    return [*table1.claims(record), *seed_figures.figure2_claims(record)]


def headline(record: Record) -> str:
    """State each seed's top-1 token with its p, and the cosine with theory's."""
    probed = probing.probed_groups(record)[0]
    group, theory = probed["group"], probed["theory"]
    answers = [
        f"seed {row['seed']} answers {percent(1)(row['preference']['top1_share'])} of them with token "
        f"{row['preference']['top1_id']} (p = {from_log10(1)(row['preference']['log10_p'])})"
        for row in probed["records"]
    ]
    cosines = probing.cosines(probed)
    return (
        f"Preference: {probing.name_of(group)}, untrained, on {group['num_inputs']:,} random inputs of "
        f"{group['seq_len']} tokens: {', '.join(answers)}; the states of two different inputs have a mean cosine of "
        f"{fixed(2)(sum(cosines) / len(cosines))} after the last block, where theory says "
        f"{fixed(2)(theory['inter_cosine_by_layer'][-1])} with nothing fitted."
    )


EXPERIMENT = Experiment(
    name="demo_preference",
    title="An untrained model prefers some tokens",
    paper="Table 1, Figures 1 and 2",
    description=(
        "A model of the paper's size reads random sequences; its prediction is the token with the largest logit at the "
        "last position. The number of inputs is a tenth of the paper's, so that two cores need a minute."
    ),
    settings=settings.PREFERENCE,
    cost={"laptop": "about a minute on two cores"},
    run=probing.run_groups,
    tables=table1.tables_with_contraction,
    figures=seed_figures.figure1_panels,
    claims=claims,
    headline=headline,
)
