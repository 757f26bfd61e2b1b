"""Nested permutations against all of them."""

import itertools
import math

import numpy as np

from bornbiased_jax.stats.nested import log_order, nested_bound, nested_moments, nested_sums


def nested_permutations(num_groups, size):
    for outer in itertools.permutations(range(num_groups)):
        for inner in itertools.product(itertools.permutations(range(size)), repeat=num_groups):
            yield np.array([outer[g] * size + i for g in range(num_groups) for i in inner[g]])


def test_nested_moments_and_bound_against_all_permutations():
    """Moments exact, drawn sums from the same distribution, and the bound above the exact p in 300 matrices."""
    orders = np.array(list(nested_permutations(3, 2)))
    assert len(orders) == round(math.exp(log_order(3, 2))) == 48
    draws = np.random.default_rng(0)
    for trial in range(300):
        heavy = draws.standard_cauchy((6, 6)) if trial % 2 else draws.standard_normal((6, 6))
        scores = heavy + (trial % 3) * 3 * np.eye(6)
        sums = scores[np.arange(6), orders].sum(axis=1)
        mean, variance = nested_moments(scores, 3)
        np.testing.assert_allclose([mean, variance], [sums.mean(), sums.var()], rtol=1e-9)
        exact = (sums >= np.trace(scores) - 1e-9).mean()
        assert nested_bound([scores], 3) >= math.log10(exact) - 1e-12
    drawn = nested_sums(scores, 3, 20_000, seed=1, group=0)
    np.testing.assert_allclose(drawn.mean(), mean, atol=5 * math.sqrt(variance / 20_000))
    assert set(np.round(drawn, 6)) == set(np.round(sums, 6))
