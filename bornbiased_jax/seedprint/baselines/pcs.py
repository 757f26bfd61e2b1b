"""HuRef PCS (Zeng et al., 2024): the cosine of all parameters as one vector."""

from __future__ import annotations

import math

import numpy as np

from bornbiased_jax.parameters import Params, flatten
from bornbiased_jax.seedprint.baselines.score import Score, score

_TABLES = ("embed/", "positions/", "head/")


def pcs(base: Params, suspect: Params) -> Score:
    """Cosine of all parameters concatenated in the order of their paths.

    ``detail`` holds the cosine without embeddings and head as well. Summed tensor by tensor in float64;
    no concatenation is made.

    Args:
        base, suspect: parameters as :func:`bornbiased_jax.models.init` lays them out.
    """
    ours, theirs = flatten(base), flatten(suspect)
    shapes = {path: np.shape(leaf) for path, leaf in ours.items()}
    if shapes != {path: np.shape(leaf) for path, leaf in theirs.items()}:
        return Score("pcs", None, "the two models have parameters of different names or shapes")
    sums = {"all": np.zeros(3), "blocks": np.zeros(3)}
    for path in sorted(ours):
        a, b = np.asarray(ours[path]).ravel(), np.asarray(theirs[path]).ravel()
        terms = np.array([_dot(a, b), _dot(a, a), _dot(b, b)])
        sums["all"] += terms
        if not path.startswith(_TABLES):
            sums["blocks"] += terms
    without = _cosine(sums["blocks"])
    kept = {"without_embeddings": without if math.isfinite(without) else None}
    return score("pcs", _cosine(sums["all"]), **kept)


def _dot(a: np.ndarray, b: np.ndarray) -> float:
    """Inner product with float64 sums, a million entries at a time."""
    step = 1 << 20
    parts = (
        a[at : at + step].astype(np.float64) @ b[at : at + step].astype(np.float64) for at in range(0, len(a), step)
    )
    return float(sum(parts))


def _cosine(terms: np.ndarray) -> float:
    product, ours, theirs = terms
    scale = math.sqrt(ours) * math.sqrt(theirs)
    return float(product / scale) if scale > 0 else math.nan
