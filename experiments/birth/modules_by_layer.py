"""Figures 4 and 7: the cosine between sequences by layer, of the full model and of its modules alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.experiments.birth import settings
from bornbiased_jax.experiments.birth.modules import COST, by_variant
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, significant
from bornbiased_jax.report.tables import Cells, Claim, Panel, Table, tabulate


def figure4_panels(record: Record) -> Sequence[Panel]:
    """Draw mean and standard deviation over pairs after each block, with theory's interval for the mean."""
    (probed,) = probing.probed_groups(record)
    group = probed["group"]
    figure, ax = figures.new()
    probing.draw_pairs(ax, probed)
    probing.draw_theory(ax, probed, "theory, 99% of seeds")
    figures.label(ax, "after MLP block", "cosine between sequences")
    ax.locator_params(axis="x", integer=True)
    figures.legend(ax)
    caption = (
        f"{probing.name_of(group)}, seed {probed['records'][0]['seed']}, N = {group['num_inputs']:,} Gaussian "
        "inputs. The blue band is the standard deviation from pair to pair of inputs, the dashed line and its band are "
        "what theory says of the mean."
    )
    return [Panel(figure, caption)]


def figure4_tables(record: Record) -> Sequence[Table]:
    """Show mean ± standard deviation over pairs, a row a block."""
    (probed,) = probing.probed_groups(record)
    rows: list[tuple[Any, ...]] = []
    for layer, block in enumerate(probing.blocks(probed)):
        measured: Cells = {}
        for row in probed["records"][:4]:
            mean, std = (row["contraction"][f"inter_cosine_{prefix}by_layer"][layer] for prefix in ("", "std_"))
            measured[f"seed {row['seed']}"] = (fixed(3), (mean, std))
        predicted = {"any seed": probing.predicted_cosine(probed, layer)}
        rows.append(([block], {**measured, "any seed": (fixed(3), None)}, {}, predicted))
    note = (
        "Cosine between the states of different Gaussian inputs. A seed's column: mean ± standard deviation over "
        "pairs of inputs; the theory column: mean ± standard deviation of that mean over seeds. The paper draws "
        "Figure 4 and prints no numbers."
    )
    title = "Cosine between sequences after each MLP block"
    return [tabulate(title, ["block"], rows, note)]


def figure4_claims(record: Record) -> Sequence[Claim]:
    """Claim a steady rise."""
    (probed,) = probing.probed_groups(record)
    rises = np.diff(probing.curves(probed)).min(axis=1)
    theory = np.diff(probed["theory"]["inter_cosine_by_layer"]).min()
    return [
        Claim(
            f"Smallest rise of the cosine from one MLP block to the next, any of {len(rises)} seeds",
            float(rises.min()),
            theory=float(theory),
        )
    ]


FIGURE4 = Experiment(
    name="figure4",
    title="Every MLP block contracts further",
    paper="Figure 4",
    description=(
        "Blocks of LayerNorm, MLP and residual without attention, on Gaussian inputs. No length enters, so that this "
        "is the paper's own configuration at the cost of one position."
    ),
    settings=settings.FIGURE4,
    cost={"laptop": "27 s on two cores; shared with table2", "paper": "the same"},
    run=probing.run_groups,
    tables=figure4_tables,
    claims=figure4_claims,
    figures=figure4_panels,
)


def measured_by_layer(probed: probing.Probed) -> np.ndarray:
    """Return the mean across seeds of the cosine after each block [L]."""
    return np.mean(probing.curves(probed), axis=0)


def figure7_panels(record: Record) -> Sequence[Panel]:
    """Draw all three by layer, every seed, with theory."""
    groups_by_variant = by_variant(record)
    figure, ax = figures.new(height=3.8)
    for index, (name, probed) in enumerate(groups_by_variant.items()):
        probing.draw_theory(ax, probed, color=figures.SERIES[index])
        probing.draw_seeds(ax, probed, name, figures.SERIES[index])
    figures.label(ax, "after block", "mean cosine between sequences")
    ax.locator_params(axis="x", integer=True)
    figures.legend(ax)
    group = groups_by_variant["full model"]["group"]
    caption = (
        f"{probing.name_of(group)}, T = {group['seq_len']}, Gaussian inputs, one line a seed. Dashed, with "
        "99% of seeds: theory."
    )
    return [Panel(figure, caption)]


def figure7_tables(record: Record) -> Sequence[Table]:
    """Show the mean across seeds after each block."""
    variants = by_variant(record)
    rows: list[tuple[Any, ...]] = []
    for layer, block in enumerate(probing.blocks(variants["full model"])):
        measured = {
            name: (significant(3), float(measured_by_layer(probed)[layer])) for name, probed in variants.items()
        }
        predicted = {name: probed["theory"]["inter_cosine_by_layer"][layer] for name, probed in variants.items()}
        rows.append(([block], measured, {}, predicted))
    length = variants["full model"]["group"]["seq_len"]
    note = (
        "Mean across seeds of the cosine between the last-token states of different sequences of Gaussian vectors, T "
        f"= {length} where there is attention. In the first block attention meets states that have nothing in common "
        "yet and can amplify nothing. The paper draws Figure 7 and prints no numbers."
    )
    return [tabulate("Cosine between sequences after each block", ["block"], rows, note)]


def figure7_claims(record: Record) -> Sequence[Claim]:
    """Claim what attention adds to the MLPs' contraction, after the first block and after the last."""
    groups_by_variant = by_variant(record)
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


FIGURE7 = Experiment(
    name="figure7",
    title="Attention amplifies what the MLP seeded",
    paper="Figure 7, Finding 3.2a",
    description=(
        "The initializations of Table 2, layer by layer: attention alone leaves different sequences orthogonal; "
        "together with MLPs it contracts more than they do alone."
    ),
    settings=settings.MODULES,
    cost=COST,
    run=probing.run_groups,
    tables=figure7_tables,
    claims=figure7_claims,
    figures=figure7_panels,
)

EXPERIMENTS = {experiment.name: experiment for experiment in (FIGURE4, FIGURE7)}
