"""The demo's fourth pillar: preference and contraction of one architecture under four initialization schemes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.experiments.demo import settings
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, mean_std, percent
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate


def _scheme(probed: probing.Probed) -> str:
    return str(probed["group"]["changes"]["init"])


def _mean_top1(probed: probing.Probed) -> float:
    return float(np.mean(probing.values(probed, "preference", "top1_share")))


def _mean_cosine(probed: probing.Probed) -> float:
    return float(np.mean(probing.cosines(probed)))


def tables(record: Record) -> Sequence[Table]:
    """Show contraction and top-1 fraction of every scheme, measured and predicted."""
    rows: list[tuple[Any, ...]] = []
    for probed in probing.probed_groups(record):
        cosines, tops = probing.cosines(probed), probing.values(probed, "preference", "top1_share")
        measured = {
            "cosine after the last block": (fixed(3), mean_std(cosines)),
            "top-1 fraction": (percent(2), mean_std(tops)),
        }
        predicted = {
            "cosine after the last block": probing.predicted_cosine(probed),
            "top-1 fraction": probed["theory"]["top1_share_mean"],
        }
        rows.append(([_scheme(probed)], measured, {}, predicted))
    group = probing.probed_groups(record)[0]["group"]
    return [
        tabulate(
            "Initialization schemes",
            ["scheme"],
            rows,
            note=(
                f"{group['model']} with {group['changes']['num_layers']} blocks, V = {group['changes']['vocab_size']}; "
                f"N = {group['num_inputs']:,}, T = {group['seq_len']}; mean ± standard deviation of "
                f"{len(group['seeds'])} seeds. “balanced” removes the mean over neurons of the MLPs' output weights; "
                "“mirrored” has neurons in pairs of opposite sign."
            ),
        )
    ]


def panels(record: Record) -> Sequence[Panel]:
    """Draw the mean cosine by block of every scheme, with theory."""
    figure, ax = figures.new()
    for index, probed in enumerate(probing.probed_groups(record)):
        color = figures.SERIES[index]
        by_seed = np.asarray(probing.values(probed, "contraction", "inter_cosine_by_layer"))
        low, high = by_seed.min(axis=0), by_seed.max(axis=0)
        blocks = probing.blocks(probed)
        figures.line(ax, blocks, by_seed.mean(axis=0), (low, high), name=_scheme(probed), color=color, markers=True)
        figures.line(ax, blocks, probed["theory"]["inter_cosine_by_layer"], color=color, dashed=True)
    figures.count_axis(ax)
    figures.label(ax, "after block", "mean cosine between sequences")
    figures.legend(ax)
    return [Panel(figure, "How alike the states of different inputs become; bands span the seeds, dashed: theory.")]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the cosine of the first and of every other scheme."""
    return [
        Claim(
            f"Cosine between states of different inputs under {_scheme(probed)}"
            f"{probing.mean_of(probed['group']['seeds'])}",
            _mean_cosine(probed),
            theory=probed["theory"]["inter_cosine_by_layer"][-1],
            format=fixed(3),
        )
        for probed in probing.probed_groups(record)
    ]


def headline(record: Record) -> str:
    """Compare the schemes in cosine and top-1 fraction."""
    groups = probing.probed_groups(record)
    group = groups[0]["group"]
    outcomes = [
        f"{_scheme(probed)} {fixed(2)(_mean_cosine(probed))} "
        f"({fixed(2)(probed['theory']['inter_cosine_by_layer'][-1])}) and {percent(1)(_mean_top1(probed))}"
        for probed in groups
    ]
    return (
        f"Initialization: the scheme alone sets how alike the states of different inputs are (their mean cosine; in "
        f"brackets, what theory says) and what fraction of inputs gets the most predicted token: {'; '.join(outcomes)} "
        f"({group['model']} with {group['changes']['num_layers']} blocks, {group['num_inputs']:,} inputs of "
        f"{group['seq_len']} tokens, mean of {len(group['seeds'])} seeds)."
    )


EXPERIMENT = Experiment(
    name="demo_schemes",
    title="What an initialization scheme changes",
    paper="Initialization schemes",
    description=(
        "One architecture with the same inputs and seeds, initialized by four named schemes: larger weights make more "
        "of the mean of what the MLPs write, and weights that sum to zero over the neurons remove most of it."
    ),
    settings=settings.SCHEMES,
    cost={"laptop": "about a minute on two cores"},
    run=probing.run_groups,
    tables=tables,
    figures=panels,
    claims=claims,
    headline=headline,
)
