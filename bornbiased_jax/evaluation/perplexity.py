"""Held-out loss of a model on text: perplexity per token and bits per byte at a fixed context."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.models.limits import check_length, check_tokens
from bornbiased_jax.models.loss import bits_per_byte, loss_sum
from bornbiased_jax.models.memory import check_forward
from bornbiased_jax.models.overflow import check_overflow
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.text.documents import read_documents
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.tokenizers import encode_documents

LARGEST_CONTEXT = 2048
"""Table 7's context, used where neither the caller nor a training run names one and the model has as many positions."""


def evaluate(
    cfg: ModelConfig,
    params: Params,
    documents: Iterable[str],
    tokenizer: Tokenizer,
    *,
    num_sequences: int = 256,
    context: int = LARGEST_CONTEXT,
    batch_size: int = 8,
    quiet: bool = False,
) -> dict[str, Any]:
    """Table 7's protocol: the first sequences of a text, each scored on its own.

    Documents are tokenised, ended with ``eos_id`` and joined; the result is cut into sequences of ``context`` tokens,
    each of which predicts all its tokens but the first (as ``transformers`` does for ``labels=input_ids``).

    Args:
        cfg: the architecture.
        params: its weights.
        documents: the text, as :func:`bornbiased_jax.text.documents.read_documents` yields it; no more is read than
            is needed.
        tokenizer: the model's own.
        num_sequences: how many sequences; fewer where the text ends before.
        context: tokens a sequence.
        batch_size: sequences at a time; memory only.
        quiet: no progress display.

    Returns:
        ``perplexity`` (e to the mean loss in nats a token), ``loss``, ``bits_per_byte`` (over the UTF-8 bytes of the
        predicted tokens, the ids that end documents counting none), ``num_tokens`` predicted, ``num_bytes``,
        ``num_sequences``, ``context``.

    Raises:
        InputError: the text is shorter than one sequence, or has ids that the model does not know.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> from bornbiased_jax.models import init_seed
        >>> from bornbiased_jax.text import ByteTokenizer
        >>> cfg = preset("gpt2-tiny", num_layers=1, d_model=16, num_heads=2, d_ff=32, vocab_size=260)
        >>> text = ["A text of some twenty bytes."]
        >>> found = evaluate(cfg, init_seed(cfg, 0), text, ByteTokenizer(), num_sequences=2, context=8, quiet=True)
        >>> found["num_tokens"], found["perplexity"] > 200  # an untrained model knows nothing
        (14, True)
    """
    if context < 2:
        raise InputError(f"a context of {context} predicts nothing: use at least 2")
    check_length(cfg, context)
    check_forward(cfg, min(batch_size, num_sequences), context, logits=1)
    if context > cfg.max_seq_len:
        progress.warn(f"a context of {context} is longer than the {cfg.max_seq_len} positions the model is made for")
    sequences_NT = cut(encode_documents(tokenizer, documents), num_sequences, context)
    return evaluate_tokens(cfg, params, sequences_NT, tokenizer, batch_size=batch_size, quiet=quiet)


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    source: str | Path,
    *,
    tokenizer: Tokenizer | None = None,
    num_sequences: int = 256,
    context: int | None = None,
    batch_size: int = 8,
    quiet: bool = False,
) -> dict[str, Any]:
    """:func:`evaluate` of an opened model on a source of text.

    Args:
        checkpoint: the model.
        source: a file, a directory, ``builtin:prose``, ``builtin:code`` or ``hf:NAME``.
        tokenizer: in place of the checkpoint's own.
        num_sequences: how many sequences; fewer where the text ends before.
        context: tokens a sequence; unless given that of its training run, else the model's positions, at most 2,048.
        batch_size: sequences at a time; memory only.
        quiet: no progress display.

    Returns:
        What :func:`evaluate` returns, with ``checkpoint`` and, for a run, its ``seed`` and ``step``.

    Raises:
        InputError: a size below 1, no tokenizer, or as :func:`evaluate`.
    """
    for name, value in (("num_sequences", num_sequences), ("context", context), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise InputError(f"{name}={value} is not at least 1")
    tokenizer = tokenizer or checkpoint.tokenizer
    if tokenizer is None:
        raise InputError(f"{checkpoint.reference} has no tokenizer: name one with --tokenizer")
    check_overflow(checkpoint.cfg, checkpoint.params)
    found = evaluate(
        checkpoint.cfg,
        checkpoint.params,
        read_documents(source),
        tokenizer,
        num_sequences=num_sequences,
        context=context or checkpoint.info.get("context") or min(LARGEST_CONTEXT, checkpoint.cfg.max_seq_len),
        batch_size=batch_size,
        quiet=quiet,
    )
    place: dict[str, Any] = {name: value for name, value in checkpoint.info.items() if name in ("seed", "step")}
    return {**found, "checkpoint": checkpoint.reference, **place}


def cut(ids: Iterable[np.ndarray], num_sequences: int, context: int) -> np.ndarray:
    """The first sequences [N, T] of a stream of ids, as many as there are up to ``num_sequences``.

    Raises:
        InputError: there is not one.

    Example:
        >>> cut([np.arange(5), np.arange(4)], num_sequences=9, context=4).tolist()
        [[0, 1, 2, 3], [4, 0, 1, 2]]
    """
    wanted = num_sequences * context
    documents: list[np.ndarray] = []
    have = 0
    for document in ids:
        documents.append(document)
        have += len(document)
        if have >= wanted:
            break
    count = min(num_sequences, have // context)
    if count < 1:
        raise InputError(f"the text has {have} tokens, less than one sequence of {context}: shorten the context")
    return np.concatenate(documents)[: count * context].reshape(count, context)


def evaluate_tokens(
    cfg: ModelConfig,
    params: Params,
    sequences_NT: np.ndarray,
    tokenizer: Tokenizer,
    *,
    batch_size: int = 8,
    quiet: bool = False,
) -> dict[str, Any]:
    """:func:`evaluate` on sequences of ids [N, T] that are already cut, one following the other."""
    check_tokens(sequences_NT, cfg.vocab_size)
    score = _scorer(cfg)
    total, count = 0.0, 0
    with progress.bar(len(sequences_NT), "evaluating", unit="sequences", quiet=quiet) as advance:
        for rows in _batches(sequences_NT, batch_size):
            nats, tokens = score(params, jnp.asarray(rows))
            total, count = total + float(nats), count + int(tokens)
            advance(int((rows[:, 0] >= 0).sum()))
    num_bytes = predicted_bytes(tokenizer, sequences_NT)
    loss = total / count
    return {
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
        "loss": loss,
        "bits_per_byte": bits_per_byte(total, num_bytes) if num_bytes else None,
        "num_tokens": count,
        "num_bytes": num_bytes,
        "num_sequences": len(sequences_NT),
        "context": int(sequences_NT.shape[1]),
    }


@lru_cache(maxsize=16)
def _scorer(cfg: ModelConfig) -> Callable[[Params, jax.Array], tuple[jax.Array, jax.Array]]:
    return jax.jit(lambda params, tokens: loss_sum(cfg, params, tokens))


def _batches(sequences_NT: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Batches of one shape; missing rows of the last are −1."""
    size = min(size, len(sequences_NT))
    for start in range(0, len(sequences_NT), size):
        rows = sequences_NT[start : start + size]
        missing = np.full((size - len(rows), rows.shape[1]), -1, rows.dtype)
        yield np.concatenate([rows, missing])


def predicted_bytes(tokenizer: Tokenizer, sequences_NT: np.ndarray) -> int:
    """UTF-8 bytes of all ids but the first of each sequence, the sequences following one another in a text.

    The ids that end documents have none. A first id that is a part of a character counts one byte: exact for single
    bytes, a byte or two low for a rare piece.
    """
    ids = [int(token) for token in sequences_NT.ravel() if token != tokenizer.eos_id]
    total = len(tokenizer.decode(ids).encode())
    for token in sequences_NT[:, 0]:
        if token != tokenizer.eos_id:
            text = tokenizer.decode([int(token)])
            # The replacement character takes three bytes and stands for one here.
            total -= len(text.encode()) - 2 * text.count("\ufffd")
    return total
