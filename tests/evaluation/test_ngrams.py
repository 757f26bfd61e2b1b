"""Counting models on data whose entropy is known."""

import numpy as np
import pytest

from bornbiased_jax.evaluation.ngrams import bigram_loss, unigram_entropy, unigram_loss


def test_uniform_tokens():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, 16, 200_000)
    # The plug-in entropy is low by about (V − 1)/(2N) = 4e-5.
    assert unigram_entropy(ids, 16) == pytest.approx(np.log(16), abs=2e-4)
    assert unigram_loss(ids[:100_000], ids[100_000:], 16) == pytest.approx(np.log(16), abs=1e-3)


def test_markov_chain():
    """A chain's bigram loss is its conditional entropy, its unigram loss that of its stationary distribution."""
    rng = np.random.default_rng(1)
    V, N = 8, 200_000
    transition = rng.dirichlet(np.full(V, 0.3), V)
    uniform = rng.random(N)
    cumulative = transition.cumsum(1)
    cumulative[:, -1] = 1.0
    chain = np.zeros(N, np.int64)
    for i in range(1, N):
        chain[i] = np.searchsorted(cumulative[chain[i - 1]], uniform[i], side="right")
    stationary = np.linalg.matrix_power(transition.T, 200)[:, 0]
    conditional = -(stationary[:, None] * transition * np.log(np.maximum(transition, 1e-300))).sum()
    held = chain[N // 2 :]
    logs = -np.log(transition[held[:-1], held[1:]])
    # The mean of 100,000 surprisals, neighbors correlated a little: five standard errors.
    margin = 5 * logs.std() / np.sqrt(len(logs))
    assert bigram_loss(chain[: N // 2], held, V) == pytest.approx(conditional, abs=margin)
    assert bigram_loss(chain[: N // 2], held, V) < unigram_loss(chain[: N // 2], held, V)


def test_unseen_pairs_and_tokens_have_a_finite_loss():
    train, held = np.asarray([0, 1, 0, 1, 2]), np.asarray([3, 0, 2, 2, 1])
    assert np.isfinite(bigram_loss(train, held, 4))
    # By hand: kinds(0)=1, seen(0 1)=2; p(1)=3/9. p(1|0) = (2 + 1/3)/(2 + 1).
    assert bigram_loss(train, np.asarray([0, 1]), 4) == pytest.approx(-np.log((2 + 3 / 9) / 3))
    # One token has no follower: the frequencies alone are left.
    assert bigram_loss(train[:1], held, 4) == unigram_loss(train[:1], held[1:], 4)
