"""The two published forms: their formulas against SciPy, and the failures that they are known for."""

import json
import math

import numpy as np
import pytest
from scipy import special, stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import paper
from bornbiased_jax.lineage.paper import default_num_dims, iclr_test, null_taus, paper_test


def independent(rng, num_inputs, width):
    return rng.standard_normal((2, num_inputs, width)).astype(np.float32)


def related(rng, num_inputs, width, fraction):
    base, suspect = independent(rng, num_inputs, width)
    return base, (fraction * base + suspect).astype(np.float32)


@pytest.mark.parametrize("fraction", [0.0, 0.05, 1.0])
def test_iclr_equals_its_formula_by_scipy(fraction):
    base, suspect = related(np.random.default_rng(0), 300, 40, fraction)
    num_dims = 21
    verdict = iclr_test(base, suspect, num_dims=num_dims)
    actual = set(np.argsort(base.astype(float).mean(axis=0))[:num_dims])
    reference = set(np.argsort(suspect.astype(float).mean(axis=0))[:num_dims])
    dims = sorted(actual & reference)
    x = special.softmax(base[:, dims].astype(float) / 10, axis=1)
    y = special.softmax(suspect[:, dims].astype(float) / 10, axis=1)
    mean_tau = np.mean([stats.kendalltau(a, b).statistic for a, b in zip(x.T, y.T, strict=True)])
    n, k = 300, len(dims)
    z = mean_tau * math.sqrt(k) / math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))
    assert verdict.detail["num_dims"] == k
    assert verdict.detail["mean_tau"] == pytest.approx(mean_tau, abs=1e-12)
    assert verdict.z == pytest.approx(z, abs=1e-9)
    assert verdict.p_value == pytest.approx(min(1.0, 2 * stats.norm.sf(z)), abs=1e-12)
    assert verdict.log10_p == pytest.approx(min(0.0, (math.log(2) + stats.norm.logsf(z)) / math.log(10)), rel=1e-9)


def test_paper_equals_algorithm_one_by_scipy(monkeypatch):
    base, suspect = related(np.random.default_rng(1), 200, 60, 0.1)
    num_dims, draws = 30, 3
    monkeypatch.setattr(paper, "NULL_DRAWS", draws)
    verdict = paper_test(base, suspect, num_dims=num_dims)
    dims = sorted(
        set(np.argsort(-base.astype(float).mean(axis=0))[:num_dims])
        & set(np.argsort(-suspect.astype(float).mean(axis=0))[:num_dims])
    )
    taus = [stats.kendalltau(base[:, j].astype(float), suspect[:, j].astype(float)).statistic for j in dims]
    nulls = [null_taus(200, 60, num_dims, draw) for draw in range(draws)]
    t = np.mean([stats.ttest_ind(taus, null, alternative="greater").pvalue for null in nulls])
    u = np.mean([stats.mannwhitneyu(taus, null, alternative="greater", method="asymptotic").pvalue for null in nulls])
    assert verdict.detail["p_t"] == pytest.approx(t, rel=1e-9) and verdict.p_value == verdict.detail["p_t"]
    assert verdict.detail["p_u"] == pytest.approx(u, rel=1e-9)
    assert verdict.z == pytest.approx(stats.norm.isf(t), rel=1e-9)


@pytest.mark.slow
def test_gaussian_null_has_kendalls_variance():
    num_inputs, width = 500, 400
    taus = np.concatenate([null_taus(num_inputs, width, width, draw) for draw in range(5)])
    assert len(taus) == 5 * width
    variance = 2 * (2 * num_inputs + 5) / (9 * num_inputs * (num_inputs - 1))
    z = taus / math.sqrt(variance)
    # Mean and variance of 2,000 nearly normal draws, within 4 standard errors.
    assert abs(z.mean()) < 4 / math.sqrt(len(z))
    assert abs(z.var() - 1) < 4 * math.sqrt(2 / len(z))


def test_extreme_p_values_stay_in_log_space(monkeypatch):
    monkeypatch.setattr(paper, "NULL_DRAWS", 2)
    base = np.random.default_rng(2).standard_normal((3000, 300)).astype(np.float32)
    suspect = base + 1e-3 * np.random.default_rng(3).standard_normal(base.shape).astype(np.float32)
    for verdict in (paper_test(base, suspect), iclr_test(base, suspect)):
        assert verdict.verdict == "same-lineage"
        assert verdict.log10_p < -320 and math.isfinite(verdict.log10_p)
        json.dumps(verdict.to_json(), allow_nan=False)
    u = paper_test(base, suspect).detail["log10_p_u"]
    assert -120 < u < -20  # ranks can say no more than this


def test_default_m_is_in_proportion():
    assert default_num_dims(768) == 400 and default_num_dims(4096) == 2133 and default_num_dims(1) == 1


@pytest.mark.parametrize("test", [paper_test, iclr_test])
def test_silent_failures_of_the_published_code_are_undefined(test):
    rng = np.random.default_rng(5)
    base, suspect = independent(rng, 50, 20)
    # Opposite means make the chosen sets disjoint: an empty intersection gave NaN and then p = 1.
    tilt = np.linspace(-50, 50, 20, dtype=np.float32)[None, :]
    disjoint = test(base + tilt, suspect - tilt, num_dims=8)
    two = test(base + tilt, suspect + np.roll(tilt, 6), num_dims=8)
    cases = {
        "share 0": disjoint,
        "share 2": two,
        "widths differ": test(base, suspect[:, :19]),
        "too few": test(base[:9], suspect[:9]),
        "constant outputs": test(np.where(np.arange(20)[None, :] == 3, 0.0, base), suspect, num_dims=20),
        "base gives constant": test(np.ones_like(base), suspect),
    }
    for words, verdict in cases.items():
        assert verdict.verdict == "undefined", words
        assert words in verdict.reason
        assert verdict.p_value is None and verdict.to_json()["p_value"] is None


def test_bad_options_are_refused():
    base, suspect = independent(np.random.default_rng(6), 30, 20)
    for wrong in ({"alpha": 0.0}, {"num_dims": 0}, {"num_dims": -3}):
        with pytest.raises(InputError):
            paper_test(base, suspect, **wrong)
    with pytest.raises(InputError, match="num_dims"):
        iclr_test(base, suspect, num_dims=0)
    with pytest.raises(InputError, match="NaN"):
        iclr_test(base * np.nan, suspect)


def test_every_null_draw_is_another(monkeypatch):
    draws = [null_taus(40, 12, 12, draw) for draw in range(6)]
    for index, first in enumerate(draws):
        for second in draws[:index]:
            assert not np.isclose(first, second).all()
    requests = []
    monkeypatch.setattr(paper, "null_taus", lambda *which: requests.append(which) or null_taus(*which))
    base, suspect = independent(np.random.default_rng(8), 40, 12)
    paper_test(base, suspect, num_dims=12)
    assert requests == [(40, 12, 12, draw) for draw in range(10)]
