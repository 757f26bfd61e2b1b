"""HuRef PCS (Zeng et al., 2024): the cosine of all parameters as one vector."""

from __future__ import annotations

import math

import numpy as np

from bornbiased_jax.lineage.baselines.score import Score, score
from bornbiased_jax.parameters import Params, flatten

_TABLES = ("embed/", "positions/", "head/")


def pcs(base: Params, suspect: Params) -> Score:
    """Compute the cosine of all parameters concatenated in the order of their paths.

    ``detail`` holds the cosine without embeddings and head as well. Summed tensor by tensor in float64;
    no concatenation is made.

    Args:
        base: parameters as :func:`bornbiased_jax.model.init` lays them out.
        suspect: likewise.
    """
    base_leaves, suspect_leaves = flatten(base), flatten(suspect)
    shapes = {path: np.shape(leaf) for path, leaf in base_leaves.items()}
    if shapes != {path: np.shape(leaf) for path, leaf in suspect_leaves.items()}:
        return Score("pcs", None, "the two models have parameters of different names or shapes")
    # Inner products tensor by tensor, of all and of the blocks alone.
    sums = {"all": np.zeros(3), "blocks": np.zeros(3)}
    for path in sorted(base_leaves):
        a, b = np.asarray(base_leaves[path]).ravel(), np.asarray(suspect_leaves[path]).ravel()
        terms = np.array([_dot(a, b), _dot(a, a), _dot(b, b)])
        sums["all"] += terms
        if not path.startswith(_TABLES):
            sums["blocks"] += terms
    without_embeddings = _cosine(sums["blocks"])
    detail = {"without_embeddings": without_embeddings if math.isfinite(without_embeddings) else None}
    return score("pcs", _cosine(sums["all"]), **detail)


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    """Compute an inner product with float64 sums, a million entries at a time."""
    step = 1 << 20
    parts = (
        a[at : at + step].astype(np.float64) @ b[at : at + step].astype(np.float64) for at in range(0, len(a), step)
    )
    return float(sum(parts))


def _cosine(terms: np.ndarray) -> float:
    product, base_square, suspect_square = terms
    scale = math.sqrt(base_square) * math.sqrt(suspect_square)
    return float(product / scale) if scale > 0 else math.nan
