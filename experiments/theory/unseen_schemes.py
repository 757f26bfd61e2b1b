"""Theory on schemes and shapes that nothing was looked at for, and its standard deviation over seeds at depth.

Stated before the numbers:

- **Cells.** Nine schemes (``SCHEMES``) at three shapes (``SHAPES``), eight seeds each: 216 models. Neither a scheme
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
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, by_scale
from bornbiased_jax.experiments.theory import predicted
from bornbiased_jax.report.numbers import fixed, mean_std, percent, significant
from bornbiased_jax.report.tables import Claim, Table, tabulate

SCHEMES: dict[str, Entry] = {
    "kaiming": {"init": "kaiming"},
    "kaiming-balanced": {"init": "kaiming-balanced"},
    "kaiming, leaky ReLU, RMSNorm": {"init": "kaiming", "activation": "leaky_relu", "norm": "rmsnorm"},
    "gemma-jax": {"init": "gemma-jax", "activation": "gelu_tanh"},
    "modded-nanogpt": {"init": "modded-nanogpt", "activation": "relu_squared", "tie_embeddings": False},
    "rezero": {"init": "rezero"},
    "gpt2-scaled-mirrored": {"init": "gpt2-scaled-mirrored"},
    "xavier, SiLU less its mean": {"init": "xavier", "activation": "silu_centered"},
    "orthogonal MLPs": {"init": "normal-0.02", "init.up": "orthogonal:0.05", "init.down": "orthogonal:0.03"},
}
SHAPES: dict[str, tuple[Entry, int]] = {
    "5 × 80, T = 12": (dict(num_layers=5, d_model=80, d_ff=320, num_heads=5), 12),
    "7 × 112, T = 20": (dict(num_layers=7, d_model=112, d_ff=300, num_heads=7), 20),
    "3 × 144, T = 40": (dict(num_layers=3, d_model=144, d_ff=576, num_heads=4), 40),
}
NARROW = 128


def cells(seeds: Sequence[int], num_inputs: int, schemes: Sequence[str], shapes: Sequence[str]) -> list[probing.Group]:
    """Return a group for each scheme and shape, with embeddings of each seed's own."""
    return [
        probing.group(
            "gpt2-tiny",
            seeds,
            SHAPES[shape][1],
            num_inputs,
            fix_embeddings=False,
            **SHAPES[shape][0],
            **SCHEMES[scheme],
        )
        for shape in shapes
        for scheme in schemes
    ]


def narrowed(width: int, num_layers: int, seeds: Sequence[int], seq_len: int, num_inputs: int) -> probing.Group:
    """Return a model 128 wide with the pre-activations of a wide one drawn by ``gpt2-scaled``."""
    std = 0.02 * math.sqrt(width / NARROW)
    readers: Entry = {f"init.{group}": f"normal:{std:.6g}" for group in ("embedding", "query", "key", "value", "up")}
    writers: Entry = {f"init.{group}": f"normal:{std / math.sqrt(2 * num_layers):.6g}" for group in ("output", "down")}
    shape: Entry = dict(num_layers=num_layers, d_model=NARROW, d_ff=4 * NARROW, num_heads=4, vocab_size=256)
    return probing.group(
        "gpt2-tiny", seeds, seq_len, num_inputs, inputs="gaussian", fix_embeddings=False, **shape, **readers, **writers
    )


def run(context: Context) -> Entry:
    """Probe all groups: cells first, then those of the depth."""
    groups = probing.run_groups(context)
    count = len(context.settings["cells"])
    return {**groups, "cells": count, "coverage": predicted.coverage(groups["groups"][:count])}


def std_ratios(outcome: probing.Probed) -> np.ndarray:
    """Return the measured over the predicted standard deviation of the cosine across seeds, after each block [L]."""
    measured = np.array(probing.values(outcome, "contraction", "inter_cosine_by_layer"))
    return np.asarray(measured.std(axis=0, ddof=1) / outcome["theory"]["inter_cosine_by_layer_std"])


def tables(record: Record) -> Sequence[Table]:
    """Show the cosine of every scheme and shape; and the standard deviation over seeds by depth."""
    groups, count = record["result"]["groups"], record["result"]["cells"]
    covered = record["result"]["coverage"]
    rows: list[tuple[Any, ...]] = []
    for scheme_and_shape, outcome in zip(record["settings"]["cells"], groups[:count], strict=True):
        theory = outcome["theory"]
        measured = {
            "cosine": (significant(3), mean_std(probing.cosines(outcome))),
            "inside": f"{predicted.inside(outcome)} of {len(outcome['records'])}",
        }
        expected = {"cosine": (theory["inter_cosine_by_layer"][-1], theory["inter_cosine_by_layer_std"][-1])}
        rows.append((scheme_and_shape, measured, {}, expected))
    note = (
        f"Mean ± standard deviation over seeds, after the last block; random tokens, embeddings of each seed's own. "
        f"{covered['inside']} of {covered['measurements']} cells lie inside the 99% interval. No scheme at any of "
        "these shapes was measured while the theory was made."
    )
    depth: list[tuple[Any, ...]] = []
    for outcome in groups[count:]:
        ratios, number = std_ratios(outcome), len(outcome["records"])
        for layer in sorted({1, len(ratios) // 4, len(ratios) // 2, len(ratios)}):
            theory = outcome["theory"]
            measured = {
                "cosine": (
                    significant(3),
                    mean_std([row["contraction"]["inter_cosine_by_layer"][layer - 1] for row in outcome["records"]]),
                ),
                "std over theory's": (fixed(2), ratios[layer - 1]),
                "standard error": (fixed(2), 1 / math.sqrt(2 * number)),
            }
            expected = {
                "cosine": (theory["inter_cosine_by_layer"][layer - 1], theory["inter_cosine_by_layer_std"][layer - 1])
            }
            depth.append(([len(ratios), outcome["group"]["seq_len"], number, layer], measured, {}, expected))
    listings = [
        tabulate("Cosine between sequences, schemes and shapes not seen before", ["scheme", "shape"], rows, note)
    ]
    if depth:
        note = f"Models {NARROW} wide with the pre-activations of 768 (12 blocks) and 2,048 (24 blocks) dimensions."
        listings.append(
            tabulate("Standard deviation over seeds by depth", ["blocks", "T", "seeds", "after block"], depth, note)
        )
    return listings


def claims(record: Record) -> Sequence[Claim]:
    """Claim the coverage."""
    covered = record["result"]["coverage"]
    return [
        Claim(
            f"Fraction of {covered['measurements']} cells (scheme, shape, seed), none seen before, inside theory's 99% "
            "interval",
            covered["inside"] / covered["measurements"],
            theory=covered["stated"],
            format=percent(1),
            configuration="ours",
        )
    ]


_SMOKE = (["kaiming", "rezero"], ["5 × 80, T = 12"])
_ALL = (list(SCHEMES), list(SHAPES))
_DEPTH = [narrowed(768, 12, range(700, 796), 16, 60), narrowed(2048, 24, range(700, 748), 32, 40)]


def _names(schemes: Sequence[str], shapes: Sequence[str]) -> list[list[str]]:
    return [[scheme, shape] for shape in shapes for scheme in schemes]


EXPERIMENT = Experiment(
    name="unseen_schemes",
    title="Theory on schemes and shapes not seen before",
    description=(
        "Predicted 99% intervals of the cosine against nine initialization schemes at three shapes, none of which was "
        "measured while the theory was made; and the standard deviation over seeds after 1 to 24 blocks."
    ),
    settings=by_scale(
        cells=(_names(*_SMOKE), _names(*_ALL), _names(*_ALL)),
        groups=(
            [*cells([700, 701], 16, *_SMOKE), narrowed(768, 2, range(700, 704), 4, 16)],
            [*cells(list(range(700, 708)), 100, *_ALL), *_DEPTH],
            [*cells(list(range(700, 708)), 100, *_ALL), *_DEPTH],
        ),
    ),
    cost={"laptop": "about 15 minutes on two busy cores", "paper": "as at laptop"},
    run=run,
    tables=tables,
    claims=claims,
)
