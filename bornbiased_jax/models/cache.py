"""Keys and values of the positions already seen, for decoding one token at a time."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bornbiased_jax.config import ModelConfig


class Cache(NamedTuple):
    """Keys (after RoPE) and values of every layer, and how many positions are filled."""

    keys_LBSGK: jax.Array
    values_LBSGK: jax.Array
    length: jax.Array


def empty_cache(cfg: ModelConfig, batch: int, size: int, dtype: jnp.dtype = jnp.float32) -> Cache:
    """A cache for ``size`` positions of ``batch`` sequences, nothing filled."""
    shape = (cfg.num_layers, batch, size, cfg.kv_heads, cfg.key_dim)
    return Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((), jnp.int32))
