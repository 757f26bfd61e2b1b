"""LayerNorm and RMSNorm over the last axis, always computed in float32."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp


def standardise(x: jax.Array, *, center: bool, eps: float) -> jax.Array:
    """Compute (x − mean) / √(variance + eps) with ``center``, else x / √(mean square + eps); float32."""
    x = x.astype(jnp.float32)
    if center:
        x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + eps)


class Norm(nn.Module):
    """LayerNorm (Ba et al., 2016; scale and bias) or RMSNorm (Zhang and Sennrich, 2019; scale only)."""

    kind: str
    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        if self.kind == "none":
            return x
        centered = self.kind == "layernorm"
        y = standardise(x, center=centered, eps=self.eps)
        scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
        y = y * jnp.broadcast_to(scale, y.shape)
        if centered:
            bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
            y = y + jnp.broadcast_to(bias, y.shape)
        return y.astype(x.dtype)
