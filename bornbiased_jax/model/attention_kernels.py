"""What turns a row of attention logits into weights, by its name in the configuration.

    softmax    e^s / Σ e^s
    sigmoid    σ(s − ln max_seq_len), each key for itself (Ramapuram et al., 2409.04431)
    softpick   max(e^s − 1, 0) / (Σ |e^s − 1| + ε): a key below zero weighs nothing (Zuhri et al., 2504.20966)
    clipped    clip((1 − γ) softmax(s) + γ, 0, 1), γ = −α/max_seq_len (Bondarenko et al., 2306.12929, their ζ = 1)
    centred    softmax(s) less 1/n over the n keys that the query sees: uniform attention adds nothing

The last four need not sum to 1 over a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

CLIP_ALPHA = 4.0
"""α of clipped softmax, which its authors use for T = 128: weights below about α/max_seq_len become zero."""
SOFTPICK_EPSILON = 1e-6
"""ε of softpick, on the scale of a row whose largest e^s is 1."""

Kernel = Callable[[jax.Array, jax.Array, int], jax.Array]


def _softmax(scores_BHTS: jax.Array, seen_11TS: jax.Array, longest: int) -> jax.Array:
    return jax.nn.softmax(jnp.where(seen_11TS, scores_BHTS, -jnp.inf), axis=-1)


def _sigmoid(scores_BHTS: jax.Array, seen_11TS: jax.Array, longest: int) -> jax.Array:
    return jnp.where(seen_11TS, jax.nn.sigmoid(scores_BHTS - math.log(longest)), 0.0)


def _softpick(scores_BHTS: jax.Array, seen_11TS: jax.Array, longest: int) -> jax.Array:
    """Divide numerator and denominator by e^m, m = max(0, largest logit), so that no power overflows.

    e^(s−m) − e^(−m) is e^(−m)(e^s − 1), which is exact near s = 0 where the difference would cancel.
    """
    # A key that is not seen may have any logit, and must not overflow where it is left out: 0, which weighs nothing.
    scores_BHTS = jnp.where(seen_11TS, scores_BHTS, 0.0)
    top_BHT1 = jnp.maximum(jax.lax.stop_gradient(jnp.max(scores_BHTS, axis=-1, keepdims=True)), 0.0)
    near = jnp.exp(-top_BHT1) * jnp.expm1(jnp.minimum(scores_BHTS, 1.0))
    far = jnp.exp(scores_BHTS - top_BHT1) - jnp.exp(-top_BHT1)
    above = jnp.where(scores_BHTS < 1.0, near, far)
    total_BHT1 = jnp.sum(jnp.abs(above), axis=-1, keepdims=True) + SOFTPICK_EPSILON
    return jnp.maximum(above, 0.0) / total_BHT1


def _clipped(scores_BHTS: jax.Array, seen_11TS: jax.Array, longest: int) -> jax.Array:
    gamma = -CLIP_ALPHA / longest
    return jnp.clip((1.0 - gamma) * _softmax(scores_BHTS, seen_11TS, longest) + gamma, 0.0, 1.0)


def _centred(scores_BHTS: jax.Array, seen_11TS: jax.Array, longest: int) -> jax.Array:
    mean_11TS = seen_11TS / jnp.sum(seen_11TS, axis=-1, keepdims=True)
    return _softmax(scores_BHTS, seen_11TS, longest) - mean_11TS


KERNELS: dict[str, Kernel] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "softpick": _softpick,
    "clipped": _clipped,
    "centred": _centred,
}
"""Logits [B, H, T, S] in float32, which keys are seen [1, 1, T, S], max_seq_len -> weights [B, H, T, S]."""
