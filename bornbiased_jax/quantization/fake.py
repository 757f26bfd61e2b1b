"""Symmetric rounding to b bits with a dynamic scale: x ↦ s·round(x/s), s = max|x| / (2^(b−1) − 1).

The scale is that of a whole sequence ("tensor"), of one position ("token") or of one channel over the positions of a
sequence ("channel"). Ties go to the even neighbor. Source: as in SmoothQuant (Xiao et al., 2023), dynamic form.
"""

from __future__ import annotations

import dataclasses
from typing import Literal, get_args

import jax
import jax.numpy as jnp

from bornbiased_jax.errors import InputError

Granularity = Literal["tensor", "token", "channel"]
GRANULARITIES: tuple[Granularity, ...] = get_args(Granularity)


@dataclasses.dataclass(frozen=True)
class FakeQuantizer:
    """Quantize an activation [B, T, …]; an edit for any site of a block.

    Attributes:
        bits: at least 2.
        granularity: whose largest value sets the scale. "token" takes all channels of a position (all heads of a
            key or value together).
        keep: this many first positions stay as they are and set no scale: sink tokens kept in full precision.
    """

    bits: int
    granularity: Granularity
    keep: int = 0

    def __post_init__(self) -> None:
        if self.granularity not in GRANULARITIES:
            raise InputError(f"granularity {self.granularity!r} is not one of {', '.join(GRANULARITIES)}")
        if self.keep < 0:
            raise InputError(f"{self.keep} positions cannot be kept: give 0 or more")

    def __call__(self, x: jax.Array, layer: jax.Array | None = None) -> jax.Array:  # noqa: ARG002 (as all edits)
        """Round the activation; the block does not matter."""
        channels = tuple(range(2, x.ndim))
        axes = {"tensor": (1, *channels), "token": channels, "channel": (1,)}[self.granularity]
        if not self.keep:
            return round_to(x, self.bits, axes)
        is_kept_T = jnp.arange(x.shape[1]) < self.keep
        is_kept = is_kept_T.reshape(1, -1, *[1] * len(channels))
        return jnp.where(is_kept, x, round_to(jnp.where(is_kept, 0.0, x), self.bits, axes))


def quantize_kernel(kernel_LIO: jax.Array, bits: int, granularity: Granularity) -> jax.Array:
    """Round kernels [L, in, out]: one scale a matrix for "tensor", one an output channel otherwise.

    Of kernels [L, experts, in, out] each expert's is a matrix of its own. Per-token and per-channel activations are
    paired with a scale for each output channel, as engines do: only that can be taken out of the product.
    """
    return round_to(kernel_LIO, bits, (-2, -1) if granularity == "tensor" else (-2,))


def round_to(x: jax.Array, bits: int, axes: tuple[int, ...]) -> jax.Array:
    """Compute s·round(x/s) with one scale s over ``axes``; zeros stay zeros.

    >>> round_to(jnp.asarray([[-3.0, 0.4, 1.0]]), 3, (1,)).tolist()  # three steps of 1 on either side
    [[-3.0, 0.0, 1.0]]
    """
    steps = float(2 ** (bits - 1) - 1)
    scale = jnp.max(jnp.abs(x), axis=axes, keepdims=True) / steps
    safe = jnp.where(scale > 0, scale, 1.0)
    return (jnp.clip(jnp.round(x / safe), -steps, steps) * safe).astype(x.dtype)
