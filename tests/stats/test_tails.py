import math

import numpy as np
import pytest
from scipy import special, stats

from bornbiased_jax.stats import tails


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
