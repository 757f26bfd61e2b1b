"""Initial weights of a seed, each parameter drawn when it is asked for."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from bornbiased_jax import hardware, keys
from bornbiased_jax.checkpoints.tensors import Piece, Shardings, StoredModel
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import distribution, draw, init_seed
from bornbiased_jax.model.memory import check_weights, largest_tensor_bytes
from bornbiased_jax.parameters import Params, flatten, parameter_table, unflatten


def read_headers(cfg: ModelConfig, seed: int) -> StoredModel:
    """Describe the initial weights of a seed, and draw none.

    Raises:
        InputError: the seed is out of range, or the largest tensor does not fit in memory.
    """
    key = keys.init_key(keys.check_seed(seed))
    table = parameter_table(cfg)
    hardware.check_memory(2 * largest_tensor_bytes(cfg), "the largest tensor of this model", "choose a smaller one")

    def read(path: str, layer: int | None) -> np.ndarray:
        block = None if layer is None else np.uint32(layer)
        return np.asarray(
            _draw(keys.leaf_key(key, path), table[path].block_shape, distribution(cfg, table[path]), block)
        )

    def pieces(path: str) -> list[Piece]:
        layers = range(table[path].shape[0]) if table[path].is_stacked else (None,)
        return [
            Piece(path, () if layer is None else (layer,), functools.partial(read, path, layer)) for layer in layers
        ]

    load = functools.partial(_load, cfg, int(seed))
    return StoredModel(cfg, f"initialization of seed {seed}", pieces, seed=int(seed), is_initial=True, load=load)


_draw = jax.jit(draw, static_argnums=(1, 2))
"""One program for all parameters of a shape and a distribution."""


def _load(cfg: ModelConfig, seed: int, dtype: DTypeLike | None, sharding: Shardings | None) -> Params:
    """Draw all parameters on the devices where they are to lie."""
    check_weights(cfg)
    initialize = functools.partial(init_seed, cfg)
    if sharding is None:
        params = initialize(jnp.uint32(seed))
    else:
        # Each in a program of its own, so that the random bits of no other lie alongside.
        flat = {}
        for path, row in parameter_table(cfg).items():
            program = jax.jit(lambda seed, path=path: flatten(initialize(seed))[path], out_shardings=sharding(row))
            flat[path] = program(jnp.uint32(seed)).block_until_ready()
        params = unflatten(flat)
    return params if dtype is None else jax.tree.map(lambda leaf: leaf.astype(dtype), params)
