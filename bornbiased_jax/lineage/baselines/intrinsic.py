"""Intrinsic fingerprint (PDF; Yoon et al., 2025): profiles of weight standard deviations over layers."""

from __future__ import annotations

import numpy as np

from bornbiased_jax.lineage.baselines.score import Score, pearson, score
from bornbiased_jax.parameters import Params

KINDS = ("query", "key", "value", "output")


def profiles(params: Params) -> dict[str, np.ndarray] | None:
    """Compute, per kind of projection, the unbiased standard deviation of all entries of each layer's weight, [L].

    No biases; None for a model without attention. Query, key and value are separate in our layout, so
    that fused weights were split by their architecture when they were read.
    """
    attention = params.get("blocks", {}).get("attention")
    if attention is None:
        return None
    std_by_kind = {}
    for kind in KINDS:
        kernel_LIO = np.asarray(attention[kind]["kernel"], np.float64)
        std_by_kind[kind] = kernel_LIO.reshape(len(kernel_LIO), -1).std(axis=1, ddof=1)
    return std_by_kind


def stretched(profile_L: np.ndarray, length: int) -> np.ndarray:
    """Interpolate a profile linearly by index to another number of layers."""
    if len(profile_L) == length:
        return profile_L
    return np.interp(np.linspace(0, len(profile_L) - 1, length), np.arange(len(profile_L)), profile_L)


def intrinsic(base: Params, suspect: Params) -> Score:
    """Average over the four kinds the Pearson correlation of the two models' profiles.

    Models of unequal depth are compared after the shorter profile is stretched. With two layers every
    correlation is 1 or −1; with one layer there is none.

    Args:
        base: parameters as :func:`bornbiased_jax.model.init` lays them out.
        suspect: likewise.
    """
    base_profiles, suspect_profiles = profiles(base), profiles(suspect)
    if base_profiles is None or suspect_profiles is None:
        return Score("intrinsic", None, "a model without attention has no profile")
    # The shorter profile is stretched over the other's depth.
    depth = max(len(base_profiles["query"]), len(suspect_profiles["query"]))
    correlations = {
        kind: pearson(stretched(base_profiles[kind], depth), stretched(suspect_profiles[kind], depth)) for kind in KINDS
    }
    defined = {kind: value if np.isfinite(value) else None for kind, value in correlations.items()}
    return score("intrinsic", float(np.mean(list(correlations.values()))), correlations=defined)
