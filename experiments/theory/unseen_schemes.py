"""Theory on schemes and shapes that nothing was looked at for, and its standard deviation over seeds at depth.

Stated before the numbers:

- **Cells.** Nine schemes at three shapes (``settings.py``), eight seeds each: 216 models. Neither a scheme
  nor a shape among them was measured while formulas were made (those were: ``theory/test_schemes.py``, ``predicted``).
  A cell counts as predicted if its cosine after the last block lies in the 99% interval; at least 97% should.
- **Depth.** The standard deviation over seeds was once reported as too small by 1.14 at 12 blocks, from a hundred seeds
  (standard error 0.07), and one seed of 24 blocks lay 3.6 of them away. Width 128 at standard deviations multiplied by
  √(D/128) has the pre-activations, attention logits and cosines of the wide model, and fluctuations √(D/128) times as
  large: so neglected terms of higher order weigh more than in the wide model. The ratio of measured to predicted
  standard deviation has standard error 1/√(2 seeds). Fluctuations of depth are wrong if it leaves 1 by three of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record
from bornbiased_jax.experiments.theory import predicted, settings
from bornbiased_jax.report.numbers import fixed, mean_std, significant
from bornbiased_jax.report.tables import Claim, Table, tabulate


def run(context: Context) -> Entry:
    """Probe all groups: cells first, then those of the depth."""
    groups = probing.run_groups(context)
    count = len(context.settings["cells"])
    return {**groups, "cells": count, "coverage": predicted.coverage(groups["groups"][:count])}


def std_ratios(outcome: probing.Probed) -> np.ndarray:
    """Return the measured over the predicted standard deviation of the cosine across seeds, after each block [L]."""
    measured = np.array(probing.curves(outcome))
    return np.asarray(measured.std(axis=0, ddof=1) / outcome["theory"]["inter_cosine_by_layer_std"])


def tables(record: Record) -> Sequence[Table]:
    """Show the cosine of every scheme and shape; and the standard deviation over seeds by depth."""
    groups, count = record["result"]["groups"], record["result"]["cells"]
    covered = record["result"]["coverage"]
    cells = record["settings"]["cells"]
    rows = [predicted.coverage_row(cell, outcome) for cell, outcome in zip(cells, groups[:count], strict=True)]
    note = (
        "Mean ± standard deviation over seeds of the cosine after the last block, on random tokens, with embeddings "
        f"of each seed's own. Inside: seeds within theory's 99% interval, {covered['inside']} of "
        f"{covered['measurements']} in all rows. The rows of one shape have the same seeds and inputs. None of the "
        "schemes was measured at any of these shapes while the theory was made."
    )
    depth: list[tuple[Any, ...]] = []
    for outcome in groups[count:]:
        ratios, number = std_ratios(outcome), len(outcome["records"])
        width = narrowed_width(outcome["group"])
        for layer in sorted({1, len(ratios) // 4, len(ratios) // 2, len(ratios)}):
            measured = {
                "cosine": (significant(3), mean_std(cosines[layer - 1] for cosines in probing.curves(outcome))),
                "std over theory's": (fixed(2), ratios[layer - 1]),
                "standard error": (fixed(2), 1 / math.sqrt(2 * number)),
            }
            expected = {"cosine": probing.predicted_cosine(outcome, layer - 1)}
            depth.append(([len(ratios), width, outcome["group"]["seq_len"], number, layer], measured, {}, expected))
    listings = [
        tabulate("Cosine between sequences, schemes and shapes not seen before", ["scheme", "shape"], rows, note)
    ]
    if depth:
        note = (
            "Cosine: mean ± standard deviation over seeds. The next column is the measured standard deviation over "
            "the predicted one, with its standard error. All models are 128 wide; their weights are so large that "
            "pre-activations are those of a model as wide as “like” says."
        )
        heads = ["blocks", "like", "T", "seeds", "after block"]
        listings.append(tabulate("Standard deviation over seeds by depth", heads, depth, note))
    return listings


def narrowed_width(group: probing.ProbeGroup) -> int:
    """Return the width of the model whose pre-activations a narrower one has (``settings.py``)."""
    std = float(group["changes"]["init.embedding"].removeprefix("normal:"))
    return round(group["changes"]["d_model"] * (std / 0.02) ** 2)


def claims(record: Record) -> Sequence[Claim]:
    """Claim the coverage."""
    return [predicted.coverage_claim("cells (scheme, shape, seed), none seen before,", record["result"]["coverage"])]


EXPERIMENT = Experiment(
    name="unseen_schemes",
    title="Theory on schemes and shapes not seen before",
    description=(
        "Predicted 99% intervals of the cosine against nine initialization schemes at three shapes, none of which was "
        "measured while the theory was made; and the standard deviation over seeds after 1 to 24 blocks."
    ),
    settings=settings.UNSEEN_SCHEMES,
    cost={"laptop": "about 15 minutes on two busy cores", "paper": "as at laptop"},
    run=run,
    tables=tables,
    claims=claims,
)
