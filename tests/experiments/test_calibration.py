import json

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax import sweep
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments._shared import calibration
from bornbiased_jax.lineage.untrained_outputs import final_outputs
from bornbiased_jax.probes import inputs
from bornbiased_jax.record import jsonable
from bornbiased_jax.stats.kendall import tau_b
from tests.tiers import nightly_except

SIZES = dict(num_layers=2, num_heads=2, d_model=32, vocab_size=128, max_seq_len=8, d_ff=48)


def permuted(pairs):
    return calibration.summarize_verdicts(
        [calibration.permutation_verdict(*pair, index, num_permutations=399) for index, pair in enumerate(pairs)]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "init"),
    nightly_except(
        [("gpt2-tiny", "gpt2-scaled"), ("llama-tiny", "normal-0.02"), ("qwen-tiny", "gpt2-scaled")],
        ("llama-tiny", "normal-0.02"),
    ),
)
def test_permutation_test_is_calibrated_on_untrained_models(name, init):
    cfg = preset(name, **SIZES, init=init)
    x = inputs.random_tokens(48, 4, 128)
    summary = permuted(calibration.unrelated_pairs(cfg, x, 150))
    family = calibration.check_family({"permutation": summary}, family_error=1e-3)
    assert family.calibrated and family.num_checks == 3
    assert summary.num_undefined == 0
    # z has variance 1 over exact relabelings: mean within 4 standard errors of 0.
    assert abs(summary.z_mean) < 4 / np.sqrt(150)
    json.dumps(jsonable(family), allow_nan=False)


@pytest.mark.nightly
@pytest.mark.slow
def test_power_stands_beside_the_rate():
    cfg, x = preset("gpt2-tiny", **SIZES), inputs.random_tokens(48, 4, 128)
    near, far = (permuted(calibration.related_pairs(cfg, x, 40, drift=drift)) for drift in (0.9, 1.0))
    assert near.rates[0].rate == 1.0
    # Fully drifted, a descendant is an unrelated model.
    assert calibration.check_family({"far": far}, family_error=1e-3).calibrated


@pytest.mark.nightly
@pytest.mark.slow
def test_shared_vectors_break_the_permutation_test_and_not_the_population_test():
    cfg = preset("llama-tiny", **SIZES)
    x = inputs.gaussian(48, 4, 32)
    assert permuted(calibration.unrelated_pairs(cfg, x, 20)).rates[0].rate > 0.9
    verdicts = list(calibration.population_pairs(cfg, x, 10, num_references=100))
    rejected = sum(verdict.p_value < 0.05 for verdict in verdicts)
    assert stats.binomtest(rejected, 10, 0.05, alternative="greater").pvalue > 1e-4


@pytest.mark.slow
def test_pairs_are_disjoint_untrained_models_whatever_the_chunk(monkeypatch):
    cfg = preset("gpt2-tiny", **SIZES)
    x = inputs.random_tokens(48, 4, 128)
    together = list(final_outputs(cfg, range(5, 11), x))
    monkeypatch.setattr(sweep, "MAX_CHUNK", 3)
    pairs = list(calibration.unrelated_pairs(cfg, x, 3, first_seed=5))
    assert len(pairs) == 3
    for index, (base, suspect) in enumerate(pairs):
        np.testing.assert_allclose(base, together[2 * index], rtol=0, atol=2e-5)
        np.testing.assert_allclose(suspect, together[2 * index + 1], rtol=0, atol=2e-5)
    assert not np.allclose(pairs[0][0], pairs[0][1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tokens", "gaussian"])
def test_drift_leads_from_one_untrained_model_to_the_other(kind):
    cfg = preset("gpt2-tiny", **SIZES)
    x = inputs.random_inputs(kind, 48, 4, cfg)
    initializations = list(final_outputs(cfg, [1, 2], x))
    for drift, expected in ((0.0, initializations[0]), (1.0, initializations[1])):
        ((base, suspect),) = calibration.related_pairs(cfg, x, 1, drift=drift, first_seed=1)
        np.testing.assert_allclose(base, initializations[0], rtol=0, atol=2e-5)
        np.testing.assert_allclose(suspect, expected, rtol=0, atol=2e-5)
    with pytest.raises(InputError, match="vocabulary"):
        next(final_outputs(cfg, [1], inputs.from_tokens(np.full((2, 4), 128, np.int32), 129)))


@pytest.mark.slow
def test_figure_13_taus_are_centered_on_zero():
    cfg = preset("gpt2-tiny", **SIZES)
    pairs = calibration.unrelated_pairs(cfg, inputs.random_tokens(48, 4, 128), 60)
    taus = np.stack([tau_b(base_ND, suspect_ND) for base_ND, suspect_ND in pairs])
    assert taus.shape == (60, 32)
    means = taus.mean(axis=1)  # one a pair: the coordinates of a pair depend on one another
    assert abs(stats.ttest_1samp(means, 0.0).statistic) < 4


def test_summary_counts_and_intervals():
    p = np.random.default_rng(0).uniform(size=500)
    summary = calibration.summarize([*p, None], [*stats.norm.isf(p), None])
    assert (summary.num_pairs, summary.num_undefined) == (501, 1)
    rate = summary.rates[0]
    assert rate.count == (p < 0.01).sum() and rate.low <= rate.rate <= rate.high
    assert summary.ks_p == pytest.approx(stats.kstest(p, "uniform").pvalue)
    assert summary.z_mean == pytest.approx(stats.norm.isf(p).mean())
    nothing = calibration.summarize([None])
    assert nothing.rates == [] and nothing.ks_p is nothing.z_mean is None
    json.dumps(jsonable([summary, nothing]), allow_nan=False)


def test_a_test_that_rejects_too_often_is_not_calibrated():
    rng = np.random.default_rng(1)
    good = calibration.summarize(rng.uniform(size=500))
    bad = calibration.summarize(rng.uniform(size=500) ** 2)
    assert calibration.check_family({"good": good}).calibrated is True
    family = calibration.check_family({"good": good, "bad": bad})
    assert family.calibrated is False and family.num_checks == 6
    assert {check.case for check in family.checks if check.adjusted_p < 0.05} == {"bad"}


def test_too_few_rejections_are_no_calibration_either():
    for low, high in ((0.2, 1.0), (0.0, 0.5)):
        p_values = np.linspace(low, high, 800)[1:]
        (_, rate) = calibration.summarize(p_values).rates
        below = int((p_values < 0.05).sum())
        assert (rate.level, rate.count) == (0.05, below) and below in (0, 79)
        assert rate.binomial_p == pytest.approx(stats.binomtest(below, 799, 0.05, "two-sided").pvalue)
        assert rate.binomial_p < 1e-4
