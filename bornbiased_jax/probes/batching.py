"""How many sequences make a batch, by memory or by tokens, and sequences cut into batches."""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError

# Bytes that one batch may take in the largest array of one layer.
LAYER_BYTES = 256 * 2**20
# What one layer makes of a batch should stay in a CPU's cache; an accelerator wants more rows.
BATCH_TOKENS_CPU, BATCH_TOKENS = 2048, 8192


def batch_size_for(cfg: ModelConfig, length: int, requested: int | None) -> int:
    """Choose a batch's number of sequences: as many as keep one layer's largest array within ``LAYER_BYTES``.

    Raises:
        InputError: a batch size below 1 was asked for.
    """
    if requested is not None:
        return _checked(requested)
    widest = max(cfg.num_heads * length, 3 * cfg.d_ff, cfg.num_layers * cfg.d_model)
    return max(1, min(64, LAYER_BYTES // (4 * length * widest)))


def batch_size_by_tokens(length: int, num_inputs: int, requested: int | None) -> int:
    """Choose a batch's number of sequences: about ``BATCH_TOKENS`` positions (fewer on a CPU) unless ``requested``.

    Raises:
        InputError: a batch size below 1 was asked for.
    """
    tokens = BATCH_TOKENS_CPU if jax.default_backend() == "cpu" else BATCH_TOKENS
    size = max(1, tokens // length) if requested is None else _checked(requested)
    return min(size, num_inputs)


def _checked(requested: int) -> int:
    if requested < 1:
        raise InputError(f"batch size {requested} is not at least 1")
    return requested


def batches(x: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield slices of ``size`` sequences; the last one may be shorter (and is compiled for its own shape)."""
    for start in range(0, len(x), size):
        yield x[start : start + size]
