"""p-values where double precision gives up: Table 1 comes back, and nothing underflows."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bornbiased_jax.stats.significance import (
    expected_top_count,
    log10_binomial_tail,
    log10_chi2_tail,
    log10_preference_p,
    log10_rayleigh_p,
)

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


def test_rayleigh_rejects_a_common_direction():
    assert log10_rayleigh_p(0.46, 2_000, 768) < -1e4
    assert log10_rayleigh_p(0.0, 2_000, 768) > -1.0


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
