"""Weights that stay in their file, read block by block (:mod:`bornbiased_jax.model.streamed`)."""

from __future__ import annotations

from collections.abc import Callable

import jax
import numpy as np

from bornbiased_jax.checkpoints.tensors import aligned_zeros
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parameters import Params, parameter_table, unflatten

# Columns copied together where a matrix is transposed: as many as caches hold of both sides.
_COLUMNS = 64


def read_block(cfg: ModelConfig, read: Callable[[str, int], np.ndarray], layer: int) -> Params:
    """Read all parameters of one block (from 0) to the device, as :func:`bornbiased_jax.model.apply` takes them."""
    flat = {}
    for path, row in parameter_table(cfg).items():
        if row.is_stacked:
            flat[path.removeprefix("blocks/")] = _on_device(read(path, layer))
    return unflatten(flat)


def _on_device(tensor: np.ndarray) -> jax.Array:
    """Copy a tensor in C order to where a device wants it; most matrices are transposed in their file."""
    buffer = aligned_zeros(list(tensor.shape), np.dtype(np.float32))
    if tensor.ndim == 2 and not tensor.flags.c_contiguous:
        # Some columns at a time: transposed as a whole, every number of a large matrix would come from memory alone.
        for start in range(0, tensor.shape[1], _COLUMNS):
            buffer[:, start : start + _COLUMNS] = tensor[:, start : start + _COLUMNS]
    else:
        buffer[...] = tensor
    # Nobody writes to the buffer any more, so that a CPU's array may be it.
    return jax.block_until_ready(jax.device_put(buffer, may_alias=True))
