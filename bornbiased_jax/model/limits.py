"""What a model can be given: ids of its vocabulary, vectors of its width, as many positions as it can number."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError


def check_tokens(tokens: ArrayLike, vocab_size: int, *, tokenizer: str = "") -> np.ndarray:
    """Return token ids of any shape as int32, if all are in the vocabulary.

    Args:
        tokens: integers.
        vocab_size: of the model.
        tokenizer: the name of where they come from, for the error.

    Raises:
        InputError: they are not integers, or one is negative or beyond the vocabulary.
    """
    # Whole numbers only: a table of floats is no text.
    tokens = np.asarray(tokens)
    if not np.issubdtype(tokens.dtype, np.integer):
        raise InputError(f"token ids must be integers, not {tokens.dtype}")
    lowest, highest = int(tokens.min(initial=0)), int(tokens.max(initial=0))
    if lowest < 0 or highest >= vocab_size:
        bad = lowest if lowest < 0 else highest
        origin = f" of the tokenizer {tokenizer}" if tokenizer else ""
        raise InputError(
            f"token id {bad}{origin} is outside the model's vocabulary of {vocab_size}: "
            "use the tokenizer that the model was trained with"
        )
    return tokens.astype(np.int32)


def check_length(cfg: ModelConfig, length: int) -> None:
    """Refuse sequences that learned positions cannot number; RoPE and no positions have no end.

    Raises:
        InputError: they are longer than ``max_seq_len``.
    """
    if cfg.positions == "learned" and length > cfg.max_seq_len:
        raise InputError(
            f"length {length} is beyond the model's {cfg.max_seq_len} learned positions: ask for shorter sequences, or "
            "set max_seq_len"
        )


def warn_of_length(cfg: ModelConfig, name: str, length: int) -> None:
    """Tell of sequences that are longer than the model is made for; ``name`` is that of the length."""
    if length > cfg.max_seq_len:
        progress.warn(f"a {name} of {length} is longer than the {cfg.max_seq_len} positions the model is made for")


def check_width(cfg: ModelConfig, width: int) -> None:
    """Refuse vectors that are not as wide as the residual stream.

    Raises:
        InputError: they are not.
    """
    if width != cfg.d_model:
        raise InputError(f"input vectors are {width} wide, the model {cfg.d_model}: make them equal")


def check_sequences(cfg: ModelConfig, x: ArrayLike) -> np.ndarray:
    """Return tokens [N, T] (int32) or vectors [N, T, D] (float32), if they fit the model.

    Raises:
        InputError: no sequences, a wrong shape or width, ids outside the vocabulary, or more positions than
            learned positions reach.
    """
    # Two axes are token ids, three are vectors in place of embeddings.
    x = np.asarray(x)
    if x.ndim not in (2, 3) or not x.size:
        raise InputError(f"inputs of shape {x.shape} are not token ids [N, T] or vectors [N, T, D]")
    if x.ndim == 3:
        check_width(cfg, x.shape[-1])
        x = x.astype(np.float32)
    else:
        x = check_tokens(x, cfg.vocab_size)
    check_length(cfg, x.shape[1])
    return x
