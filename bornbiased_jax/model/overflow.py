"""Refuse weights whose forward pass leaves the range of float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.model import ForwardOptions, head_path, logits_of
from bornbiased_jax.model.streaming import Reading, StreamedWeights, Weights, forward_batches
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
    # A few ids of the vocabulary: an overflow shows whatever the text is.
    ids = np.arange(_SEQUENCES * _LENGTH, dtype=np.int32).reshape(_SEQUENCES, _LENGTH) % cfg.vocab_size
    in_float32 = ForwardOptions(dtype=jnp.float32)
    readings = [
        Reading(capture=("residual",), reduce=_largest_square),
        Reading(finish=_largest_outputs, needs=(head_path(cfg),)),
    ]
    # Squares of the residual stream are what norms sum up; logits are what follows the last of them.
    results = [list(forward_batches(cfg, weights, [ids], reading, in_float32)) for reading in readings]
    if not all(bool(np.isfinite(values).all()) for values in jax.tree.leaves(results)):
        raise Overflow(
            f"the forward pass of these weights overflows float32 (the largest of them is {largest:.3g}): "
            "check them, or train or export them again"
        )


# The largest alone: of arrays that several processes share, each has it.
def _largest_square(captured: dict[str, jax.Array]) -> jax.Array:
    return jnp.max(jnp.square(captured["residual"]))


def _largest_outputs(
    cfg: ModelConfig, outside: Params, final_BTD: jax.Array, _ids: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return jnp.max(jnp.square(final_BTD)), jnp.max(jnp.abs(logits_of(cfg, outside, final_BTD)))
