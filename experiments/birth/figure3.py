"""Figure 3: ranked top-1 tokens of the full model and of each module alone."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.experiments._shared import ablations, probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import from_log10, percent
from bornbiased_jax.report.tables import Panel, Quantity, Row, Table

NUM_RANKED = 20


def panels(record: Record) -> Sequence[Panel]:
    """Draw the first seed's most predicted tokens, one panel a variant on one scale."""
    groups_by_variant = ablations.by_variant(record)
    figure, axes = figures.new(columns=len(groups_by_variant), width=3.3 * len(groups_by_variant), height=3.0)
    highest = 0.0
    for ax, (name, probed) in zip(axes, groups_by_variant.items(), strict=True):
        preference = probed["records"][0]["preference"]
        fractions = [100 * count / preference["num_inputs"] for count in preference["ranked_counts"][:NUM_RANKED]]
        level = 100 * preference["uniform_top_count"] / preference["num_inputs"]
        figures.ranked_bars(ax, fractions, preference["ranked_ids"][:NUM_RANKED], level, "top share, uniform")
        figures.label(ax, "token id, by rank", "% of inputs", name)
        highest = max(highest, level, *fractions)
    for ax in axes:
        ax.set_ylim(0, 1.05 * highest)
    group = groups_by_variant["full model"]["group"]
    caption = (
        f"{probing.name_of(group)}, seed {group['seeds'][0]}, Gaussian inputs: how often each of the most "
        f"predicted tokens is predicted, by all modules (T = {group['seq_len']}) and by each alone. The "
        "dashed line is the fraction that the top-1 token of as many uniform draws would have."
    )
    return [Panel(figure, caption)]


def tables(record: Record) -> Sequence[Table]:
    """Show the top-1 fraction, every variant and seed."""
    rows = []
    for probed, row in probing.each_seed(record):
        theory, preference = probed["theory"], row["preference"]
        level = preference["uniform_top_count"] / preference["num_inputs"]
        measured = {"fraction": preference["top1_share"], "uniform": level, "p": preference["log10_p"]}
        predicted = {"fraction": theory["top1_share_mean"], "p": theory["log10_p"]}
        rows.append(Row(ablations.labels(probed["group"], row["seed"]), measured, {}, predicted))
    note = (
        "Fraction of N Gaussian inputs that the top-1 token takes. Uniform: the expected fraction of the "
        "top-1 token of N uniform draws. p: binomial tail, corrected for the vocabulary (Appendix B.2). "
        "Theory: the mean across seeds. The paper draws Figure 3 and prints no numbers."
    )
    quantities = [Quantity("fraction", percent(2)), Quantity("uniform", percent(2)), Quantity("p", from_log10(3))]
    return [Table("The top-1 token of each module", ablations.HEADS, quantities, rows, note)]


EXPERIMENT = Experiment(
    name="figure3",
    title="The MLP prefers some tokens, attention alone prefers none",
    paper="Figure 3, Finding 3.1",
    description=(
        "The initializations of Table 2, asked for their next token: the model of self-attention alone answers as "
        "evenly as chance, MLPs alone have preferences, and both together favor them most."
    ),
    settings=ablations.SETTINGS,
    cost=ablations.COST,
    run=probing.run_groups,
    tables=tables,
    figures=panels,
)
