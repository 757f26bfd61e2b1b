import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.stats.ranks import rank_correlation, unit_ranks


@pytest.mark.parametrize("num_inputs", [2, 5, 37, 400])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_matrix_is_spearmans_correlation(num_inputs, dtype):
    rng = np.random.default_rng(num_inputs)
    base = rng.standard_normal((num_inputs, 20)).astype(dtype)
    suspect = np.round(rng.standard_normal((num_inputs, 17)) * 2).astype(dtype)
    correlations = rank_correlation(base, suspect)
    for j, k in [(0, 0), (19, 16), (3, 11)]:
        if len(set(suspect[:, k])) == 1:
            assert correlations[j, k] == 0.0
            continue
        actual, reference = (stats.rankdata(column.astype(float)) for column in (base[:, j], suspect[:, k]))
        assert correlations[j, k] == pytest.approx(np.corrcoef(actual, reference)[0, 1], abs=1e-12)


# Many ties, and as many numbers as several threads rank.
@pytest.mark.parametrize(
    "x", [np.random.default_rng(0).integers(-3, 4, (200, 40)), np.random.default_rng(2).standard_normal((7000, 40))]
)
def test_average_ranks_match_scipy(x):
    x = x.astype(np.float32)
    expected = stats.rankdata(x.astype(float), axis=0) - (len(x) + 1) / 2
    expected /= np.linalg.norm(expected, axis=0)
    np.testing.assert_allclose(unit_ranks(x).T, expected, rtol=1e-12, atol=1e-15)


def test_constant_coordinate_correlates_with_nothing():
    rng = np.random.default_rng(1)
    base, suspect = rng.standard_normal((50, 4)), rng.standard_normal((50, 3))
    base[:, 2] = 7.0
    correlations = rank_correlation(base, suspect)
    assert (correlations[2] == 0).all() and (correlations[[0, 1, 3]] != 0).all()


@pytest.mark.parametrize(
    ("base", "suspect", "words"),
    [
        (np.zeros((4, 2)), np.zeros((5, 2)), "same inputs"),
        (np.full((4, 2), np.nan), np.zeros((4, 2)), "base outputs hold NaN"),
        (np.zeros((4, 2)), np.full((4, 2), np.inf), "suspect outputs hold NaN or infinite"),
        (np.zeros(4), np.zeros((4, 2)), "shape"),
        (np.zeros((4, 2)), np.zeros((4, 2, 1)), "shape"),
    ],
)
def test_unusable_outputs_are_refused(base, suspect, words):
    with pytest.raises(InputError, match=words):
        rank_correlation(base, suspect)
