import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from bornbiased_jax.errors import InputError
from bornbiased_jax.stats import kendall
from bornbiased_jax.stats.kendall import cross_kendall, tau_b


@settings(max_examples=60)
@given(hnp.arrays(np.float64, st.tuples(st.integers(2, 40), st.just(2)), elements=st.integers(-4, 4).map(float)))
def test_equals_counting_every_pair(columns):
    x, y = columns.T
    first, second = np.triu_indices(len(x), 1)
    a, b = np.sign(x[first] - x[second]), np.sign(y[first] - y[second])
    tau = tau_b(x[:, None], y[:, None])[0]
    if not a.any() or not b.any():
        assert np.isnan(tau)
    else:
        assert tau == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()), abs=1e-13)


def test_constant_column_has_no_tau():
    base, suspect = np.random.default_rng(0).standard_normal((2, 30, 3))
    base[:, 1] = 1.0
    assert np.isnan(tau_b(base, suspect)).tolist() == [False, True, False]
    assert np.isnan(tau_b(base[:1], suspect[:1])).all()


def test_shapes_that_differ_are_refused():
    with pytest.raises(InputError, match="one shape"):
        tau_b(np.zeros((4, 2)), np.zeros((4, 3)))


def test_cross_matrix_with_all_pairs_is_tau_b():
    rng = np.random.default_rng(3)
    base, suspect = rng.standard_normal((60, 4)), np.round(rng.standard_normal((60, 5)))
    expected = [[stats.kendalltau(x, y).statistic for y in suspect.T] for x in base.T]
    np.testing.assert_allclose(cross_kendall(base, suspect), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("scale", [1e-50, 1e-300])
def test_cross_matrix_of_small_numbers_and_of_counts_is_tau_b(scale):
    """Differences below the least float32 have a sign, and those of unsigned integers may be negative."""
    base, suspect = np.random.default_rng(7).standard_normal((2, 30, 3))
    np.testing.assert_array_equal(cross_kendall(scale * base, suspect), cross_kendall(base, suspect))
    counts = np.round(10 * base + 50)
    np.testing.assert_array_equal(cross_kendall(counts.astype(np.uint8), suspect), cross_kendall(counts, suspect))


def test_cross_matrix_of_a_constant_column_is_zero():
    base, suspect = np.random.default_rng(6).standard_normal((2, 20, 3))
    base[:, 1] = 1.0
    tau_DE = cross_kendall(base, suspect)
    assert not tau_DE[1].any() and tau_DE[[0, 2]].all()


def test_incomplete_cross_matrix_is_within_its_sampling_error():
    rng = np.random.default_rng(4)
    base = rng.standard_normal((500, 12))
    suspect = 0.5 * base + rng.standard_normal((500, 12))
    num_pairs = 20_000
    error = cross_kendall(base, suspect, num_pairs=num_pairs, seed=1) - cross_kendall(base, suspect)
    # A sign product has variance below 1 and pairs are drawn without replacement: 5 standard errors
    # cover 144 entries with probability above 0.9999.
    assert np.abs(error).max() < 5 / np.sqrt(num_pairs)
    assert np.abs(error).max() > 0


@pytest.mark.parametrize("num_inputs", [7, 8])
def test_no_pair_is_drawn_twice(num_inputs):
    # Of an even circle the antipodal round holds half as many pairs: each would come twice.
    total = num_inputs * (num_inputs - 1) // 2
    with pytest.raises(InputError, match="num_pairs=0"):
        next(kendall._pair_chunks(num_inputs, 0, 0))
    for count in (1, num_inputs + 1, total - 1):
        for seed in range(4):
            chunks = list(kendall._pair_chunks(num_inputs, count, seed))
            first, second = (np.concatenate(part) for part in zip(*chunks, strict=True))
            pairs = {frozenset(pair) for pair in zip(first.tolist(), second.tolist(), strict=True)}
            assert len(first) == len(pairs) == count and all(len(pair) == 2 for pair in pairs)
