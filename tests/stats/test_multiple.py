import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.stats.multiple import holm, holm_log10

# By hand: the smallest times 5, the next times 4, … and none below the one before it.
P = [0.04, 0.001, 0.03, 0.6, 0.0012]
ADJUSTED = [0.09, 0.005, 0.09, 0.6, 0.005]


def test_holm_agrees_with_values_computed_by_hand():
    np.testing.assert_allclose(holm(P), ADJUSTED, rtol=1e-12)
    np.testing.assert_allclose(10 ** holm_log10(np.log10(P)), ADJUSTED, rtol=1e-12)
    # Two tests more, without a p: 7, 6, 5, 4, 3.
    np.testing.assert_allclose(holm(P, count=7), [0.16, 0.007, 0.15, 1.0, 0.0072], rtol=1e-12)
    np.testing.assert_allclose(10 ** holm_log10(np.log10(P), count=7), holm(P, count=7), rtol=1e-12)


def test_holm_gives_ties_one_value():
    """Equal p-values are adjusted alike, and so are those that a smaller one holds up."""
    assert holm([0.01, 0.02, 0.01, 0.01]).tolist() == [0.04, 0.04, 0.04, 0.04]
    assert holm([0.5, 0.5]).tolist() == [1.0, 1.0]
    assert holm_log10([-3.0, -3.0]).tolist() == [np.log10(2) - 3] * 2
    # 3 × 0.01 = 0.03 > 2 × 0.012.
    np.testing.assert_allclose(holm([0.01, 0.012, 0.9]), [0.03, 0.03, 0.9], rtol=1e-12)


def test_holm_at_the_ends_of_the_scale():
    assert holm([0.0, 1.0]).tolist() == [0.0, 1.0]
    assert holm_log10([-2000.0, 0.0]).tolist() == [np.log10(2) - 2000, 0.0]
    assert len(holm([])) == len(holm_log10([])) == 0


def test_holm_refuses_what_is_no_p_value():
    for bad in ([0.5, np.nan], [1.5], [-0.1]):
        with pytest.raises(InputError, match="Holm"):
            holm(bad)
    for bad in ([0.5], [np.nan]):
        with pytest.raises(InputError, match="Holm"):
            holm_log10(bad)
    with pytest.raises(InputError, match="3 p-values are more than the 2 tests"):
        holm([0.1, 0.2, 0.3], count=2)
