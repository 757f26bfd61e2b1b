"""Figure 2: inter-sequence contraction by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, from_log10, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate
from experiments._shared import births
from experiments.base import Experiment, Record


def panels(record: Record) -> Sequence[Panel]:
    """Draw the cosine by layer, every group and seed, with theory's interval."""
    drawn = []
    for probed in record["result"]["groups"]:
        group, theory = probed["group"], probed["theory"]
        figure, ax = figures.new()
        depth = list(range(1, len(probed["records"][0]["contraction"]["inter_cosine_by_layer"]) + 1))
        # Theory's mean and band, where the kind of inputs has a theory.
        if theory:
            figures.line(
                ax,
                depth,
                theory["inter_cosine_by_layer"],
                theory["inter_cosine_by_layer_low"],
                theory["inter_cosine_by_layer_high"],
                name="theory: mean; band: 99% of seeds",
                colour=figures.THEORY,
                dashed=True,
            )
        for index, birth in enumerate(probed["records"]):
            name = "measured, one line a seed" if index == 0 else ""
            figures.line(ax, depth, birth["contraction"]["inter_cosine_by_layer"], name=name, markers=True)
        figures.count_axis(ax)
        figures.label(ax, "after block", "mean cosine between sequences")
        figures.legend(ax)
        drawn.append(
            Panel(
                figure,
                f"{births.name_of(group)}, T = {group['seq_len']}, N = {group['num_inputs']:,} "
                f"{births.inputs_of(group)}: mean pairwise cosine of last-token states of different sequences.",
            )
        )
    return drawn


def tables(record: Record) -> Sequence[Table]:
    """Show the last block and the final norm."""
    rows: list[tuple[Any, ...]] = []
    for probed in record["result"]["groups"]:
        group, theory = probed["group"], probed["theory"]
        for birth in probed["records"]:
            pulled = birth["contraction"]
            measured = {
                "last block": (significant(3), pulled["inter_cosine_by_layer"][-1]),
                "final norm": (significant(3), pulled["inter_cosine_final"]),
                "p": (from_log10(3), pulled["log10_p"]),
            }
            # Only some kinds of inputs have a theory.
            predicted = {}
            if theory:
                std = theory["inter_cosine_by_layer_std"][-1]
                predicted = {"last block": (theory["inter_cosine_by_layer"][-1], std)}
            settings = [
                births.name_of(group),
                births.inputs_of(group),
                group["num_inputs"],
                group["seq_len"],
                birth["seed"],
            ]
            rows.append((settings, measured, {}, predicted))
    return [
        tabulate(
            "Inter-sequence cosine of last-token states",
            ["model", "inputs", "N", "T", "seed"],
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
    probed = record["result"]["groups"][0]
    group = probed["group"]
    values = [birth["contraction"]["inter_cosine_by_layer"][-1] for birth in probed["records"]]
    return [
        Claim(
            f"Cosine between last-token states of different sequences, {births.name_of(group)}, T = {group['seq_len']}"
            f"{births.mean_of(values)}",
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
        "smoke": {"seeds": [42, 43], "groups": [births.GPT2_SMOKE]},
        "laptop": {"seeds": [42, 43], "groups": [births.GPT2_LAPTOP, births.LLAMA_LAPTOP]},
        "paper": {"seeds": [42, 43], "groups": [births.GPT2_PAPER[-1], births.LLAMA_PAPER[-1]]},
    },
    cost={"smoke": "seconds", "laptop": "shared with table1", "paper": "shared with table1"},
    run=births.run_groups,
    tables=tables,
    claims=claims,
    figures=panels,
)
