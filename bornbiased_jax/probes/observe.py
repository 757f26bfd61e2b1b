"""One forward pass, reduced to what every probe of initialization looks at."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import PrecisionLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model import ForwardOptions, apply, logits_of
from bornbiased_jax.parameters import Params


class Observation(NamedTuple):
    """Last-position states of one batch."""

    last_LBD: jax.Array
    """After each block, float32."""
    final_BD: jax.Array
    """After the final norm, float32."""
    prediction_B: jax.Array
    """The token with the largest logit."""
    intra_LB: jax.Array | None
    """Mean cosine between different positions of a sequence, after each block; None unless asked for."""


def unit(x: jax.Array) -> jax.Array:
    """Compute x / ‖x‖ over the last axis, with no epsilon: norms near 1e−8 are ordinary in deep MLP₀ stacks.

    Scaled by the largest entry first, so that squares of tiny entries do not underflow. A zero vector
    stays zero.
    """
    x = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(x), axis=-1, keepdims=True)
    scaled = x / jnp.where(largest > 0, largest, 1.0)
    norm = jnp.sqrt(jnp.sum(jnp.square(scaled), axis=-1, keepdims=True))
    return scaled / jnp.where(norm > 0, norm, 1.0)


def mean_cosine_between_positions(x_BTD: jax.Array) -> jax.Array:
    """Compute (‖Σ_t x̂_t‖² − Σ_t ‖x̂_t‖²) / (T(T−1)) for each sequence [B]; zero for a single position."""
    unit_BTD = unit(x_BTD)
    T = x_BTD.shape[-2]
    total = jnp.sum(jnp.square(jnp.sum(unit_BTD, axis=-2)), axis=-1)
    squares = jnp.sum(jnp.square(unit_BTD), axis=(-2, -1))
    return (total - squares) / max(1, T * (T - 1))


def observe(
    cfg: ModelConfig, params: Params, x: jax.Array, *, intra: bool = False, precision: PrecisionLike = "highest"
) -> Observation:
    """Run a batch and keep its last positions.

    Args:
        cfg: the architecture.
        params: its weights.
        x: tokens [B, T] or vectors [B, T, D].
        intra: also compute the cosines within sequences, which needs every position of the last block.
        precision: of the matrix products, as :class:`bornbiased_jax.model.ForwardOptions` has it.
    """

    def reduce(captured: dict[str, jax.Array]) -> dict[str, jax.Array]:
        residual_BTD = captured["residual"]
        reduced = {"last": residual_BTD[:, -1].astype(jnp.float32)}
        if intra:
            reduced["intra"] = mean_cosine_between_positions(residual_BTD)
        return reduced

    out = apply(
        cfg,
        params,
        x,
        positions="all" if intra else "last",
        logits=False,
        capture=("residual",),
        reduce=reduce,
        options=ForwardOptions(precision=precision),
    )
    final_BD = out.final_BTD[:, -1]
    logits_BV = logits_of(cfg, params, final_BD, precision=precision)
    return Observation(
        out.layers["last"],
        final_BD.astype(jnp.float32),
        jnp.argmax(logits_BV, axis=-1).astype(jnp.int32),
        out.layers.get("intra"),
    )
