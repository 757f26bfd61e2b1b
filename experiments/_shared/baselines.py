"""Published fingerprints that read activations, and scores against those of unrelated seeds: baselines of experiments.

φ_H and φ_MATCH (Zhu et al., 2025) match hidden units by activations on shared inputs, REEF (Zhang et al., 2024)
compares hidden states on natural sentences.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax import model as models
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.base import Entry
from bornbiased_jax.lineage.baselines import Score, order_score, score, spearman_score, unequal_units
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.stats import tails

_BATCH_TOKENS = 2048
# REEF reads block 18 of a 32-block model.
_REEF_DEPTH = 18 / 32


class Projections(NamedTuple):
    """Outputs of the up and gate projections on the tokens of all inputs: [L, N·T, F] float32; no gate: None."""

    up: np.ndarray
    gate: np.ndarray | None


def mlp_activations(cfg: ModelConfig, params: Params, inputs: Inputs) -> Projections:
    """Run a model on probe inputs and return the outputs of its up and gate projections at every position.

    Raises:
        InputError: inputs that do not fit the model, or a model without an MLP.
    """
    inputs.check_fits(cfg)
    if not cfg.mlp:
        raise InputError("a model without an MLP has no hidden units to match")
    size = max(1, min(inputs.num_inputs, _BATCH_TOKENS // inputs.seq_len))
    batches = []
    for start in range(0, inputs.num_inputs, size):
        stop = min(start + size, inputs.num_inputs)
        # Indices past the end are computed in vain, so that one compilation serves all batches.
        x = jnp.asarray(inputs.generate(np.minimum(np.arange(start, start + size), inputs.num_inputs - 1)))
        projections = _projections(cfg, params, inputs.scaled(x, 0.0, cfg.embedding_std))
        batches.append({name: np.asarray(value)[:, : stop - start] for name, value in projections.items()})
    joined = {
        name: np.concatenate([batch[name] for batch in batches], axis=1).reshape(cfg.num_layers, -1, cfg.d_ff)
        for name in batches[0]
    }
    return Projections(joined["mlp_up"], joined.get("mlp_preactivation"))


@functools.partial(jax.jit, static_argnums=0)
def _projections(cfg: ModelConfig, params: Params, x: jax.Array) -> dict[str, jax.Array]:
    names = ("mlp_up", "mlp_preactivation") if cfg.gated_mlp else ("mlp_up",)
    captured: dict[str, jax.Array] = models.apply(cfg, params, x, logits=False, capture=names).layers
    return {name: captured[name].astype(jnp.float32) for name in names}


def phi_h(base: Projections, suspect: Projections) -> Score:
    """Compute φ_H: φ_U on the activations of the up projections for the same inputs."""
    return order_score("phi_h", base.up, suspect.up)


def phi_match(base: Projections, suspect: Projections) -> Score:
    """Compute φ_MATCH: the matching of units by gate activations against that by up activations.

    ``detail["coincidences"]`` holds for each block the number of units that both match alike (1 by chance).
    """
    if base.gate is None or suspect.gate is None:
        return Score("phi_match", None, "a model without a gate has nothing to match its units on twice")
    reason = unequal_units(base.up, suspect.up)
    if reason is not None:
        return Score("phi_match", None, reason)
    # Two matchings of the same units, made from different matrices.
    pairs = []
    for layer in range(len(base.up)):
        by_gate_F = _match_by_distance(base.gate[layer].T, suspect.gate[layer].T)
        by_up_F = _match_by_distance(base.up[layer].T, suspect.up[layer].T)
        pairs.append((by_gate_F, by_up_F))
    coincidences = [int((by_gate_F == by_up_F).sum()) for by_gate_F, by_up_F in pairs]
    return spearman_score("phi_match", pairs, coincidences=coincidences)


def _match_by_distance(base_Fn: np.ndarray, suspect_Fn: np.ndarray) -> np.ndarray:
    """Assign rows with the least sum of squared distances: for each of the base's the number of the suspect's, [F]."""
    # ‖a‖² and ‖b‖² add the same to every assignment.
    product_FF = base_Fn.astype(np.float64) @ suspect_Fn.T.astype(np.float64)
    columns_F: np.ndarray = linear_sum_assignment(product_FF, maximize=True)[1]
    return columns_F


def reef_block(num_layers: int) -> int:
    """Return the block (1 to L) nearest to the published fraction of the depth."""
    return max(1, math.floor(num_layers * _REEF_DEPTH + 0.5))


def reef_features(cfg: ModelConfig, params: Params, inputs: Inputs) -> np.ndarray:
    """Compute the residual stream after the chosen block at the last token: [N, D] float32.

    Args:
        cfg: the architecture.
        params: its weights.
        inputs: text of N sentences (200 published); the two models need not share a tokenizer.
    """
    return last_outputs(cfg, params, inputs, OutputOptions(layer=reef_block(cfg.num_layers)))


def standardized(features_ND: np.ndarray) -> np.ndarray:
    """Center each feature over the inputs and divide it by its standard deviation; constant ones stay 0."""
    centered_ND = features_ND.astype(np.float64)
    centered_ND -= centered_ND.mean(axis=0)[None, :]
    std_D = centered_ND.std(axis=0)
    return np.divide(centered_ND, std_D[None, :], out=np.zeros_like(centered_ND), where=std_D[None, :] > 0)


def linear_cka(base_ND: np.ndarray, suspect_NE: np.ndarray) -> float:
    """Compute HSIC(X, Y)/√(HSIC(X, X)·HSIC(Y, Y)) with linear kernels, HSIC = Σ (H X Xᵀ H ∘ H Y Yᵀ H).

    Args:
        base_ND: [N, D] features, centered or not.
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
    """Compute linear CKA of standardized features of the same sentences (:func:`reef_features`)."""
    return score("reef", linear_cka(standardized(base_ND), standardized(suspect_NE)))


def against_null(measured: Score, null_scores: np.ndarray) -> Entry:
    """Rank a score among scores of unrelated pairs: p = (1 + #{null ≥ score})/(1 + K), z and log10 p.

    The log10 p is of Student's t with K − 1 degrees of freedom for a new draw from the null's mean and
    standard deviation (approximate). All are None where the score or its null does not exist.
    """
    # Scores that are not defined leave the null.
    null = np.asarray(null_scores, np.float64)
    null = null[np.isfinite(null)]
    count = len(null)
    empty: Entry = {"p_value": None, "z": None, "log10_p": None, "num_null": count}
    if measured.value is None or count == 0:
        return {**measured.to_json(), **empty}
    p_value = (1 + int((null >= measured.value).sum())) / (1 + count)
    # The distance from the null's mean describes; a rank needs no spread.
    std = float(null.std(ddof=1)) if count > 1 else 0.0
    if not std > 0:
        return {**measured.to_json(), **empty, "p_value": p_value}
    z = (measured.value - float(null.mean())) / std
    log_p = tails.log_t_sf(z / math.sqrt(1 + 1 / count), count - 1)
    moments = {"null_mean": float(null.mean()), "null_std": std}
    return {
        **measured.to_json(),
        "p_value": p_value,
        "z": z,
        "log10_p": log_p / tails.LN10,
        "num_null": count,
        **moments,
    }
