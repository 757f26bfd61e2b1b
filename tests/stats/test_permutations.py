"""Sums over relabelings: moments against enumeration, permutations that are uniform, p that is exact."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.stats import permutations as perm
from bornbiased_jax.stats.certified import certified_p


@pytest.mark.parametrize("chunk", [1 << 16, 24])
def test_moments_over_all_permutations_of_eight(chunk, monkeypatch):
    monkeypatch.setattr(perm, "_CHUNK", chunk)
    cross = np.random.default_rng(0).standard_normal((3, 8, 8)) + 5.0
    sums = perm.permuted_sums(cross, perm.all_permutations(8))
    assert sums.shape == (3, math.factorial(8))
    mean, variance = perm.moments(cross)
    np.testing.assert_allclose(mean, sums.mean(axis=-1), rtol=1e-12)
    np.testing.assert_allclose(variance, sums.var(axis=-1), rtol=1e-10)


@pytest.mark.parametrize("width", [6, 8])
def test_small_widths_are_enumerated(width):
    cross = np.random.default_rng(1).standard_normal((width, width)) + 0.8 * np.eye(width)
    sums = [sum(cross[j, p[j]] for j in range(width)) for p in itertools.permutations(range(width))]
    expected = sum(value >= np.trace(cross) - 1e-9 for value in sums)
    result = certified_p(cross, num_permutations=10)
    assert result.enumerated and result.num_permutations == math.factorial(width)
    assert (result.exceedances, result.p_value) == (expected, expected / math.factorial(width))
    assert result.z == pytest.approx((np.trace(cross) - np.mean(sums)) / np.std(sums), rel=1e-10)
    assert result.log10_p_bound >= result.log10_p


@pytest.mark.slow
def test_p_over_all_labelings_is_exactly_uniform():
    # Relabeling one fixed matrix in all 6! ways gives every rank once: the exactness that every test rests on.
    cross = np.random.default_rng(2).standard_normal((6, 6))
    ranks = sorted(round(certified_p(cross[:, order]).p_value * 720) for order in perm.all_permutations(6))
    assert ranks == list(range(1, 721))


def test_random_permutations_are_permutations_and_uniform():
    drawn = np.concatenate(list(perm.permutations(4, 24_000, seed=5)))
    assert (np.sort(drawn, axis=1) == np.arange(4)[None, :]).all()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4
    again = np.concatenate(list(perm.permutations(4, 24_000, seed=5)))
    np.testing.assert_array_equal(drawn, again)


@pytest.mark.parametrize("width", [1, 2, 3, 5, 9, 17])
def test_labels_of_every_width_are_permuted(width):
    # One more label than a power of two needs one more bit.
    (drawn,) = perm.permutations(width, 50, seed=3)
    assert (np.sort(drawn, axis=1) == np.arange(width)).all()


def test_seeds_and_groups_have_permutations_of_their_own():
    draw = lambda **which: next(perm.permutations(50, 20, **which))  # noqa: E731
    draws = [draw(seed=0), draw(seed=1), draw(seed=0, group=1), draw(seed=0, group=2), draw(seed=1, group=1)]
    for first, second in itertools.combinations(draws, 2):
        assert (first != second).any(axis=1).all()


def test_permutation_batches_cover_the_count_asked_for():
    sizes = [len(batch) for batch in perm.permutations(1000, 5001, seed=0)]
    assert sum(sizes) == 5001 and max(sizes) <= 2048


@pytest.mark.parametrize("pairs", [(), (5,)])
def test_p_counts_the_permuted_sums(pairs):
    rng = np.random.default_rng(3)
    cross = rng.standard_normal((*pairs, 12, 12)) + 0.5 * np.eye(12)
    drawn = np.concatenate(list(perm.permutations(12, 3000, seed=9)))
    sums = np.stack([cross[..., np.arange(12), p].sum(axis=-1) for p in drawn], axis=-1)
    np.testing.assert_allclose(perm.permuted_sums(cross, drawn), sums, atol=1e-12)
    np.testing.assert_allclose(perm.drawn_sums(cross, 3000, seed=9), sums, atol=1e-12)
    observed = np.trace(cross, axis1=-2, axis2=-1)
    expected = (sums >= observed[..., None]).sum(axis=-1)
    assert expected.any()
    if not pairs:
        certified = certified_p(cross, num_permutations=3000, seed=9)
        assert (certified.exceedances, certified.p_value) == (expected, (1 + expected) / 3001)


def test_float32_scores_are_summed_in_float64():
    cross = np.full((3000, 3000), 0.1, np.float32)
    drawn = perm.drawn_sums(cross, 3, seed=0)
    np.testing.assert_allclose(drawn, 3000 * float(np.float32(0.1)), rtol=1e-13)


def test_ties_count_against_rejection():
    # Two blocks of equal coordinates: many labelings give exactly the identity's sum, rounded differently.
    block = np.kron(np.eye(2), np.full((5, 5), 0.1))
    every = math.factorial(5) ** 2 / math.factorial(10)
    many = certified_p(block, num_permutations=20_000).p_value
    error = math.sqrt(every * (1 - every) / 20_000)
    assert abs(many - 2e4 * every / 20_001) < 5 * error + 1 / 20_001


def test_the_histogram_counts_every_permutation():
    """In standard deviations: what is beyond eight of them is kept in the outermost bins."""
    drawn = perm.histogram(np.array([10.0, 11.9, 10.1, 2_000.0, -2_000.0]), mean=10.0, std=2.0)
    assert (drawn["low"], drawn["high"], len(drawn["counts"])) == (-8.0, 8.0, 64)
    bins = {index: count for index, count in enumerate(drawn["counts"]) if count}
    # Bins of a quarter of a standard deviation, the first above the mean is number 32.
    assert bins == {0: 1, 32: 2, 35: 1, 63: 1}


def test_many_permutations_show_progress_and_few_do_not(monkeypatch, capsys):
    monkeypatch.setattr(perm, "SHOWN", 60)
    cross = np.random.default_rng(2).standard_normal((12, 12))
    perm.drawn_sums(cross, 59, seed=0)
    assert capsys.readouterr().err == ""
    perm.drawn_sums(cross, 60, seed=0)
    assert "60 of 60 permutations" in capsys.readouterr().err
