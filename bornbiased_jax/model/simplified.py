"""The paper's two simplified blocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bornbiased_jax.config import Activation, ModelConfig


def mlp0_config(
    *, num_layers: int, d_model: int, d_ff: int, activation: Activation = "relu", vocab_size: int = 2
) -> ModelConfig:
    """Return a stack of MLP₀ blocks (Definition 1): Y = φ(X W_up) W_down, no residual, no normalization."""
    return ModelConfig(
        num_layers=num_layers,
        num_heads=1,
        d_model=d_model,
        d_ff=d_ff,
        vocab_size=vocab_size,
        activation=activation,
        norm="none",
        residual=False,
        attention=False,
        positions="none",
    )


def attn0(x_BTD: jax.Array) -> jax.Array:
    """Apply the Attn₀ block (Definition 3) at every position: the running mean of the inputs so far.

    Args:
        x_BTD: inputs; axis −2 is the position.

    Returns:
        The same shape; position t holds the mean of positions 1 to t.
    """
    counts_T = jnp.arange(1, x_BTD.shape[-2] + 1, dtype=x_BTD.dtype)
    shape = (1,) * (x_BTD.ndim - 2) + (x_BTD.shape[-2], 1)
    return jnp.cumsum(x_BTD, axis=-2) / counts_T.reshape(shape)
