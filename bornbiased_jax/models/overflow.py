"""Weights too large for float32: a norm of an infinite square gives zeros, which look like numbers."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.models.transformer import apply

LARGE = 1e3
"""No trained model has a weight of this size, and products of smaller ones stay within float32."""
_SEQUENCES, _LENGTH = 2, 4


class Overflow(InputError):
    """The forward pass of some weights leaves the range of their numbers: whatever comes of it says nothing."""


def check_overflow(cfg: ModelConfig, params: Params) -> None:
    """Refuse weights whose forward pass overflows float32 on a few ids; those without a large weight are not tried.

    Raises:
        Overflow: the stream, its squares or the logits are not finite.
    """
    # Not the largest of all sizes, which would be an array as large as the leaf.
    largest = max(max(float(jnp.max(leaf)), -float(jnp.min(leaf))) for leaf in jax.tree.leaves(params))
    if largest <= LARGE:
        return
    ids = np.arange(_SEQUENCES * _LENGTH, dtype=np.int32).reshape(_SEQUENCES, _LENGTH) % cfg.vocab_size
    out = apply(cfg, params, jnp.asarray(ids), capture=("residual",), dtype=jnp.float32)
    seen = (jnp.square(out.layers["residual"]), jnp.square(out.final_BTD), out.logits_BTV)
    if not all(values is not None and bool(jnp.isfinite(values).all()) for values in seen):
        raise Overflow(
            f"the forward pass of these weights overflows float32 (the largest of them is {largest:.3g}): "
            "check them, or fetch or train them again"
        )
