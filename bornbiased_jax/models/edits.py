"""Masks and edits of activations at inference that make any position an attention sink.

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

Positions and blocks count from 1. All of them act on "o" before W_O, after the sink mitigations of the config, and
only in passes over all positions (``positions="all"``, no cache).
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.models.sites import Edit


def self_only_mask(length: int, positions: Sequence[int]) -> np.ndarray:
    """Boolean [T, T] (query, key): causal, and the tokens at ``positions`` see only themselves.

    Others go on seeing them. Pass it as ``mask_TT``.

    Raises:
        InputError: a position outside 1 to ``length``.
    """
    rows = _rows(length, positions)
    mask_TT = np.tril(np.ones((length, length), bool))
    mask_TT[rows] = False
    mask_TT[rows, rows] = True
    return mask_TT


def amplify_variance(
    positions: Sequence[int], factor: float, *, mean_LTHK: np.ndarray, blocks: Sequence[int] | None = None
) -> Edit:
    """o'_k = μ_k + λ(o_k − μ_k) at ``positions``; pass it as ``edit``.

    Args:
        positions: which positions, from 1.
        factor: λ; 1 changes nothing.
        mean_LTHK: μ for every layer and position, from :func:`bornbiased_jax.probes.variance.ensemble_mean`.
        blocks: where to act, counted from 1; everywhere unless given.

    Raises:
        InputError: a position, block or factor out of range.
    """
    L, T = mean_LTHK.shape[:2]
    rows = _rows(T, positions)
    _check_factor(factor)
    # Only the edited positions travel into the compiled program.
    mean_LPHK = jnp.asarray(mean_LTHK[:, rows], jnp.float32)

    def change(o_BPHK: jax.Array, layer: jax.Array) -> jax.Array:
        mu = mean_LPHK[layer].astype(o_BPHK.dtype)[None]
        return mu + factor * (o_BPHK - mu)

    return _at(rows, change, _active(L, blocks))


def scale_output(
    positions: Sequence[int], factor: float, *, num_layers: int, blocks: Sequence[int] | None = None
) -> Edit:
    """The control λ·o_k at ``positions``; pass it as ``edit``.

    Args:
        positions: which positions, from 1.
        factor: λ; 1 changes nothing.
        num_layers: depth of the model.
        blocks: where to act, counted from 1; everywhere unless given.

    Raises:
        InputError: a position, block or factor out of range.
    """
    rows = _rows(None, positions)
    _check_factor(factor)
    return _at(rows, lambda o_BPHK, layer: factor * o_BPHK, _active(num_layers, blocks))


def _at(rows: np.ndarray, change: Edit, active_L: np.ndarray) -> Edit:
    def edit(o_BTHK: jax.Array, layer: jax.Array) -> jax.Array:
        if o_BTHK.shape[1] <= rows.max():
            raise InputError(
                f"position {rows.max() + 1} is edited, but {o_BTHK.shape[1]} positions are computed: "
                "use longer sequences and positions='all'"
            )
        old_BPHK = o_BTHK[:, rows]
        new_BPHK = jnp.where(jnp.asarray(active_L)[layer], change(old_BPHK, layer), old_BPHK)
        return o_BTHK.at[:, rows].set(new_BPHK)

    return edit


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
