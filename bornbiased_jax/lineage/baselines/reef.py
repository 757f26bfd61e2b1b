"""REEF (Zhang et al., 2024): centred kernel alignment of hidden states on natural sentences."""

from __future__ import annotations

import math

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.baselines.score import Score, score
from bornbiased_jax.lineage.outputs import last_outputs
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs

# Block 18 of a 32-block model.
PUBLISHED_DEPTH = 18 / 32


def block_at(num_layers: int, depth: float) -> int:
    """Return the block (1 to L) nearest to a fraction of the depth."""
    if not 0.0 < depth <= 1.0:
        raise InputError(f"depth {depth} is not a fraction between 0 and 1")
    return min(num_layers, max(1, math.floor(num_layers * depth + 0.5)))


def reef_features(cfg: ModelConfig, params: Params, inputs: Inputs, *, depth: float = PUBLISHED_DEPTH) -> np.ndarray:
    """Compute the residual stream after the chosen block at the last token: [N, D] float32.

    Args:
        cfg: the architecture.
        params: its weights.
        inputs: text of N sentences (200 published); the two models need not share a tokenizer.
        depth: the block as a fraction of the depth.
    """
    return last_outputs(cfg, params, inputs, layer=block_at(cfg.num_layers, depth))


def standardised(features_ND: np.ndarray) -> np.ndarray:
    """Center each feature over the inputs and divide it by its standard deviation; constant ones stay 0."""
    centred_ND = features_ND.astype(np.float64)
    centred_ND -= centred_ND.mean(axis=0)[None, :]
    std_D = centred_ND.std(axis=0)
    return np.divide(centred_ND, std_D[None, :], out=np.zeros_like(centred_ND), where=std_D[None, :] > 0)


def linear_cka(base_ND: np.ndarray, suspect_NE: np.ndarray) -> float:
    """Compute HSIC(X, Y)/√(HSIC(X, X)·HSIC(Y, Y)) with linear kernels, HSIC = Σ (H X Xᵀ H ∘ H Y Yᵀ H).

    Args:
        base_ND: [N, D] features, centred or not.
        suspect_NE: [N, E], the same inputs; widths may differ.

    Returns:
        A number from 0 to 1, or NaN if a model's features are constant.

    Raises:
        InputError: unequal numbers of inputs.
    """
    if len(base_ND) != len(suspect_NE):
        raise InputError(f"features of {len(base_ND)} and {len(suspect_NE)} inputs: use the same inputs")
    x, y = (
        features.astype(np.float64) - features.mean(axis=0, dtype=np.float64)[None, :]
        for features in (base_ND, suspect_NE)
    )
    # With K = HXXᵀH, Σ(K ∘ L) = ‖XᵀHY‖²; the N × N form costs less where N is below the width.
    if len(x) <= min(x.shape[1], y.shape[1]):
        k, m = x @ x.T, y @ y.T
        hsic_xy, hsic_xx, hsic_yy = (float((a * b).sum()) for a, b in ((k, m), (k, k), (m, m)))
    else:
        hsic_xy, hsic_xx, hsic_yy = (float(np.square(a.T @ b).sum()) for a, b in ((x, y), (x, x), (y, y)))
    scale = math.sqrt(hsic_xx) * math.sqrt(hsic_yy)
    return hsic_xy / scale if scale > 0 else math.nan


def reef(base_ND: np.ndarray, suspect_NE: np.ndarray) -> Score:
    """Compute linear CKA of standardised features of the same sentences (:func:`reef_features`)."""
    return score("reef", linear_cka(standardised(base_ND), standardised(suspect_NE)), num_inputs=len(base_ND))
