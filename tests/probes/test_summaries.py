"""What summaries say of hand-made counts and sums, field by field, against SciPy."""

import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.probes import contraction, preference
from bornbiased_jax.probes.contraction import ContractionSums
from bornbiased_jax.probes.preference import PreferenceState

COUNTS_V = np.array([0, 0, 9, 3, 0, 9, 1, 0, 0, 0, 0, 2] + [0] * 28)
N, V, D = 24, 40, 5
DIMENSIONS_LD = np.array([[4, 10, 0, 10, 0], [3, 3, 2, 1, 15]])


def bonferroni(count, cells):
    """log₁₀ of min(1, cells · P(X ≥ count)), X ~ Bin(N, 1/cells)."""
    return min(0.0, np.log10(cells * stats.binom.sf(count - 1, N, 1 / cells)))


@pytest.fixture(scope="module")
def counted():
    return preference.summarize(PreferenceState(COUNTS_V, DIMENSIONS_LD), vocab_size=V, num_ranked=4)


def test_preference_counts(counted):
    assert (counted["num_inputs"], counted["top1_id"], counted["top1_count"]) == (N, 2, 9)  # the smaller of two ids
    assert counted["top1_share"] == 9 / 24
    assert counted["num_distinct_tokens"] == 5
    assert counted["ranked_ids"] == [2, 5, 3, 11] and counted["ranked_counts"] == [9, 9, 3, 2]
    every = preference.summarize(PreferenceState(COUNTS_V, DIMENSIONS_LD), vocab_size=V)
    assert every["ranked_ids"] == [2, 5, 3, 11, 6] and every["ranked_counts"] == [9, 9, 3, 2, 1]


def test_preference_p_is_corrected_over_the_vocabulary(counted):
    """With V = 40, of which 5 were seen: either number in the other's place is far off."""
    assert counted["log10_p"] == pytest.approx(bonferroni(9, V), rel=1e-9)
    assert abs(counted["log10_p"] - bonferroni(9, 5)) > 1
    # A count that any model reaches has p = 1.
    even = preference.summarize(PreferenceState(np.array([12, 12]), DIMENSIONS_LD), vocab_size=2)
    assert even["log10_p"] == 0.0


def test_preference_ratio_is_to_the_expected_top_count(counted):
    """E[max] of N uniform draws, not the mean count N/V of a token."""
    levels = np.arange(60)
    expected = np.sum(1 - stats.poisson.cdf(levels, N / V) ** V)
    assert counted["uniform_top_count"] == pytest.approx(expected, rel=1e-9)
    assert counted["ratio_to_uniform"] == pytest.approx(9 / expected, rel=1e-9)
    assert expected > 3 * N / V


def test_preference_entropy_is_in_bits(counted):
    assert counted["entropy_bits"] == pytest.approx(stats.entropy(COUNTS_V, base=2), rel=1e-12)
    alone = preference.summarize(PreferenceState(np.array([0, N, 0]), DIMENSIONS_LD), vocab_size=3)
    assert alone["entropy_bits"] == 0.0


def test_preference_of_dimensions(counted):
    assert counted["top_dimension_by_layer"] == [1, 4]
    assert counted["top_dimension_count_by_layer"] == [10, 15]
    expected = [bonferroni(10, D), bonferroni(15, D)]
    np.testing.assert_allclose(counted["top_dimension_log10_p_by_layer"], expected, rtol=1e-9)
    assert counted["final_dimension_counts"] == [15, 3, 3, 2]


# Three rows: two blocks, then the final norm's output, of n = 10 unit vectors in d = 6 dimensions.
n, d = 10, 6
RESULTANT_L = np.array([22.0, 40.0, 61.0])
MOMENT_L = np.array([25.0, 44.0, 70.0])
SAME_L = np.array([5.0, 6.0, 7.0])
SUMS = ContractionSums(
    num=float(n),
    own_L=np.full(3, 10.0),
    own_squared_L=np.full(3, 10.0),
    resultant_L=RESULTANT_L,
    moment_L=MOMENT_L,
    same_last_L=SAME_L,
    same_last_pairs=8.0,
    intra_sum_L=np.array([2.0, 6.0]),
    intra_squared_L=np.array([0.9, 4.1]),
)
ALL_L = (RESULTANT_L - n) / 90
KEPT_L = (RESULTANT_L - n - SAME_L) / 82


def rayleigh(cosine):
    """log₁₀ P(χ²_d ≥ d‖Σĥ‖²/n), with ‖Σĥ‖²/n = 1 + (n − 1)·cosine."""
    return stats.chi2.logsf(d * (1 + (n - 1) * cosine), d) / np.log(10)


@pytest.mark.parametrize(("remove", "mean_L"), [(True, KEPT_L), (False, ALL_L)])
def test_contraction_of_hand_made_sums(remove, mean_L):
    summary = contraction.summarize(SUMS, d_model=d, intra=True, remove_same_last=remove)
    assert summary["num_inputs"] == n
    np.testing.assert_allclose([*summary["inter_cosine_by_layer"], summary["inter_cosine_final"]], mean_L, rtol=1e-12)
    every = [*summary["inter_cosine_all_pairs_by_layer"], summary["inter_cosine_all_pairs_final"]]
    np.testing.assert_allclose(every, ALL_L, rtol=1e-12)
    assert summary["pairs_sharing_last_token"] == pytest.approx(8 / 90 if remove else 0.0)
    # Rayleigh's test at N − 1, of the means that are reported.
    np.testing.assert_allclose(summary["log10_p_by_layer"], [rayleigh(c) for c in mean_L[:-1]], rtol=1e-9)
    assert summary["log10_p"] == pytest.approx(rayleigh(mean_L[-1]), rel=1e-9)
    std = [*summary["inter_cosine_std_by_layer"], summary["inter_cosine_std_final"]]
    np.testing.assert_allclose(std, np.sqrt((MOMENT_L - 10) / 90 - ALL_L**2), rtol=1e-12)
    np.testing.assert_allclose(summary["intra_cosine_by_layer"], [0.2, 0.6], rtol=1e-12)
    np.testing.assert_allclose(summary["intra_cosine_std_by_layer"], np.sqrt([0.09 - 0.04, 0.41 - 0.36]), rtol=1e-9)
    assert len(summary) == 12


def test_contraction_leaves_out_what_was_not_summed():
    summary = contraction.summarize(SUMS._replace(moment_L=np.zeros(3)), d_model=d, intra=False)
    assert not [name for name in summary if "std" in name or "intra" in name]
    # Where every pair shares its last token there is nothing to leave out: the mean is over all of them.
    alike = contraction.summarize(SUMS._replace(same_last_pairs=90.0), d_model=d, intra=False)
    assert alike["inter_cosine_by_layer"] == alike["inter_cosine_all_pairs_by_layer"]
    # Of 9,999 sequences float32 counts two of the 99,970,002 pairs less, and rounds their sum as well.
    many, all_but_two = 9_999, np.float32(9_999 * 9_998)
    sums = SUMS._replace(
        num=float(many), own_L=np.full(3, many), resultant_L=np.full(3, many**2), same_last_pairs=all_but_two,
        same_last_L=np.full(3, all_but_two - 8),
    )  # fmt: skip
    assert int(all_but_two) == many * (many - 1) - 2
    assert contraction.summarize(sums, d_model=d, intra=False)["inter_cosine_final"] == pytest.approx(1.0)
