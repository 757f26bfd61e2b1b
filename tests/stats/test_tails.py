"""p-values where double precision gives up: Table 1 is reproduced, and nothing underflows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from bornbiased_jax.stats import tails
from bornbiased_jax.stats.tails import (
    expected_top_count,
    log10_binomial_tail,
    log10_chi2_tail,
    log10_preference_p,
    log10_rayleigh_p,
)


@pytest.mark.parametrize("df", [1.0, 5.0, 206.0, 1e5])
@pytest.mark.parametrize("t", [-3.0, 0.0, 2.0, 9.0])
def test_t_tail_equals_scipy_where_scipy_does_not_underflow(t, df):
    assert tails.log_t_sf(t, df) == pytest.approx(math.log(stats.t.sf(t, df)), rel=1e-12)


@pytest.mark.parametrize(("t", "df"), [(60.0, 800.0), (400.0, 206.0), (39.0, 1e5), (1e9, 50.0), (80.0, 600.0)])
def test_t_tail_far_out_equals_its_integral(t, df):
    # ∫ density by quadrature in log space: substitute u = log(x/t), integrate on a fine grid.
    u = np.concatenate([[0.0], np.geomspace(1e-9, 40.0, 400_001)])
    x = t * np.exp(u)
    log_density = stats.t.logpdf(x, df) + np.log(x)
    peak = log_density.max()
    integral = np.trapezoid(np.exp(log_density - peak), u)
    expected = peak + math.log(integral)
    assert expected < -600  # out of a double's reach
    assert tails.log_t_sf(t, df) == pytest.approx(expected, rel=1e-8)


def test_normal_tail_and_its_inverse():
    for z in (-2.0, 0.0, 5.0, 200.0):
        log_p = tails.log_normal_sf(z)
        assert tails.normal_isf(log_p) == pytest.approx(z, rel=1e-9, abs=1e-9)
    assert tails.log_normal_sf(200.0) == pytest.approx(special.log_ndtr(-200.0))


def test_student_and_mann_whitney_equal_scipy():
    rng = np.random.default_rng(0)
    for shift in (-0.5, 0.0, 1.0):
        sample, null = rng.standard_normal(31) + shift, rng.standard_normal(24)
        t = stats.ttest_ind(sample, null, alternative="greater").pvalue
        assert math.exp(tails.log_student_greater(sample, null)) == pytest.approx(t, rel=1e-10)
        sample, null = np.round(sample, 1), np.round(null, 1)  # with ties
        u = stats.mannwhitneyu(sample, null, alternative="greater", method="asymptotic").pvalue
        assert math.exp(tails.log_mann_whitney_greater(sample, null)) == pytest.approx(u, rel=1e-10)


def test_samples_that_do_not_vary_have_no_p():
    same = np.ones(5)
    assert math.isnan(tails.log_student_greater(same, same))
    assert math.isnan(tails.log_mann_whitney_greater(same, same))
    assert math.isnan(tails.log_student_greater(same[:1], same))


def test_mean_of_p_values_in_log_space():
    assert tails.log_mean(np.log([0.2, 0.4])) == pytest.approx(math.log(0.3))
    assert tails.log_mean(np.array([-2000.0, -3000.0])) == pytest.approx(-2000.0 - math.log(2.0))


# Frequency, N, V, and the p printed in Table 1 of "Transformers Are Born Biased".
TABLE_1 = [
    (52, 2_000, 50_304, 4.55e-137, 5e-3),
    (60, 2_000, 50_304, 2.20e-162, 5e-3),
    (97, 2_000, 50_304, 6.59e-285, 5e-3),
    (79, 2_000, 50_304, 2.57e-224, 5e-3),
    (6, 10_000, 32_000, 3.16e-2, 5e-3),
    (7, 10_000, 32_000, 1.40e-3, 5e-3),
    (9, 10_000, 32_000, 1.90e-6, 1e-2),
]


@pytest.mark.parametrize(("count", "n", "vocab", "printed", "relative"), TABLE_1)
def test_table_1(count, n, vocab, printed, relative):
    assert 10 ** (log10_preference_p(count, n, vocab) - math.log10(printed)) == pytest.approx(1, rel=relative)


@pytest.mark.parametrize(("count", "expected"), [(104, -308.17), (105, None), (135, None), (2_000, None)])
def test_rows_that_the_paper_prints_as_zero_stay_finite(count, expected):
    value = log10_preference_p(count, 2_000, 50_304)
    assert math.isfinite(value)
    assert value < -308
    if expected is not None:
        assert value == pytest.approx(expected, abs=5e-3)


def test_the_paper_settings_of_its_text_would_not_give_its_p_values():
    """Negative control: N = 10,000 and V = 50,000, as the text says, miss Table 1(a) by hundreds of decades."""
    assert abs(log10_preference_p(260, 10_000, 50_000) - math.log10(4.55e-137)) > 100


@given(st.integers(1, 400), st.data(), st.floats(1e-4, 0.999))
def test_binomial_tail_against_scipy_where_scipy_can(n, data, p):
    k = data.draw(st.integers(0, n))
    exact = stats.binom.sf(k - 1, n, p)
    if exact > 1e-290:
        assert log10_binomial_tail(k, n, p) == pytest.approx(math.log10(exact), abs=1e-9, rel=1e-9)


@given(st.floats(1.0, 2_000.0), st.floats(0.0, 6_000.0))
def test_chi2_tail_against_scipy_where_scipy_can(dof, value):
    exact = stats.chi2.sf(value, dof)
    if exact > 1e-300:
        assert log10_chi2_tail(value, dof) == pytest.approx(math.log10(exact), abs=1e-9, rel=1e-9)


def test_chi2_tail_has_no_seam_where_the_method_changes():
    """The density of the tail in log space is smooth: second differences across the switch stay small."""
    values = np.linspace(2_000.0, 3_500.0, 301)
    logs = np.asarray([log10_chi2_tail(v, 768) for v in values])
    assert logs[0] > -280 > logs[-1]
    assert np.max(np.abs(np.diff(logs, 2))) < 1e-2
    assert np.all(np.diff(logs) < 0)


def test_rayleigh_is_uniform_under_its_null():
    rng = np.random.default_rng(0)
    n, dim, repeats = 200, 24, 600
    vectors = rng.standard_normal((repeats, n, dim))
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    sums = np.square(vectors.sum(1)).sum(-1)
    p = np.asarray([10 ** log10_rayleigh_p((s - n) / (n * (n - 1)), n, dim) for s in sums])
    assert stats.kstest(p, "uniform").pvalue > 1e-3


def test_expected_top_count_against_simulation():
    rng = np.random.default_rng(1)
    n, vocab, repeats = 2_000, 5_000, 400
    tops = np.asarray([np.bincount(rng.integers(0, vocab, n), minlength=vocab).max() for _ in range(repeats)])
    assert abs(expected_top_count(n, vocab) - tops.mean()) < 5 * tops.std() / math.sqrt(repeats) + 0.01


@pytest.mark.parametrize("call", [(-1, 5, 0.5), (6, 5, 0.5), (0, 0, 0.5), (1, 5, 0.0), (1, 5, 1.0)])
def test_out_of_range_arguments_raise(call):
    with pytest.raises(ValueError, match="need|outside"):
        log10_binomial_tail(*call)


def test_rayleigh_counts_the_pairs_of_every_vector_with_the_others():
    vectors = np.random.default_rng(2).standard_normal((5, 3))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    gram = vectors @ vectors.T
    mean_cosine = (gram.sum() - 5) / 20
    statistic = 3 * np.square(vectors.sum(0)).sum() / 5
    assert log10_rayleigh_p(mean_cosine, 5, 3) == pytest.approx(stats.chi2.logsf(statistic, 3) / math.log(10))


def test_fisher_and_spearman_tails_equal_scipy_where_it_does_not_underflow():
    rng = np.random.default_rng(0)
    for count in (1, 2, 7):
        p = rng.random(count)
        assert math.exp(tails.log_fisher(np.log(p))) == pytest.approx(stats.combine_pvalues(p).pvalue, rel=1e-10)
    far = tails.log_fisher(np.full(32, -1000.0))
    x, k = 32_000.0, np.arange(32)
    assert far == pytest.approx(-x + np.logaddexp.reduce(k * math.log(x) - [math.lgamma(i + 1) for i in k]))
    assert tails.log_fisher(np.zeros(3)) == 0.0
    assert math.isnan(tails.log_fisher(np.array([]))) and math.isnan(tails.log_fisher(np.array([np.nan])))
    for _ in range(5):
        a, b = rng.permutation(30), rng.permutation(30)
        expected = stats.spearmanr(a, b)
        assert tails.spearman(a, b) == pytest.approx(expected.statistic)
        assert math.exp(tails.log_spearman(a, b)) == pytest.approx(expected.pvalue, rel=1e-9)
    assert tails.log_spearman(a, a[::-1][np.argsort(np.argsort(a))]) <= 0
    assert tails.log_spearman(np.arange(30), np.arange(30)[::-1]) == tails.log_spearman(a, a)
    assert math.isnan(tails.log_spearman(np.arange(2), np.arange(2)))
