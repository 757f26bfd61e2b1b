"""Figures 1, 2 and 10: what the seeds of each group prefer, and how their representations contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record, variants
from bornbiased_jax.experiments.birth import settings
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, from_log10, identifier, integer, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate


def figure1_panels(record: Record) -> Sequence[Panel]:
    """Draw a pair of panels for each group: ranked counts; cosine by layer with its standard deviation over pairs."""
    panels = []
    for probed in probing.probed_groups(record):
        group, first = probed["group"], probed["records"][0]
        preference = first["preference"]
        figure, (left, right) = figures.new(columns=2, width=9.0)
        # (a) ranked counts of the first seed.
        figures.ranked_bars(
            left,
            preference["ranked_counts"][:20],
            preference["ranked_ids"][:20],
            baseline=preference["uniform_top_count"],
            baseline_name="expected top count, uniform",
        )
        figures.label(
            left,
            "token id, by rank",
            f"times predicted in {preference['num_inputs']:,}",
            "(a) most frequent predictions",
        )
        # (b) cosine by layer, ± std over pairs, with theory.
        probing.draw_pairs(right, probed)
        if probed["theory"]:
            theory = probed["theory"]["inter_cosine_by_layer"]
            figures.line(right, probing.blocks(probed), theory, name="theory", color=figures.THEORY, dashed=True)
        figures.count_axis(right)
        figures.label(right, "after block", "cosine between sequences", "(b) contraction")
        figures.legend(right)
        panels.append(
            Panel(
                figure,
                f"{probing.name_of(group)}, seed {first['seed']}, T = {group['seq_len']}, {probing.inputs_of(group)}. "
                "(a) The most predicted tokens; the dashed line is the top count that "
                f"{preference['num_inputs']:,} uniform draws would have. "
                f"(b) Mean cosine between last-token states of different sequences after each block.",
            )
        )
    return panels


FIGURE1 = Experiment(
    name="figure1",
    title="Initialized models are not blank slates",
    paper="Figure 1",
    description=(
        "The same initializations as in Table 1, drawn: how often each of the most predicted tokens is predicted, and "
        "how far the last-token states of different random sequences point the same way."
    ),
    settings=settings.FIGURE1,
    cost={"laptop": "shared with table1", "paper": "shared with table1"},
    run=probing.run_groups,
    takes_data=("laptop",),
    figures=figure1_panels,
)


def figure2_panels(record: Record) -> Sequence[Panel]:
    """Draw the cosine by layer, every group and seed, with theory's interval."""
    panels = []
    for probed in probing.probed_groups(record):
        group = probed["group"]
        figure, ax = figures.new()
        # Theory's mean and band, where the kind of inputs has a theory.
        if probed["theory"]:
            probing.draw_theory(ax, probed, "theory: mean; band: 99% of seeds")
        probing.draw_seeds(ax, probed, "measured, one line a seed")
        figures.count_axis(ax)
        figures.label(ax, "after block", "mean cosine between sequences")
        figures.legend(ax)
        panels.append(
            Panel(
                figure,
                f"{probing.name_of(group)}, T = {group['seq_len']}, N = {group['num_inputs']:,} "
                f"{probing.inputs_of(group)}: mean pairwise cosine of last-token states of different sequences.",
            )
        )
    return panels


def figure2_tables(record: Record) -> Sequence[Table]:
    """Show the last block and the final norm."""
    rows: list[tuple[Any, ...]] = []
    for probed, row in probing.each_seed(record):
        pulled = row["contraction"]
        measured = {
            "last block": (significant(3), pulled["inter_cosine_by_layer"][-1]),
            "final norm": (significant(3), pulled["inter_cosine_final"]),
            "p": (from_log10(3), pulled["log10_p"]),
        }
        # Only some kinds of inputs have a theory.
        predicted = {"last block": probing.predicted_cosine(probed)} if probed["theory"] else {}
        rows.append((probing.labels(probed["group"], row["seed"]), measured, {}, predicted))
    return [
        tabulate(
            "Inter-sequence cosine of last-token states",
            probing.HEADS,
            rows,
            note=(
                "Mean cosine between the last-token states of two different sequences, after the last block and "
                "after the final norm. Pairs of random sequences that end in the same token are left out. p: "
                "Rayleigh's test that the states point in uniform directions, in log space; its χ² form is exact for "
                "many inputs, and an upper bound far out. Theory: mean ± standard deviation across seeds. The paper "
                "draws Figure 2 for T = 1,024 and prints no numbers; its Table 2 prints 0.46 for Gaussian inputs."
            ),
        )
    ]


def figure2_claims(record: Record) -> Sequence[Claim]:
    """Claim the last block's cosine of the first group."""
    probed = probing.probed_groups(record)[0]
    group, values = probed["group"], probing.cosines(probed)
    return [
        Claim(
            f"Cosine between last-token states of different sequences, {probing.name_of(group)}, T = {group['seq_len']}"
            f"{probing.mean_of(values)}",
            sum(values) / len(values),
            theory=probed["theory"]["inter_cosine_by_layer"][-1],
            format=fixed(3),
            key="cosine between states of unrelated inputs",
        )
    ]


FIGURE2 = Experiment(
    name="figure2",
    title="Representations contract along one direction",
    paper="Figure 2",
    description=(
        "Last-token states of different random sequences become more alike from block to block. The dashed line is "
        "mean-field theory: it knows the architecture, not the seed, and nothing in it is fitted."
    ),
    settings=settings.FIGURE2,
    cost={"laptop": "shared with table1", "paper": "shared with table1"},
    run=probing.run_groups,
    tables=figure2_tables,
    claims=figure2_claims,
    figures=figure2_panels,
)


def figure10_tables(record: Record) -> Sequence[Table]:
    """Show the top dimension after every block and after the final norm."""
    page_tables = []
    for probed in probing.probed_groups(record):
        group, first = probed["group"], probed["records"][0]
        preference = first["preference"]
        columns = zip(
            preference["top_dimension_by_layer"],
            preference["top_dimension_count_by_layer"],
            preference["top_dimension_log10_p_by_layer"],
            strict=True,
        )
        names = [str(i + 1) for i in range(len(preference["top_dimension_by_layer"]) - 1)] + ["final norm"]
        rows = [
            ([name], {"dimension": (identifier, d), "count": (integer, c), "p": (from_log10(3), p)})
            for name, (d, c, p) in zip(names, columns, strict=True)
        ]
        page_tables.append(
            tabulate(
                f"{probing.name_of(group)}, seed {first['seed']}, N = {group['num_inputs']:,}, T = {group['seq_len']}",
                ["after block"],
                rows,
                note=(
                    "The hidden dimension that is the largest of all D for the most of the N inputs, and for how "
                    "many. p: binomial tail of that count, corrected for D dimensions."
                ),
            )
        )
    return page_tables


def figure10_panels(record: Record) -> Sequence[Panel]:
    """Draw tokens above, dimensions below, ranked."""
    panels = []
    for probed in probing.probed_groups(record):
        group, preference = probed["group"], probed["records"][0]["preference"]
        cfg = preset(group["model"], **group["changes"])
        figure, (top, bottom) = figures.new(rows=2, height=5.2)
        # Tokens by count.
        figures.ranked_bars(
            top,
            preference["ranked_counts"][:30],
            baseline=preference["num_inputs"] / cfg.vocab_size,
            baseline_name="N / V",
        )
        figures.label(top, "rank", "times predicted", "tokens")
        # Dimensions by count.
        figures.ranked_bars(
            bottom,
            preference["final_dimension_counts"][:30],
            baseline=preference["num_inputs"] / cfg.d_model,
            baseline_name="N / D",
        )
        figures.label(bottom, "rank", "times the largest", "dimensions of the final norm's output")
        panels.append(
            Panel(
                figure,
                f"{probing.name_of(group)}, seed {probed['records'][0]['seed']}, T = {group['seq_len']}, "
                f"N = {group['num_inputs']:,}: how often each token "
                "has the largest logit (top) and each hidden dimension the largest value (bottom); dashed: the mean "
                "over all, close to the axis where tokens are many.",
            )
        )
    return panels


FIGURE10 = Experiment(
    name="figure10",
    title="Hidden dimensions have preferences in every layer",
    paper="Figure 10, Finding 1 (extended)",
    description=(
        "Which hidden dimension of the last-token state is the largest, after every block and after the final norm."
    ),
    settings=settings.FIGURE10,
    cost={"laptop": "shared with table1", "paper": "needs a GPU"},
    run=probing.run_groups,
    tables=figure10_tables,
    figures=figure10_panels,
)

EXPERIMENTS = {"figure1": FIGURE1, "figure2": FIGURE2} | variants(
    FIGURE10,
    figure10_64=dict(
        title="Hidden dimensions have preferences in every layer: the paper's model and N, T = 64",
        settings=settings.FIGURE10_64,
        cost={"paper": "up to 2 h 20 min on two cores that did other work as well"},
    ),
)
