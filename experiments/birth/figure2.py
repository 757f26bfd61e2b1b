"""Figure 2: inter-sequence contraction by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, from_log10, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate


def panels(record: Record) -> Sequence[Panel]:
    """Draw the cosine by layer, every group and seed, with theory's interval."""
    drawn = []
    for probed in probing.probed_groups(record):
        group = probed["group"]
        figure, ax = figures.new()
        # Theory's mean and band, where the kind of inputs has a theory.
        if probed["theory"]:
            probing.draw_theory(ax, probed, "theory: mean; band: 99% of seeds")
        for index, cosines in enumerate(probing.values(probed, "contraction", "inter_cosine_by_layer")):
            name = "measured, one line a seed" if index == 0 else ""
            figures.line(ax, probing.blocks(probed), cosines, name=name, markers=True)
        figures.count_axis(ax)
        figures.label(ax, "after block", "mean cosine between sequences")
        figures.legend(ax)
        drawn.append(
            Panel(
                figure,
                f"{probing.name_of(group)}, T = {group['seq_len']}, N = {group['num_inputs']:,} "
                f"{probing.inputs_of(group)}: mean pairwise cosine of last-token states of different sequences.",
            )
        )
    return drawn


def tables(record: Record) -> Sequence[Table]:
    """Show the last block and the final norm."""
    rows: list[tuple[Any, ...]] = []
    for probed, row in probing.each_seed(record):
        theory, pulled = probed["theory"], row["contraction"]
        measured = {
            "last block": (significant(3), pulled["inter_cosine_by_layer"][-1]),
            "final norm": (significant(3), pulled["inter_cosine_final"]),
            "p": (from_log10(3), pulled["log10_p"]),
        }
        # Only some kinds of inputs have a theory.
        predicted = {}
        if theory:
            predicted = {"last block": (theory["inter_cosine_by_layer"][-1], theory["inter_cosine_by_layer_std"][-1])}
        rows.append((probing.labels(probed["group"], row["seed"]), measured, {}, predicted))
    return [
        tabulate(
            "Inter-sequence cosine of last-token states",
            probing.HEADS,
            rows,
            note=(
                "Pairs of random sequences that end in the same token are left out. p: Rayleigh's test of uniform "
                "directions, in log space; its χ² form is exact for many inputs and an upper bound far out. "
                "Theory: mean ± standard deviation across seeds. The paper draws Figure 2 for T = 1,024 and prints no "
                "numbers; Table 2 prints 0.46 for Gaussian inputs."
            ),
            configuration="other",
        )
    ]


def claims(record: Record) -> Sequence[Claim]:
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


EXPERIMENT = Experiment(
    name="figure2",
    title="Representations contract along one direction",
    paper="Figure 2",
    description=(
        "Last-token states of different random sequences become more alike from block to block. The dashed line is "
        "mean-field theory: it knows the architecture, not the seed, and nothing in it is fitted."
    ),
    settings={
        "smoke": {"seeds": [42, 43], "groups": [probing.GPT2_SMOKE]},
        "laptop": {"seeds": [42, 43], "groups": [probing.GPT2_LAPTOP, probing.LLAMA_LAPTOP]},
        "paper": {"seeds": [42, 43], "groups": [probing.GPT2_PAPER[-1], probing.LLAMA_PAPER[-1]]},
    },
    cost={"smoke": "seconds", "laptop": "shared with table1", "paper": "shared with table1"},
    run=probing.run_groups,
    tables=tables,
    claims=claims,
    figures=panels,
)
