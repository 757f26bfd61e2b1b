"""The probabilities of tokens whose rows are given: they add to one, and are those of draws."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from bornbiased_jax.theory.given_head import TOLERANCE, Direction, _normal_score, fractions_given_head, largest_logit
from bornbiased_jax.theory.logits import Scatter
from bornbiased_jax.theory.preference import expected_fraction


@settings(max_examples=40)
@given(
    tokens=st.integers(1, 3_000),
    mean_std=st.floats(0, 12),
    ratio=st.floats(1, 10),
    dimensions=st.sampled_from([4.0, 16.0, 128.0, math.inf]),
    seed=st.integers(0, 2**20),
)
def test_probabilities_add_to_one(tokens: int, mean_std: float, ratio: float, dimensions: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    noise_V = np.exp(generator.uniform(0, math.log(ratio), tokens))
    p_V = largest_logit(mean_std * generator.standard_normal(tokens), noise_V, dimensions)
    assert np.all(p_V >= 0) and abs(p_V.sum() - 1) < TOLERANCE


def test_probabilities_are_those_of_the_largest_of_normals() -> None:
    """Against 40,000 draws: five standard errors of each frequency."""
    generator = np.random.default_rng(0)
    mean_V, noise_V = generator.standard_normal(30), generator.uniform(0.5, 1.5, 30)
    draws = 40_000
    drawn = (mean_V + noise_V * generator.standard_normal((draws, 30))).argmax(axis=1)
    p_V = largest_logit(mean_V, noise_V)
    frequency_V = np.bincount(drawn, minlength=30) / draws
    assert np.all(np.abs(p_V - frequency_V) < 5 * np.sqrt(np.maximum(p_V, 1e-4) / draws))


def test_probabilities_are_those_of_points_of_a_sphere() -> None:
    """One token ahead of many equal ones: the lighter tails of a sphere in 24 dimensions help it."""
    generator = np.random.default_rng(1)
    draws, dimensions = 20_000, 24
    mean_V = np.zeros(300)
    mean_V[0] = 2.0
    first = sum(
        int(((_of_a_sphere(generator, (1_000, 300), dimensions) + mean_V).argmax(axis=1) == 0).sum())
        for _ in range(draws // 1_000)
    )
    of_sphere, of_normals = (largest_logit(mean_V, np.ones(300), n)[0] for n in (float(dimensions), math.inf))
    error = 5 * math.sqrt(of_sphere / draws)
    # What the first order in 1/n leaves out is of second order: here 2/n² of the probability's own size.
    assert abs(of_sphere - first / draws) < error + 2 / dimensions**2 < first / draws - of_normals


def _of_a_sphere(generator: np.random.Generator, shape: tuple[int, ...], dimensions: int) -> np.ndarray:
    """One coordinate of points of a sphere of radius √n: of a normal one and the χ² of the others."""
    first = generator.standard_normal(shape)
    return np.sqrt(dimensions) * first / np.sqrt(first**2 + generator.chisquare(dimensions - 1, shape))


def test_a_sphere_has_lighter_tails() -> None:
    """Rows of random directions against points of a sphere in 16 dimensions, 2.5 of its deviations out and farther."""
    e_N = _of_a_sphere(np.random.default_rng(0), (200_000,), 16)
    fraction = np.mean(e_N > 2.5)
    z, _ = _normal_score(np.array(2.5), 16)
    error = 5 * np.sqrt(fraction / len(e_N))
    assert abs(special.ndtr(-z) - fraction) < error + 0.1 * fraction < special.ndtr(-2.5) - fraction


@pytest.mark.parametrize("dimensions", [4.0, 30.0, 1e6])
def test_the_slope_is_the_score_s(dimensions: float) -> None:
    e = np.linspace(-9, 9, 181) + 0.013
    step = 1e-6
    rise = _normal_score(e + step, dimensions)[0] - _normal_score(e - step, dimensions)[0]
    inside = np.abs(np.abs(e) - math.sqrt(dimensions)) > 1e-3  # the slope jumps there
    np.testing.assert_allclose(rise[inside] / (2 * step), _normal_score(e, dimensions)[1][inside], rtol=1e-6)


def test_what_all_seeds_have_in_common_decides_where_nothing_else_is() -> None:
    """A direction that is the common one alone: every seed predicts the row that lies along it."""
    head_VD = np.random.default_rng(0).standard_normal((50, 32)).astype(np.float32)
    common_D = 3.0 * head_VD[7].astype(np.float64)
    shared, free = (
        fractions_given_head(head_VD, Direction(common_D, part), 0.9, 0.0, Scatter(32), 1_000) for part in (1.0, 0.0)
    )
    assert shared.min() > 0.9
    assert np.std(shared) < np.std(free)


@pytest.mark.long
def test_the_distribution_is_that_of_fresh_heads_on_average() -> None:
    """The mean over heads is that of rows drawn anew; five standard errors over heads, and 1% for the width."""
    generator = np.random.default_rng(3)
    means = []
    for head in range(12):
        head_VD = generator.standard_normal((60, 384))
        nowhere = Direction(np.zeros(384), 0.0)
        fractions = fractions_given_head(head_VD, nowhere, 0.5, 0.0, Scatter(384), 10**7, seed=head)
        means.append(fractions.mean())
    fresh = expected_fraction(0.5, 60)
    assert abs(np.mean(means) - fresh) < 5 * np.std(means) / math.sqrt(len(means)) + 0.01 * fresh


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((np.zeros(3), np.zeros(3)), "noise_V"),
        ((np.array([np.nan, 0.0]), np.ones(2)), "noise_V"),
        ((np.zeros(3), np.ones(3), 3.0), "dimensions"),
        ((np.zeros(3), np.array([1.0, 1.0, 1e-4])), "noise_V"),
    ],
)
def test_bad_arguments_are_named(arguments: tuple, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        largest_logit(*arguments)
