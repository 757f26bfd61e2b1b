"""Sequences cut into batches that fit in memory, for probes that look at one given model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError

# Bytes that one batch may take in the largest array of one layer.
LAYER_BYTES = 256 * 2**20


def check_sequences(cfg: ModelConfig, x: Any) -> np.ndarray:
    """Tokens [N, T] (int32) or vectors [N, T, D] (float32), if they fit the model.

    Raises:
        InputError: no sequences, a wrong shape or width, ids outside the vocabulary, or more positions than
            learned positions reach.
    """
    x = np.asarray(x)
    if x.ndim not in (2, 3) or not x.size:
        raise InputError(f"inputs of shape {x.shape} are not token ids [N, T] or vectors [N, T, D]")
    if x.ndim == 3:
        if x.shape[-1] != cfg.d_model:
            raise InputError(f"input vectors are {x.shape[-1]} wide, the model {cfg.d_model}: make them equal")
        x = x.astype(np.float32)
    else:
        if not np.issubdtype(x.dtype, np.integer):
            raise InputError(f"token ids must be integers, not {x.dtype}")
        lowest, highest = int(x.min()), int(x.max())
        if lowest < 0 or highest >= cfg.vocab_size:
            bad = lowest if lowest < 0 else highest
            raise InputError(
                f"token id {bad} is outside the model's vocabulary of {cfg.vocab_size}: "
                "use the tokenizer that the model was trained with"
            )
        x = x.astype(np.int32)
    check_length(cfg, x.shape[1])
    return x


def check_length(cfg: ModelConfig, length: int) -> None:
    """Refuse sequences that learned positions cannot number; RoPE and no positions go on for ever.

    Raises:
        InputError: they are longer than ``max_seq_len``.
    """
    if cfg.positions == "learned" and length > cfg.max_seq_len:
        raise InputError(
            f"length {length} is beyond the model's {cfg.max_seq_len} learned positions: ask for shorter sequences"
        )


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
