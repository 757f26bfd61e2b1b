"""Initial weights of a seed, each parameter drawn when it is asked for."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import hardware, keys
from bornbiased_jax.checkpoints.tensors import Piece, Shardings, StoredModel
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import distribution, init_seed
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

    def draw(path: str, layer: int | None, rows: int | None) -> np.ndarray:
        shape = table[path].block_shape
        constant, std = distribution(cfg, table[path])
        # The first numbers of a draw do not depend on how many follow.
        shape = shape if rows is None else (min(rows, shape[0]), *shape[1:])
        if constant is not None:
            return np.full(shape, constant, np.float32)
        block = -1 if layer is None else layer
        return np.asarray(_draw(key, np.uint32(keys.stable_hash(path)), np.int32(block), shape, std))

    def pieces(path: str) -> list[Piece]:
        layers = range(table[path].shape[0]) if table[path].is_stacked else (None,)
        return [
            Piece(path, () if layer is None else (layer,), functools.partial(draw, path, layer)) for layer in layers
        ]

    load = functools.partial(_load, cfg, int(seed))
    return StoredModel(cfg, f"birth of seed {seed}", pieces, seed=int(seed), is_initial=True, load=load)


@functools.partial(jax.jit, static_argnums=(3, 4))
def _draw(key: jax.Array, path: jax.Array, layer: jax.Array, shape: tuple[int, ...], std: float) -> jax.Array:
    """Draw one initial parameter as :func:`bornbiased_jax.model.init` does; layer −1 where it has none."""
    leaf = jax.random.fold_in(key, path)
    stacked = jax.random.fold_in(leaf, jnp.maximum(layer, 0).astype(jnp.uint32))
    data = jnp.where(layer < 0, jax.random.key_data(leaf), jax.random.key_data(stacked))
    return keys.normal(jax.random.wrap_key_data(data, impl=keys.PRNG_IMPL), shape, std)


def _load(cfg: ModelConfig, seed: int, dtype: Any, sharding: Shardings | None) -> Params:
    """Draw all parameters on the devices where they are to lie."""
    check_weights(cfg)
    draw = functools.partial(init_seed, cfg)
    if sharding is None:
        params = draw(jnp.uint32(seed))
    else:
        # Each in a program of its own, so that the random bits of no other lie alongside.
        flat = {}
        for path, row in parameter_table(cfg).items():
            program = jax.jit(
                lambda seed, path=path: flatten(draw(seed))[path], out_shardings=sharding(path, row.shape)
            )
            flat[path] = jax.block_until_ready(program(jnp.uint32(seed)))
        params = unflatten(flat)
    return params if dtype is None else jax.tree.map(lambda leaf: leaf.astype(dtype), params)
