"""Edits of attention at inference that make any position an attention sink.

Source: "The Structural Origin of Attention Sink".

*Mask*: token k attends only to itself, so its attention output is its own value and keeps the full variance
σ² instead of σ²/k. With relative positions (RoPE or none) its representation in every layer is exactly
that of the same token standing first.

*Variance amplification*: o'_k = μ_k + λ(o_k − μ_k). The abstract defines variance over random-token
sequences, so μ_k here is the mean over random-token sequences of the aggregated value at position k, for each
layer, head and channel (:func:`bornbiased_jax.probes.variance.ensemble_mean`): the variance over sequences grows
λ²-fold and the mean stays. Other centres are other interventions: the mean over a vector's coordinates is close to
0, which makes the formula the control; the mean over the other positions of the sequence removes context.

*Control*: λ·o_k, which enlarges the vector and its shared part alike.

Positions and blocks count from 1. The last two act on "o" before W_O, after the sink mitigations of the config. All
act only in passes over all positions (``positions="all"``, no cache) and carry their numbers as arrays, so that one
compiled pass serves a sweep over blocks, positions and factors.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.model.sites import Edit, Edits


def self_only(length: int, positions: Sequence[int], *, num_layers: int, blocks: Sequence[int] | None = None) -> Edits:
    """Let tokens at ``positions`` see only themselves; others still see them. Pass the result as ``edit``.

    Args:
        length: T of the sequences.
        positions: which tokens, from 1.
        num_layers: depth of the model.
        blocks: where to act, counted from 1; everywhere unless given.

    Raises:
        InputError: a position or block out of range.
    """
    at_T, active_L = _at(length, _rows(length, positions)), _active(num_layers, blocks)
    return Edits(seen=jax.tree_util.Partial(_alone, at_T, jnp.asarray(active_L)))


def amplify_variance(
    positions: Sequence[int], factor: float, *, mean_LTHK: np.ndarray, blocks: Sequence[int] | None = None
) -> Edit:
    """Amplify variance, o'_k = μ_k + λ(o_k − μ_k), at ``positions``; pass the result as ``edit``.

    Args:
        positions: which positions, from 1.
        factor: λ; 1 changes nothing.
        mean_LTHK: μ for every layer and position, from :func:`bornbiased_jax.probes.variance.ensemble_mean`; sequences
            must be at least as long.
        blocks: where to act, counted from 1; everywhere unless given.

    Raises:
        InputError: a position, block or factor out of range.
    """
    L, T = mean_LTHK.shape[:2]
    at_T, active_L = _at(T, _rows(T, positions)), _active(L, blocks)
    _check_factor(factor)
    mean = jnp.asarray(mean_LTHK, jnp.float32)
    return jax.tree_util.Partial(_amplified, at_T, jnp.asarray(active_L), jnp.float32(factor), mean)


def scale_output(
    positions: Sequence[int],
    factor: float,
    *,
    num_layers: int,
    blocks: Sequence[int] | None = None,
    length: int | None = None,
) -> Edit:
    """Scale the output to λ·o_k at ``positions``, the control; pass the result as ``edit``.

    Args:
        positions: which positions, from 1.
        factor: λ; 1 changes nothing.
        num_layers: depth of the model.
        blocks: where to act, counted from 1; everywhere unless given.
        length: T of the sequences at least: edits of the same length share a compiled program. The last of
            ``positions`` unless given.

    Raises:
        InputError: a position, block or factor out of range.
    """
    rows = _rows(length, positions)
    at_T, active_L = _at(rows.max() + 1 if length is None else length, rows), _active(num_layers, blocks)
    _check_factor(factor)
    return jax.tree_util.Partial(_amplified, at_T, jnp.asarray(active_L), jnp.float32(factor), None)


def _at(length: int, rows: np.ndarray) -> jax.Array:
    at_T = np.zeros(length, bool)
    at_T[rows] = True
    return jnp.asarray(at_T)


def _alone(at_T: jax.Array, active_L: jax.Array, seen_TS: jax.Array, layer: jax.Array) -> jax.Array:
    if seen_TS.shape != (len(at_T), len(at_T)):
        raise InputError(
            f"which tokens see only themselves is said for {len(at_T)} positions, but "
            f"{' x '.join(map(str, seen_TS.shape))} are computed: use sequences of that length and positions='all'"
        )
    alone_T1 = (at_T & active_L[layer])[:, None]
    return jnp.where(alone_T1, jnp.eye(len(at_T), dtype=bool), seen_TS)


def _amplified(
    at_P: jax.Array,
    active_L: jax.Array,
    factor: jax.Array,
    mean_LPHK: jax.Array | None,
    o_BTHK: jax.Array,
    layer: jax.Array,
) -> jax.Array:
    """Scale by λ around μ, or around 0 without one, where ``at_P`` is true; later positions than the first P stay."""
    P = len(at_P)
    if o_BTHK.shape[1] < P:
        raise InputError(
            f"position {P} is edited, but {o_BTHK.shape[1]} positions are computed: "
            "use longer sequences and positions='all'"
        )
    old_BPHK = o_BTHK[:, :P]
    if mean_LPHK is None:
        new_BPHK = factor.astype(old_BPHK.dtype) * old_BPHK
    else:
        mu = mean_LPHK[layer].astype(o_BTHK.dtype)[None]
        new_BPHK = mu + factor.astype(old_BPHK.dtype) * (old_BPHK - mu)
    here_P = at_P & active_L[layer]
    new_BPHK = jnp.where(here_P[None, :, None, None], new_BPHK, old_BPHK)
    return jnp.concatenate([new_BPHK, o_BTHK[:, P:]], axis=1) if P < o_BTHK.shape[1] else new_BPHK


def _rows(length: int | None, positions: Sequence[int]) -> np.ndarray:
    rows = np.unique(np.asarray(positions, int)) - 1
    if not rows.size:
        raise InputError("no position is named: give at least one, counted from 1")
    if rows[0] < 0 or (length is not None and rows[-1] >= length):
        bad = rows[0] if rows[0] < 0 else rows[-1]
        end = "the length" if length is None else length
        raise InputError(f"position {bad + 1} is not between 1 and {end}")
    return rows


def _active(num_layers: int, blocks: Sequence[int] | None) -> np.ndarray:
    active_L = np.full(num_layers, blocks is None)
    for block in blocks or ():
        if not 1 <= block <= num_layers:
            raise InputError(f"block {block} is not between 1 and {num_layers}")
        active_L[block - 1] = True
    return active_L


def _check_factor(factor: float) -> None:
    if not np.isfinite(factor):
        raise InputError(f"factor {factor} is not a finite number")
