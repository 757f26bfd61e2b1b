"""What a model must beat to have learned anything: counts of single tokens, and of pairs."""

from __future__ import annotations

import numpy as np

from bornbiased_jax.training.data.shards import Tokens

MAX_TOKENS = 20_000_000


def unigram_entropy(ids: np.ndarray, vocab_size: int) -> float:
    """Compute the entropy of token frequencies in nats, below which no model without context can have its loss.

    Example:
        >>> round(unigram_entropy(np.array([0, 1, 0, 1]), 2), 4)
        0.6931
    """
    counts = np.bincount(ids, minlength=vocab_size).astype(np.float64)
    fraction = counts[counts > 0] / counts.sum()
    return float(-(fraction * np.log(fraction)).sum())


def unigram_loss(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float:
    """Compute held-out loss in nats a token of add-one smoothed frequencies."""
    counts = np.bincount(train, minlength=vocab_size) + 1.0
    return float(-np.log(counts / counts.sum())[held_out].mean())


def bigram_loss(train: np.ndarray, held_out: np.ndarray, vocab_size: int) -> float:
    """Compute held-out loss in nats a token of a bigram model with Witten-Bell smoothing.

    p(b | a) = (count(a b) + kinds(a)·p(b)) / (count(a ·) + kinds(a)), kinds(a) being how many different tokens
    follow a, and p(b) the add-one smoothed frequency (Witten and Bell, 1991). Every token of ``held_out`` but the
    first is predicted.

    Example:
        >>> text = np.array([0, 1] * 50)  # after each token comes the other one
        >>> bigram_loss(text, text, 2) < 0.02 < unigram_loss(text, text, 2)
        True
    """
    # Counts of the training tokens: single ones, pairs, and kinds of followers.
    unigram = np.bincount(train, minlength=vocab_size) + 1.0
    unigram /= unigram.sum()
    pairs, counts = np.unique(_pair(train[:-1], train[1:], vocab_size), return_counts=True)
    first = pairs // vocab_size
    kinds = np.bincount(first, minlength=vocab_size).astype(np.float64)
    followed = np.bincount(first, weights=counts, minlength=vocab_size)
    # Look up each held-out pair, and back off to the unigram.
    before, after = held_out[:-1], held_out[1:]
    held_pairs = _pair(before, after, vocab_size)
    place = np.searchsorted(pairs, held_pairs)
    # A number that no pair has stands after the largest one.
    pairs, counts = np.append(pairs, -1), np.append(counts, 0)
    pair_counts = np.where(pairs[place] == held_pairs, counts[place], 0)
    total = followed[before] + kinds[before]
    backed = (pair_counts + kinds[before] * unigram[after]) / np.maximum(total, 1.0)
    return float(-np.log(np.where(total > 0, backed, unigram[after])).mean())


def _pair(first: np.ndarray, second: np.ndarray, vocab_size: int) -> np.ndarray:
    return np.asarray(first.astype(np.int64) * vocab_size + second)


def baselines(train: Tokens, held_out: Tokens, vocab_size: int) -> dict[str, float]:
    """Compute all three on one data set, in nats a token, from at most :data:`MAX_TOKENS` tokens of each split.

    Returns:
        ``unigram_entropy`` of the held-out tokens, ``unigram_loss`` and ``bigram_loss`` on them.
    """
    train_ids = train.read(0, min(len(train), MAX_TOKENS))
    held_ids = held_out.read(0, min(len(held_out), MAX_TOKENS))
    return {
        "unigram_entropy": unigram_entropy(held_ids, vocab_size),
        "unigram_loss": unigram_loss(train_ids, held_ids, vocab_size),
        "bigram_loss": bigram_loss(train_ids, held_ids, vocab_size),
    }
