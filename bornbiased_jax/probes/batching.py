"""Sequences cut into batches that fit in memory, for probes that look at one given model."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError

# Bytes that one batch may take in the largest array of one layer.
LAYER_BYTES = 256 * 2**20


def batch_size_for(cfg: ModelConfig, length: int, requested: int | None) -> int:
    """Sequences in a batch: as many as keep one layer's largest array within ``LAYER_BYTES``.

    Raises:
        InputError: a batch size below 1 was asked for.
    """
    if requested is not None:
        if requested < 1:
            raise InputError(f"batch size {requested} is not at least 1")
        return requested
    widest = max(cfg.num_heads * length, 3 * cfg.d_ff, cfg.num_layers * cfg.d_model)
    return max(1, min(64, LAYER_BYTES // (4 * length * widest)))


def batches(x: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Slices of ``size`` sequences; the last one may be shorter (and is compiled for its own shape)."""
    for start in range(0, len(x), size):
        yield x[start : start + size]
