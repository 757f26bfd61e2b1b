"""Keys and values of the positions already seen: kept whole for decoding, or only the first and the last of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bornbiased_jax.config import ModelConfig

Past = tuple[jax.Array, jax.Array, jax.Array]
"""Keys and values [B, S, G, K] of earlier positions of one block, and how many of them are filled."""


class Cache(NamedTuple):
    """Keys (after RoPE) and values of every layer, and how many positions are filled."""

    keys_LBSGK: jax.Array
    values_LBSGK: jax.Array
    length: jax.Array


def empty_cache(cfg: ModelConfig, batch: int, size: int, dtype: jnp.dtype = jnp.float32) -> Cache:
    """Return an empty cache for ``size`` positions of ``batch`` sequences."""
    # Key/value heads alone: query heads share them.
    shape = (cfg.num_layers, batch, size, cfg.kv_heads, cfg.key_dim)
    return Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((), jnp.int32))


class RollingCache(NamedTuple):
    """The tokens of a long text that a query still sees: itself, the ``window`` − 1 before it, and the ``keep`` first.

    Positions are those inside the cache, as in StreamingLLM (Xiao et al., 2023): the first tokens keep theirs, the
    others follow without a gap, so that no position exceeds ``keep + window − 1`` (from 0) however long the text is.
    Keys and values are those of the time when their token was read. Both numbers may be traced.
    """

    keep: Any
    """First tokens that are never dropped, 0 or more."""
    window: Any
    """Latest tokens, the query's own among them, 1 or more."""

    def inside(self, positions_T: jax.Array) -> jax.Array:
        """Return the position inside the cache of the token that is read at each position of the text."""
        return jnp.minimum(positions_T, self.keep + self.window - 1)

    def seen(self, query_T: jax.Array, key_S: jax.Array, window: int | None) -> jax.Array:
        """Return boolean [T, S]: whether the key is in the query's cache, and there within the model's own window."""
        # The first tokens, and the latest ones.
        distance_TS = query_T[:, None] - key_S[None, :]
        first_S = (key_S < self.keep)[None, :]
        seen_TS: jax.Array = (distance_TS >= 0) & (first_S | (distance_TS < self.window))
        if window is None:
            return seen_TS
        # The model's own window counts positions inside the cache, where the first tokens have moved up.
        inside_TS = self.inside(query_T)[:, None] - key_S[None, :]
        is_inside_TS: jax.Array = jnp.where(first_S, inside_TS, distance_TS) < window
        return seen_TS & is_inside_TS
