import itertools
import math

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.seedprint import permutation as perm
from bornbiased_jax.stats.ranks import rank_correlation


def factor_outputs(rng, num_inputs, width, *, factors=3, noise=0.5):
    """Two independent exchangeable models on shared inputs, their coordinates strongly dependent."""
    inputs = rng.standard_normal((num_inputs, factors))
    return [
        inputs @ rng.standard_normal((factors, width)) + noise * rng.standard_normal((num_inputs, width))
        for _ in range(2)
    ]


def test_moments_over_all_permutations_of_eight():
    cross = np.random.default_rng(0).standard_normal((8, 8))
    every = np.array(list(itertools.permutations(range(8))))
    sums = cross[np.arange(8)[None, :], every].sum(axis=1)
    assert len(sums) == math.factorial(8)
    mean, variance = perm.moments(cross)
    assert mean == pytest.approx(sums.mean(), abs=1e-12)
    assert variance == pytest.approx(sums.var(), rel=1e-12)


def test_small_widths_are_enumerated():
    rng = np.random.default_rng(1)
    cross = rng.standard_normal((6, 6)) + 0.8 * np.eye(6)
    result = perm.permutation_p(cross, num_permutations=10)
    every = [sum(cross[j, p[j]] for j in range(6)) for p in itertools.permutations(range(6))]
    assert result.enumerated and result.num_permutations == 720
    assert result.p_value == sum(s >= np.trace(cross) - 1e-9 for s in every) / 720
    assert result.z == pytest.approx((np.trace(cross) - np.mean(every)) / np.std(every), rel=1e-12)


def test_p_over_all_labellings_is_exactly_uniform():
    # Relabelling one fixed pair in all 6! ways gives every rank once (tied ones the larger of theirs):
    # the exactness that the test rests on.
    base, suspect = factor_outputs(np.random.default_rng(2), 25, 6)
    cross = rank_correlation(base, suspect)
    ranks = sorted(
        round(perm.permutation_p(cross[:, list(order)], num_permutations=1).p_value * 720)
        for order in itertools.permutations(range(6))
    )
    excess = np.array(ranks) - np.arange(1, 721)
    assert (excess >= 0).all()
    assert (excess == 0).mean() > 0.9


def test_random_permutations_are_permutations_and_uniform():
    drawn = np.concatenate(list(perm.permutations(4, 24_000, seed=5)))
    assert (np.sort(drawn, axis=1) == np.arange(4)[None, :]).all()
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 24
    assert stats.chisquare(counts).pvalue > 1e-4
    again = np.concatenate(list(perm.permutations(4, 24_000, seed=5)))
    np.testing.assert_array_equal(drawn, again)


def test_permutation_batches_cover_the_count_asked_for():
    sizes = [len(batch) for batch in perm.permutations(1000, 5001, seed=0, batch=2048)]
    assert sum(sizes) == 5001 and max(sizes) <= 2048


@pytest.mark.parametrize("pairs", [(), (5,)])
def test_p_counts_the_permuted_sums(pairs):
    rng = np.random.default_rng(3)
    cross = rng.standard_normal((*pairs, 12, 12)) + 0.5 * np.eye(12)
    drawn = np.concatenate(list(perm.permutations(12, 3000, seed=9)))
    sums = np.stack([cross[..., np.arange(12), p].sum(axis=-1) for p in drawn], axis=-1)
    np.testing.assert_allclose(perm.permuted_sums(cross, drawn), sums, atol=1e-12)
    observed = np.trace(cross, axis1=-2, axis2=-1)
    expected = (sums >= observed[..., None]).sum(axis=-1)
    np.testing.assert_array_equal(perm.exceedances(cross, num_permutations=3000, seed=9), expected)


def test_p_is_never_zero_and_ties_count_against_rejection():
    cross = np.eye(40)
    result = perm.permutation_p(cross, num_permutations=199)
    assert result.p_value == 1 / 200
    # Two blocks of equal coordinates: many labellings give exactly the identity's sum, rounded differently.
    block = np.kron(np.eye(2), np.full((5, 5), 0.1))
    every = math.factorial(5) ** 2 / math.factorial(10) * 1.0
    many = perm.permutation_p(block, num_permutations=20_000)
    error = math.sqrt(every * (1 - every) / 20_000)
    assert abs(many.p_value - 2e4 * every / 20_001) < 5 * error + 1 / 20_001


# 400 pairs a case; a rate is refused beyond what has probability 1e-4 under exactness.
@pytest.mark.parametrize(
    ("correlation", "rule"),
    [
        ("spearman", None),
        ("kendall", None),
        ("spearman", perm.top_mean(14)),
        ("spearman", perm.bottom_mean(10)),
    ],
)
def test_calibrated_on_dependent_coordinates(correlation, rule):
    rng = np.random.default_rng(11)
    pairs = 400
    p_values = []
    for pair in range(pairs):
        base, suspect = factor_outputs(rng, 30, 20)
        verdict = perm.permutation_test(
            base, suspect, alpha=0.05, num_permutations=199, seed=pair, correlation=correlation, rule=rule
        )
        p_values.append(verdict.p_value)
    p_values = np.array([p for p in p_values if p is not None])
    assert len(p_values) > 0.9 * pairs
    for level in (0.05, 0.25, 0.5):
        # p is a multiple of 1/200, so p ≤ level has probability level exactly.
        below = int((p_values <= level + 1e-9).sum())
        assert stats.binomtest(below, len(p_values), level).pvalue > 1e-4


def test_finds_a_weakly_shared_labelling():
    rng = np.random.default_rng(12)
    base = rng.standard_normal((400, 64))
    suspect = 0.1 * base + rng.standard_normal((400, 64))
    verdict = perm.permutation_test(base, suspect)
    # Each correlation is 0.1 with standard error 0.05: the sum over 64 is 16 standard errors out.
    assert verdict.verdict == "same-lineage" and verdict.p_value == 1 / 10_000
    assert 10 < verdict.z < 22 and verdict.log10_p < -20


def test_monotone_rescaling_of_coordinates_changes_nothing():
    rng = np.random.default_rng(13)
    base, suspect = factor_outputs(rng, 50, 16)
    plain = perm.permutation_test(base, suspect)
    bent = perm.permutation_test(np.exp(3 * base), suspect**3)
    assert (plain.p_value, plain.z) == (bent.p_value, bent.z)


def test_choosing_by_the_pairing_would_always_reject():
    # The reason why a rule sees one model only: the best-paired coordinates reject for unrelated models.
    rng = np.random.default_rng(14)
    base, suspect = factor_outputs(rng, 40, 60)
    paired = np.argsort(-np.diag(rank_correlation(base, suspect)))[:20]
    cheated = perm.permutation_test(base[:, paired], suspect[:, paired])
    honest = perm.permutation_test(base, suspect)
    assert cheated.p_value < 0.01 < honest.p_value


def test_undefined_with_its_reason():
    rng = np.random.default_rng(15)
    good = rng.standard_normal((30, 20))
    constant = np.ones_like(good)
    cases = {
        "widths differ": (good, good[:, :19]),
        "too few": (good[:2], good[:2]),
        "base gives constant": (constant, good),
        "suspect gives constant": (good, constant),
        "labellings": (good[:, :4], good[:, :4]),
    }
    for words, (base, suspect) in cases.items():
        verdict = perm.permutation_test(base, suspect)
        assert verdict.verdict == "undefined" and words in verdict.reason
        assert verdict.p_value is verdict.log10_p is verdict.z is None
    few = perm.permutation_test(good, rng.standard_normal((30, 20)), rule=perm.top_mean(1))
    assert few.verdict == "undefined" and "chosen in both" in few.reason


def test_labels_that_cannot_be_told_apart_are_undefined():
    column = np.random.default_rng(16).standard_normal((30, 1))
    same = np.repeat(column, 12, axis=1)
    verdict = perm.permutation_test(same, same)
    assert verdict.verdict == "undefined" and "every labelling" in verdict.reason


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
    assert perm.enough_permutations(1e-5) * 1e-5 > 19


@pytest.mark.parametrize("width", [12, 64, 400])
def test_no_p_lies_below_that_of_one_labelling(width):
    """Perfect agreement: the identity alone of D! labellings reaches it, where the normal tail would go far below."""
    found = perm.permutation_p(1000.0 * np.eye(width), num_permutations=99)
    assert found.z == pytest.approx(width - 1)
    assert stats.norm.logsf(found.z) < -math.lgamma(width + 1)
    assert found.log10_p == pytest.approx(-math.lgamma(width + 1) / math.log(10), rel=1e-12)
