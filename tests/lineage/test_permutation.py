import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import permutation as perm
from bornbiased_jax.stats.kendall import cross_kendall
from bornbiased_jax.stats.permutations import TIE, drawn_sums, moments
from bornbiased_jax.stats.ranks import rank_correlation
from tests.tiers import nightly_except


def factor_outputs(rng, num_inputs, width, *, factors=3, noise=0.5):
    """Two independent exchangeable models on shared inputs, their coordinates strongly dependent."""
    inputs = rng.standard_normal((num_inputs, factors))
    return [
        inputs @ rng.standard_normal((factors, width)) + noise * rng.standard_normal((num_inputs, width))
        for _ in range(2)
    ]


# 400 pairs a case; a rate is refused beyond what has probability 1e-4 under exactness.
@pytest.mark.slow
@pytest.mark.parametrize("correlation", nightly_except(["spearman", "kendall"], "kendall"))
def test_calibrated_on_dependent_coordinates(correlation):
    rng = np.random.default_rng(11)
    pairs = 400
    p_values = []
    for pair in range(pairs):
        base, suspect = factor_outputs(rng, 30, 20)
        verdict = perm.permutation_test(
            base, suspect, alpha=0.05, num_permutations=199, seed=pair, correlation=correlation
        )
        p_values.append(verdict.p_value)
    p_values = np.array([p for p in p_values if p is not None])
    assert len(p_values) > 0.9 * pairs
    for level in (0.05, 0.25, 0.5):
        # p is a multiple of 1/200, so p ≤ level has probability level exactly.
        below = int((p_values <= level + 1e-9).sum())
        assert stats.binomtest(below, len(p_values), level).pvalue > 1e-4


def test_finds_a_weakly_shared_labeling():
    rng = np.random.default_rng(12)
    base = rng.standard_normal((400, 64))
    suspect = 0.1 * base + rng.standard_normal((400, 64))
    verdict = perm.permutation_test(base, suspect)
    # Each correlation is 0.1 with standard error 0.05: the sum over 64 is 16 standard errors out.
    assert verdict.verdict == "same-lineage" and verdict.p_value < 1e-12
    assert 10 < verdict.z < 22 and verdict.log10_p < -20


def test_monotone_rescaling_of_coordinates_changes_nothing():
    rng = np.random.default_rng(13)
    base, suspect = factor_outputs(rng, 50, 16)
    plain = perm.permutation_test(base, suspect)
    bent = perm.permutation_test(np.exp(3 * base), suspect**3)
    assert (plain.p_value, plain.z) == (bent.p_value, bent.z)


def test_undefined_with_its_reason():
    rng = np.random.default_rng(15)
    good = rng.standard_normal((30, 20))
    constant = np.ones_like(good)
    cases = {
        "widths differ": (good, good[:, :19]),
        "2 inputs are too few": (good[:2], good[:2]),
        "2 coordinates are too few": (good[:, :2], good[:, :2]),
        "base gives constant": (constant, good),
        "suspect gives constant": (good, constant),
        "labelings": (good[:, :4], good[:, :4]),
    }
    for words, (base, suspect) in cases.items():
        verdict = perm.permutation_test(base, suspect)
        assert verdict.verdict == "undefined" and words in verdict.reason
        assert verdict.p_value is verdict.log10_p is verdict.z is None


def test_labels_that_cannot_be_told_apart_are_undefined():
    column = np.random.default_rng(16).standard_normal((30, 1))
    same = np.repeat(column, 12, axis=1)
    verdict = perm.permutation_test(same, same)
    assert verdict.verdict == "undefined" and "every labeling" in verdict.reason


def test_some_constant_coordinates_do_not_hide_the_rest():
    rng = np.random.default_rng(17)
    base = rng.standard_normal((100, 30))
    suspect = base + rng.standard_normal((100, 30))
    suspect[:, ::3] = 0.0
    assert perm.permutation_test(base, suspect).verdict == "same-lineage"


def test_bad_options_are_refused():
    good = np.random.default_rng(18).standard_normal((10, 12))
    with pytest.raises(InputError, match="99 permutations"):
        perm.permutation_test(good, good, num_permutations=99)
    with pytest.raises(InputError, match="alpha"):
        perm.permutation_test(good, good, alpha=1.0)
    with pytest.raises(InputError, match="spearman"):
        perm.permutation_test(good, good, correlation="pearson")
    with pytest.raises(InputError, match="NaN"):
        perm.permutation_test(good * np.nan, good)
    assert perm.enough_permutations(1e-4) == perm.enough_permutations(1e-9) == 199_999
    assert perm.enough_permutations(0.05) == 9_999
    perm.check_permutations(99, 1e-9)  # left to the bound


def test_kendalls_pairs_are_fifty_an_input():
    base, suspect = np.random.default_rng(19).standard_normal((2, 120, 9))
    verdict = perm.permutation_test(base, suspect, correlation="kendall", seed=4)
    drawn = cross_kendall(base, suspect, num_pairs=6_000, seed=4)
    assert verdict.detail["statistic"] == pytest.approx(np.trace(drawn), rel=1e-12)
    assert verdict.detail["statistic"] != pytest.approx(np.trace(cross_kendall(base, suspect)), rel=1e-9)


def test_the_seed_is_that_of_the_permutations():
    base, suspect = np.random.default_rng(20).standard_normal((2, 60, 20))
    counts = [perm.permutation_test(base, suspect, seed=seed).detail["exceedances"] for seed in (0, 0, 1, 2)]
    assert counts[0] == counts[1] and len(set(counts)) == 3
    cross = rank_correlation(base, suspect)
    least = np.trace(cross) - TIE * np.sqrt(moments(cross)[1])
    assert counts[2] == (drawn_sums(cross, 9_999, seed=1) >= least).sum()


def test_signs_set_free_are_negated_for_nothing():
    rng = np.random.default_rng(21)
    base = rng.standard_normal((200, 40))
    suspect = base + 2 * rng.standard_normal(base.shape)
    negated = suspect * np.where(np.arange(40) % 2, 1.0, -1.0)
    free = perm.permutation_test(base, suspect, signs="free")
    assert perm.permutation_test(base, negated).p_value > 0.01
    again = perm.permutation_test(base, negated, signs="free")
    assert (again.p_value, again.z) == (free.p_value, free.z) and free.p_value < 1e-4
    # Little is lost while correlations are large, and most of it where each is below its standard error.
    weak = base + 20 * rng.standard_normal(base.shape)
    signed, lost = (perm.permutation_test(base, weak, signs=signs) for signs in ("kept", "free"))
    assert signed.z > lost.z + 1
    assert free.detail["statistic"] == pytest.approx(np.abs(np.diag(rank_correlation(base, suspect))).sum())
    with pytest.raises(InputError, match="kept, free"):
        perm.permutation_test(base, suspect, signs="lost")


def test_beyond_the_permutations_the_bound_decides():
    rng = np.random.default_rng(22)
    base = rng.standard_normal((300, 50))
    verdict = perm.permutation_test(base, base + 0.5 * rng.standard_normal(base.shape), alpha=1e-30)
    assert verdict.detail["exceedances"] == 0
    assert verdict.verdict == "same-lineage" and verdict.log10_p == verdict.detail["log10_p_bound"] < -30
    assert verdict.detail["log10_p_moments"] < verdict.log10_p
