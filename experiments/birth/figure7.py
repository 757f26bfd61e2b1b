"""Figure 7: contraction by layer of the full model and of each module alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.experiments._shared import ablations, probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate


def measured_by_layer(probed: probing.Probed) -> np.ndarray:
    """Return the mean across seeds of the cosine after each block [L]."""
    return np.mean(probing.values(probed, "contraction", "inter_cosine_by_layer"), axis=0)


def panels(record: Record) -> Sequence[Panel]:
    """Draw all three by layer, every seed, with theory."""
    groups_by_variant = ablations.by_variant(record)
    figure, ax = figures.new(height=3.8)
    for index, (name, probed) in enumerate(groups_by_variant.items()):
        color, depth = figures.SERIES[index], probing.blocks(probed)
        probing.draw_theory(ax, probed, color=color)
        for number, cosines in enumerate(probing.values(probed, "contraction", "inter_cosine_by_layer")):
            figures.line(ax, depth, cosines, name=name if number == 0 else "", color=color, markers=True)
    figures.label(ax, "after block", "mean cosine between sequences")
    ax.locator_params(axis="x", integer=True)
    figures.legend(ax)
    group = groups_by_variant["full model"]["group"]
    caption = (
        f"{probing.name_of(group)}, T = {group['seq_len']}, Gaussian inputs, one line a seed. Dashed, with "
        "99% of seeds: theory."
    )
    return [Panel(figure, caption)]


def tables(record: Record) -> Sequence[Table]:
    """Show the mean across seeds after each block."""
    groups_by_variant = ablations.by_variant(record)
    curves = {name: measured_by_layer(probed) for name, probed in groups_by_variant.items()}
    rows: list[tuple[Any, ...]] = []
    for layer in range(len(curves["full model"])):
        measured = {name: (significant(3), float(curve[layer])) for name, curve in curves.items()}
        predicted = {
            name: probed["theory"]["inter_cosine_by_layer"][layer] for name, probed in groups_by_variant.items()
        }
        rows.append(([layer + 1], measured, {}, predicted))
    group = groups_by_variant["full model"]["group"]
    note = (
        f"T = {group['seq_len']} where there is attention. Mean across seeds. In the first block attention has "
        "nothing to amplify and adds what differs between sequences, so the full model starts about where "
        "its MLPs alone do; from then on it amplifies what they seeded, the more the longer the sequence. The "
        "paper draws Figure 7 and prints no numbers."
    )
    return [tabulate("Cosine between sequences after each block", ["block"], rows, note, configuration="other")]


def claims(record: Record) -> Sequence[Claim]:
    """Claim what attention adds to the MLPs' contraction, after the first block and after the last."""
    groups_by_variant = ablations.by_variant(record)
    full, alone = groups_by_variant["full model"], groups_by_variant["MLP only"]
    gain = measured_by_layer(full) - measured_by_layer(alone)
    theory = np.subtract(full["theory"]["inter_cosine_by_layer"], alone["theory"]["inter_cosine_by_layer"])
    where = f"{probing.name_of(full['group'])}, T = {full['group']['seq_len']}"
    return [
        Claim(
            f"Cosine of the full model minus that of its MLPs alone after the {name} block, {where}",
            float(gain[layer]),
            theory=float(theory[layer]),
        )
        for name, layer in (("first", 0), ("last", -1))
    ]


EXPERIMENT = Experiment(
    name="figure7",
    title="Attention amplifies what the MLP seeded",
    paper="Figure 7, Finding 3.2a",
    description=(
        "The initializations of Table 2, layer by layer. Attention alone leaves different sequences orthogonal; "
        "together with MLPs it contracts more than they do alone, although its own update has no preferred "
        "direction."
    ),
    settings=ablations.SETTINGS,
    cost=ablations.COST,
    run=probing.run_groups,
    tables=tables,
    claims=claims,
    figures=panels,
)
