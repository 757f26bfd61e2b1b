"""A model's outputs on probe inputs, streamed in batches: what every test of lineage reads."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import models
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.inputs import Inputs
from bornbiased_jax.models.parameters import Params

_BATCH_TOKENS = 4096


def last_outputs(
    cfg: ModelConfig,
    params: Params,
    inputs: Inputs,
    *,
    mean: float = 0.0,
    std: float = 1.0,
    layer: int | None = None,
    batch_size: int | None = None,
    advance: Callable[..., None] | None = None,
) -> np.ndarray:
    """Outputs at the last position, float32 products at "highest" precision.

    Args:
        cfg: the architecture.
        params: its weights.
        inputs: N sequences; ids must be below the vocabulary, vectors as wide as the model.
        mean, std: vectors are multiplied by ``std`` and shifted by ``mean``; ids are left alone.
        layer: read the residual stream after this block (1 to L) instead of the output of the final norm.
        batch_size: sequences at a time; about 4,096 tokens by default.
        advance: called with the number of sequences done since the last call.

    Returns:
        [N, D] float32.

    Raises:
        InputError: inputs that do not fit the model, no such layer, or outputs that are not finite.
    """
    inputs.check_fits(cfg)
    if layer is not None and not 1 <= layer <= cfg.num_layers:
        raise InputError(f"layer {layer} is not within 1 to {cfg.num_layers}")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch size {batch_size} is not at least 1")
    size = min(batch_size or max(1, _BATCH_TOKENS // inputs.seq_len), inputs.num_inputs)
    outputs_ND = np.empty((inputs.num_inputs, cfg.d_model), np.float32)
    for start in range(0, inputs.num_inputs, size):
        stop = min(start + size, inputs.num_inputs)
        # Indices past the end are computed in vain, so that one compilation serves all batches.
        x = jnp.asarray(inputs.generate(np.minimum(np.arange(start, start + size), inputs.num_inputs - 1)))
        if inputs.kind == "gaussian":
            x = x * jnp.float32(std) + jnp.float32(mean)
        outputs_ND[start:stop] = np.asarray(_last(cfg, layer, params, x))[: stop - start]
        if advance is not None:
            advance(stop - start)
    if not np.isfinite(outputs_ND).all():
        raise InputError("the model's outputs hold NaN or infinite numbers: check its weights")
    return outputs_ND


@functools.partial(jax.jit, static_argnums=(0, 1))
def _last(cfg: ModelConfig, layer: int | None, params: Params, x: jax.Array) -> jax.Array:
    if layer is None:
        return models.apply(cfg, params, x, positions="last", logits=False).final_BTD[:, -1].astype(jnp.float32)
    found = models.apply(
        cfg,
        params,
        x,
        positions="last",
        logits=False,
        capture=("residual",),
        reduce=lambda captured: captured["residual"][:, -1],
    )
    return found.layers[layer - 1].astype(jnp.float32)


def embedding_moments(params: Params) -> tuple[float, float]:
    """Mean and standard deviation over all entries of the token embedding."""
    table = np.asarray(params["embed"]["embedding"], np.float32)
    return float(table.mean(dtype=np.float64)), float(table.std(dtype=np.float64))
