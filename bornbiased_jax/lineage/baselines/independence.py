"""Independence tests (Zhu et al., 2025): hidden units of two models matched, and the matching's order tested.

Three statistics, each a Spearman test in every block, combined over blocks by Fisher's method:

- φ_U: units matched on the rows of the up projections, the matching against the identity;
- φ_H: the same on the activations of the up projections on shared inputs;
- φ_MATCH: units matched on the activations of the gate, and again on those of the up projection; the two
  matchings against one another. Blind to the order of units, and without a proven null.

Spearman's p is Student's t, as published: an approximation, two-sided.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax import model as models
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.baselines.score import Score, score
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.stats import tails

_BATCH_TOKENS = 2048
_TINY = 1e-30


class Activations(NamedTuple):
    """Outputs of the up and gate projections on the tokens of all inputs: [L, N·T, F] float32; no gate: None."""

    up: np.ndarray
    gate: np.ndarray | None


def mlp_activations(cfg: ModelConfig, params: Params, inputs: Inputs) -> Activations:
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
    return Activations(joined["mlp_up"], joined.get("mlp_preactivation"))


@functools.partial(jax.jit, static_argnums=0)
def _projections(cfg: ModelConfig, params: Params, x: jax.Array) -> dict[str, jax.Array]:
    names = ("mlp_up", "mlp_preactivation") if cfg.gated_mlp else ("mlp_up",)
    captured: dict[str, jax.Array] = models.apply(cfg, params, x, logits=False, capture=names).layers
    return {name: captured[name].astype(jnp.float32) for name in names}


def match_by_cosine(base_Fn: np.ndarray, suspect_Fn: np.ndarray) -> np.ndarray:
    """Assign rows with the largest sum of cosines: for each of the base's the number of the suspect's, [F]."""
    base_units, suspect_units = (
        rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), _TINY)
        for rows in (base_Fn.astype(np.float64), suspect_Fn.astype(np.float64))
    )
    columns_F: np.ndarray = linear_sum_assignment(base_units @ suspect_units.T, maximize=True)[1]
    return columns_F


def match_by_distance(base_Fn: np.ndarray, suspect_Fn: np.ndarray) -> np.ndarray:
    """Assign rows with the least sum of squared distances: for each of the base's the number of the suspect's, [F]."""
    # ‖a‖² and ‖b‖² add the same to every assignment.
    product_FF = base_Fn.astype(np.float64) @ suspect_Fn.T.astype(np.float64)
    columns_F: np.ndarray = linear_sum_assignment(product_FF, maximize=True)[1]
    return columns_F


def phi_u(base_cfg: ModelConfig, base: Params, suspect_cfg: ModelConfig, suspect: Params) -> Score:
    """Compute φ_U: up rows matched by cosine, block by block, and the matching's order against the identity.

    Undefined where blocks, widths or hidden units differ in number.
    """
    if not (base_cfg.mlp and suspect_cfg.mlp):
        return Score("phi_u", None, "a model without an MLP has no hidden units to match")
    if base_cfg.num_experts is not None or suspect_cfg.num_experts is not None:
        return Score("phi_u", None, "neurons of a mixture of experts lie in experts, which nothing pairs here")
    if base_cfg.d_model != suspect_cfg.d_model:
        return Score("phi_u", None, f"the widths differ: {base_cfg.d_model} and {suspect_cfg.d_model}")
    base_LDF, suspect_LDF = (np.asarray(params["blocks"]["mlp"]["up"]["kernel"]) for params in (base, suspect))
    return _by_order("phi_u", base_LDF, suspect_LDF)


def phi_h(base: Activations, suspect: Activations) -> Score:
    """Compute φ_H: φ_U on the activations of the up projections for the same inputs."""
    return _by_order("phi_h", base.up, suspect.up)


def _by_order(method: str, base_LnF: np.ndarray, suspect_LnF: np.ndarray) -> Score:
    """Match columns by cosine in each block, and test the order of the matching against the identity."""
    reason = _unequal(base_LnF, suspect_LnF)
    if reason is not None:
        return Score(method, None, reason)
    identity_F = np.arange(base_LnF.shape[-1])
    blocks = zip(base_LnF, suspect_LnF, strict=True)
    return _combined(method, [(identity_F, match_by_cosine(base_nF.T, suspect_nF.T)) for base_nF, suspect_nF in blocks])


def phi_match(base: Activations, suspect: Activations) -> Score:
    """Compute φ_MATCH: the matching of units by gate activations against that by up activations.

    ``detail["coincidences"]`` holds for each block the number of units that both match alike (1 by chance).
    """
    if base.gate is None or suspect.gate is None:
        return Score("phi_match", None, "a model without a gate has nothing to match its units on twice")
    reason = _unequal(base.up, suspect.up)
    if reason is not None:
        return Score("phi_match", None, reason)
    # Two matchings of the same units, made from different matrices.
    pairs = []
    for layer in range(len(base.up)):
        by_gate_F = match_by_distance(base.gate[layer].T, suspect.gate[layer].T)
        by_up_F = match_by_distance(base.up[layer].T, suspect.up[layer].T)
        pairs.append((by_gate_F, by_up_F))
    coincidences = [int((by_gate_F == by_up_F).sum()) for by_gate_F, by_up_F in pairs]
    return _combined("phi_match", pairs, coincidences=coincidences)


def _combined(method: str, pairs: list[tuple[np.ndarray, np.ndarray]], **detail: list[int]) -> Score:
    """Combine blocks: the mean Spearman correlation, and Fisher's p of the blocks' p."""
    # Spearman in each block, Fisher over the blocks.
    log_ps = np.array([tails.log_spearman(first_F, second_F) for first_F, second_F in pairs])
    correlations = [tails.spearman(first_F, second_F) for first_F, second_F in pairs]
    log_p = tails.log_fisher(log_ps)
    if not np.isfinite(log_p):
        return Score(method, None, "fewer than three hidden units have no order to test")
    by_block = (log_ps / tails.LN10).tolist()
    return score(method, float(np.mean(correlations)), log10_p=log_p / tails.LN10, log10_p_by_block=by_block, **detail)


def _unequal(base_LnF: np.ndarray, suspect_LnF: np.ndarray) -> str | None:
    if len(base_LnF) != len(suspect_LnF):
        return f"the models have {len(base_LnF)} and {len(suspect_LnF)} blocks, which are paired by their numbers"
    if base_LnF.shape[1] != suspect_LnF.shape[1]:
        return f"activations on {base_LnF.shape[1]} and {suspect_LnF.shape[1]} tokens: use the same inputs"
    if base_LnF.shape[2] != suspect_LnF.shape[2]:
        return f"the MLPs have {base_LnF.shape[2]} and {suspect_LnF.shape[2]} hidden units"
    return None
