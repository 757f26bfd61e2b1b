"""Weights too large for float32: a norm of an infinite square gives zeros, which look like numbers."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.streamed import Reading, StreamedWeights, Weights, over_batches
from bornbiased_jax.model.transformer import apply
from bornbiased_jax.model.vocabulary import head_path, logits_of
from bornbiased_jax.parameters import Params

LARGE = 1e3
"""No trained model has a weight of this size, and products of smaller ones stay within float32."""
_SEQUENCES, _LENGTH = 2, 4


class Overflow(InputError):
    """The forward pass of some weights leaves the range of their numbers: whatever comes of it says nothing."""


def check_overflow(cfg: ModelConfig, weights: Weights) -> None:
    """Refuse weights whose forward pass overflows float32 on a few ids; those without a large weight are not tried.

    Raises:
        Overflow: the stream, its squares or the logits are not finite.
    """
    if isinstance(weights, StreamedWeights):
        largest = weights.largest()
    else:
        # Not the largest of all sizes, which would be an array as large as the leaf.
        largest = max(max(float(jnp.max(leaf)), -float(jnp.min(leaf))) for leaf in jax.tree.leaves(weights))
    if largest <= LARGE:
        return
    ids = np.arange(_SEQUENCES * _LENGTH, dtype=np.int32).reshape(_SEQUENCES, _LENGTH) % cfg.vocab_size
    ends = Reading(needs=(head_path(cfg),), finish=_ends_of(cfg))
    results = [
        *over_batches(weights, [ids], functools.partial(_residual, cfg), Reading(("residual",), _squares)),
        *over_batches(weights, [ids], functools.partial(_last, cfg), ends),
    ]
    if not all(bool(jnp.isfinite(values).all()) for values in jax.tree.leaves(results)):
        raise Overflow(
            f"the forward pass of these weights overflows float32 (the largest of them is {largest:.3g}): "
            "check them, or fetch or train them again"
        )


def _squares(captured: dict[str, jax.Array]) -> jax.Array:
    return jnp.square(captured["residual"])


# Of parameters in memory the largest is told: of those that several processes share, each has it.
def _residual(cfg: ModelConfig, params: Params, ids: Any) -> jax.Array:
    options: dict[str, Any] = dict(logits=False, capture=("residual",), reduce=_squares, dtype=jnp.float32)
    return jnp.max(apply(cfg, params, jnp.asarray(ids), **options).layers)


def _last(cfg: ModelConfig, params: Params, ids: Any) -> tuple[jax.Array, jax.Array]:
    final_BTD = apply(cfg, params, jnp.asarray(ids), logits=False, dtype=jnp.float32).final_BTD
    squares_BTD, logits_BTV = _ends_of(cfg)(params, final_BTD, ids)
    return jnp.max(squares_BTD), jnp.max(jnp.abs(logits_BTV))


def _ends_of(cfg: ModelConfig) -> Callable[[Params, jax.Array, Any], tuple[jax.Array, jax.Array]]:
    def ends(params: Params, final_BTD: jax.Array, batch: Any) -> tuple[jax.Array, jax.Array]:
        return jnp.square(final_BTD), logits_of(cfg, params, final_BTD)

    return ends
