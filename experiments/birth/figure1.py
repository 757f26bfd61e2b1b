"""Figure 1: the ranked top-1 tokens, and how alike last-token states are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Experiment, Record
from bornbiased_jax.report import figures
from bornbiased_jax.report.tables import Panel


def panels(record: Record) -> Sequence[Panel]:
    """Draw a pair of panels for each group: ranked counts; cosine by layer with its standard deviation over pairs."""
    drawn = []
    for probed in probing.probed_groups(record):
        group, first = probed["group"], probed["records"][0]
        preference, pulled = first["preference"], first["contraction"]
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
        depth = probing.blocks(probed)
        mean, std = np.asarray(pulled["inter_cosine_by_layer"]), np.asarray(pulled["inter_cosine_std_by_layer"])
        figures.line(right, depth, mean, mean - std, mean + std, name="measured, ± std over pairs", markers=True)
        if probed["theory"]:
            theory = probed["theory"]["inter_cosine_by_layer"]
            figures.line(right, depth, theory, name="theory", color=figures.THEORY, dashed=True)
        figures.count_axis(right)
        figures.label(right, "after block", "cosine between sequences", "(b) contraction")
        figures.legend(right)
        drawn.append(
            Panel(
                figure,
                f"{probing.name_of(group)}, seed {first['seed']}, T = {group['seq_len']}, {probing.inputs_of(group)}. "
                "(a) The most predicted tokens; the dashed line is the top count that "
                f"{preference['num_inputs']:,} uniform draws would have. "
                f"(b) Mean cosine between last-token states of different sequences after each block.",
            )
        )
    return drawn


EXPERIMENT = Experiment(
    name="figure1",
    title="Initialized models are not blank slates",
    paper="Figure 1",
    description=(
        "The same initializations as in Table 1, drawn: how often each of the most predicted tokens is predicted, and "
        "how far the last-token states of different random sequences point the same way."
    ),
    settings={
        "smoke": {"seeds": [42, 43], "groups": [probing.GPT2_SMOKE]},
        "laptop": {"seeds": [42, 43], "groups": [probing.GPT2_LAPTOP, probing.LLAMA_LAPTOP, probing.PROSE_LAPTOP]},
        "paper": {"seeds": [42, 43], "groups": [probing.GPT2_PAPER[-1], probing.LLAMA_PAPER[-1]]},
    },
    cost={"smoke": "seconds", "laptop": "shared with table1", "paper": "shared with table1"},
    run=probing.run_groups,
    figures=panels,
)
