import itertools

import numpy as np
import pytest
from scipy import special, stats

from bornbiased_jax.stats.intervals import binomial_interval, mean_interval, model_interval, ratio_interval


@pytest.mark.parametrize(("successes", "trials"), [(0, 10), (10, 10), (3, 40), (95, 5000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95])
def test_binomial_interval_is_clopper_pearson(successes, trials, confidence):
    tail = (1 - confidence) / 2
    low = special.betaincinv(successes, trials - successes + 1, tail) if successes else 0.0
    high = special.betaincinv(successes + 1, trials - successes, 1 - tail) if successes < trials else 1.0
    assert binomial_interval(successes, trials, confidence) == pytest.approx((low, high), abs=1e-9)


def test_mean_interval_is_students():
    values = np.random.default_rng(2).normal(3, 2, 7)
    expected = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    assert mean_interval(values) == pytest.approx(tuple(expected), rel=1e-12)
    with pytest.raises(ValueError, match="at least two"):
        mean_interval(values[:1])


def test_ends_of_the_ratio_interval_are_where_student_begins_to_reject():
    rng = np.random.default_rng(3)
    over, under = rng.normal(6, 1, 5), rng.normal(2, 0.3, 5)
    low, high = ratio_interval(over, under, 0.9)
    assert 0 < low < over.mean() / under.mean() < high
    for end in (low, high):
        assert stats.ttest_1samp(over - end * under, 0).pvalue == pytest.approx(0.1, abs=1e-9)


@pytest.mark.parametrize("over", [[3.0, 3.1, 2.9], [3.1, 2.5, 3.5]], ids=["independent", "correlated"])
def test_ratio_interval_is_open_where_the_lower_mean_may_be_zero(over):
    under = [0.1, -0.1, 0.2]
    low, high = ratio_interval(over, under)
    assert high == np.inf and low > 0
    assert stats.ttest_1samp(np.array(over) - low * np.array(under), 0).pvalue == pytest.approx(0.05)
    assert ratio_interval([0.3, -0.1, 0.2], under) == (0.0, np.inf)


def test_ratio_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(4)
    trials = 2000
    ends = np.array([ratio_interval(rng.normal(4, 1, 4), rng.normal(2, 1, 4), 0.8) for _ in range(trials)])
    covered = int(((ends[:, 0] <= 2) & (ends[:, 1] >= 2)).sum())
    # Where it is open to zero or infinity it covers more.
    assert stats.binomtest(covered, trials, 0.8, "less").pvalue > 1e-4 and covered < 0.9 * trials


@pytest.mark.slow
def test_intervals_by_model_are_as_wide_as_models_vary():
    # A hit is a property of one model: pairs of it agree, and 45 pairs are worth about ten trials.
    rng = np.random.default_rng(0)
    pairs = list(itertools.combinations(range(10), 2))
    covered, narrow = 0, 0
    for _ in range(200):
        odd = rng.random(10) < 0.3
        hits = [bool(odd[a] or odd[b]) for a, b in pairs]
        truth = 1 - 0.7**2
        low, high = model_interval(hits, pairs)
        covered += low <= truth <= high
        low, high = binomial_interval(sum(hits), len(hits))
        narrow += low <= truth <= high
    assert covered > 160 > narrow + 20


def test_disjoint_pairs_give_nearly_the_bootstrap_of_trials():
    hits = [True] * 30 + [False] * 70
    pairs = [(2 * i, 2 * i + 1) for i in range(100)]
    low, high = model_interval(hits, pairs, confidence=0.9)
    # Weights n_a n_b of disjoint pairs vary more than those of single trials: about √3 as wide.
    assert 0.11 < 0.3 - low < 0.16 and 0.11 < high - 0.3 < 0.16
    assert (low, high) == model_interval(hits, pairs, confidence=0.9)


def test_pairs_that_all_agree_count_as_disjoint_ones():
    pairs = list(itertools.combinations("abcdefgh", 2))
    assert model_interval([False] * 28, pairs) == binomial_interval(0, 4)
    assert model_interval([True] * 28, pairs) == binomial_interval(4, 4)
    # Pairs that all share one model are one trial, however many there are.
    star = [("base", suspect) for suspect in range(20)]
    assert model_interval([False] * 20, star) == binomial_interval(0, 1)
    assert model_interval([True] * 21, [*star, ("other", 3)]) == binomial_interval(2, 2)


def test_bad_pairs_are_refused():
    with pytest.raises(ValueError, match="itself"):
        model_interval([True, False], [(1, 1), (1, 2)])
    for hits, pairs in (([], []), ([True], [(1, 2), (2, 3)])):
        with pytest.raises(ValueError, match="one for each"):
            model_interval(hits, pairs)
