"""Batches of sequences: their size by memory or by tokens, and forward passes over all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import jax
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import ForwardOptions
from bornbiased_jax.model.streaming import Reading, Weights, forward_batches
from bornbiased_jax.parallel import PyTree

# Bytes that one batch may take in the largest array of one layer.
LAYER_BYTES = 256 * 2**20
# What one layer makes of a batch should stay in a CPU's cache; an accelerator wants more rows.
BATCH_TOKENS_CPU, BATCH_TOKENS = 2048, 8192


def batch_size_for(cfg: ModelConfig, length: int) -> int:
    """Choose a batch's number of sequences: as many as keep one layer's largest array within ``LAYER_BYTES``."""
    widest = max(cfg.num_heads * length, 3 * cfg.d_ff, cfg.num_layers * cfg.d_model)
    return max(1, min(64, LAYER_BYTES // (4 * length * widest)))


def batch_size_by_tokens(length: int, num_inputs: int, requested: int | None) -> int:
    """Choose a batch's number of sequences: about ``BATCH_TOKENS`` positions (fewer on a CPU) unless ``requested``.

    Raises:
        InputError: a batch size below 1 was asked for.
    """
    if requested is not None and requested < 1:
        raise InputError(f"batch size {requested} is not at least 1")
    tokens = BATCH_TOKENS_CPU if jax.default_backend() == "cpu" else BATCH_TOKENS
    return min(requested or max(1, tokens // length), num_inputs)


def batches(x: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield slices of ``size`` sequences; the last one may be shorter (and is compiled for its own shape)."""
    for start in range(0, len(x), size):
        yield x[start : start + size]


def read_batches(
    cfg: ModelConfig,
    params: Weights,
    x: np.ndarray,
    reading: Reading,
    *,
    size: int | None = None,
    options: ForwardOptions = ForwardOptions(),
    advance: Callable[[int], None] | None = None,
) -> Iterator[tuple[np.ndarray, PyTree]]:
    """Run a forward pass for each batch of some sequences; yield the batch with what is read of it, on the host.

    Args:
        cfg: the architecture.
        params: its weights, in memory or streamed.
        x: tokens [N, T] or vectors [N, T, D].
        reading: what a pass gives.
        size: sequences in a batch; chosen by memory unless given.
        options: of the pass.
        advance: called with the number of sequences after each batch.
    """
    parts = list(batches(x, size or batch_size_for(cfg, x.shape[1])))
    # Streamed weights are read once for all batches: an empty list has nothing to read them for.
    computed = forward_batches(cfg, params, parts, reading, options) if parts else iter(())
    for part, values in zip(parts, computed, strict=True):
        yield part, values
        if advance is not None:
            advance(len(part))
