"""Dual activations against adaptive quadrature, Monte Carlo and each other; wrong kernels are refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from bornbiased_jax.theory import kernels
from bornbiased_jax.theory.activations import CENTERED
from bornbiased_jax.theory.quadrature import normal_panels

NAMES = sorted(name for name in kernels.ACTIVATIONS if not name.startswith("shifted") and not name.endswith(CENTERED))
STANDARD_ERRORS = 5.5  # Two-sided 4e-8 a comparison: no false alarm in a suite of this size.


def adaptive(phi, rho, s, t):
    """E[φ(u)φ(u')] by nested adaptive quadrature, with the kinks at u = 0 and u' = 0 as break points."""
    complement = np.sqrt(1 - rho * rho)

    def inner(z):
        kink = -rho * z / complement
        value, _ = integrate.quad(
            lambda w: float(phi(np.float64(t * (rho * z + complement * w)))) * np.exp(-w * w / 2),
            -9,
            9,
            points=[np.clip(kink, -8.9, 8.9)],
            epsabs=1e-11,
            limit=200,
        )
        return value * float(phi(np.float64(s * z))) * np.exp(-z * z / 2)

    return integrate.quad(inner, -9, 9, points=[0.0], epsabs=1e-10, limit=200)[0] / (2 * np.pi)


def quadrature_accepts(value, phi, rho, s, t):
    """Is the value right to 1e-8, what the quadrature guarantees?"""
    return bool(abs(value - adaptive(phi, rho, s, t)) < 1e-8)


def monte_carlo_accepts(value, samples):
    """Is the value within STANDARD_ERRORS of the sample mean?"""
    error = np.std(samples) / np.sqrt(samples.size)
    return bool(abs(np.mean(samples) - value) <= STANDARD_ERRORS * error)


def draw(rng, count, rho, s, t):
    z, w = rng.normal(size=(2, count))
    return s * z, t * (rho * z + np.sqrt(1 - rho * rho) * w)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("rho", "s", "t"), [(0.6, 0.55, 0.55), (-0.35, 1.7, 0.8)])
def test_dual_and_derivative_against_adaptive_quadrature(name, rho, s, t):
    phi, slope = kernels.ACTIVATIONS[name], kernels.DERIVATIVES[name]
    value = kernels.dual(name, rho, s, t)
    assert quadrature_accepts(value, phi, rho, s, t)
    assert quadrature_accepts(kernels.dual_derivative(name, rho, s, t), slope, rho, s, t)
    # Negative controls: the same checker refuses a constant that is 5% off, and another activation.
    assert not quadrature_accepts(1.05 * value, phi, rho, s, t)
    other = "tanh" if name != "tanh" else "relu"
    assert not quadrature_accepts(value, kernels.ACTIVATIONS[other], rho, s, t)


@settings(max_examples=40)
@given(
    name=st.sampled_from(NAMES),
    rho=st.floats(-1, 1),
    s=st.floats(0.05, 4),
    t=st.floats(0.05, 4),
    seed=st.integers(0, 2**31),
)
def test_dual_and_moments_against_monte_carlo(name, rho, s, t, seed):
    u, v = draw(np.random.default_rng(seed), 60_000, rho, s, t)
    a, b = kernels.ACTIVATIONS[name](u), kernels.ACTIVATIONS[name](v)
    assert monte_carlo_accepts(kernels.dual(name, rho, s, t), a * b)
    assert monte_carlo_accepts(kernels.second_moment(name, t), b * b)


@settings(max_examples=40)
@given(name=st.sampled_from(NAMES), s=st.floats(0.01, 4), t=st.floats(0.01, 4))
def test_ends_are_exact(name, s, t):
    z, w = normal_panels()
    phi = kernels.ACTIVATIONS[name]
    size = np.sqrt(kernels.second_moment(name, s) * kernels.second_moment(name, t))
    ends = kernels.dual(name, [1.0, -1.0], s, t)
    direct = [np.dot(phi(s * z) * phi(t * z), w), np.dot(phi(s * z) * phi(-t * z), w)]
    assert np.all(np.abs(ends - direct) <= 1e-13 * size)
    assert abs(kernels.dual(name, 1.0, s) / kernels.second_moment(name, s) - 1) <= 5e-14
    assert abs(kernels.mean(name, s) - np.dot(phi(s * z), w)) <= 1e-13 * np.sqrt(kernels.second_moment(name, s))
    means = np.dot(phi(s * z), w) * np.dot(phi(t * z), w)
    assert abs(kernels.dual(name, 0.0, s, t) - means) <= 1e-13 * size


@settings(max_examples=60)
@given(name=st.sampled_from(NAMES), rho=st.floats(-0.95, 0.95), s=st.floats(0.1, 3), t=st.floats(0.1, 3))
def test_derivative_is_the_slope_in_covariance_and_symmetric(name, rho, s, t):
    h = 1e-4
    slope = (kernels.dual(name, rho + h, s, t) - kernels.dual(name, rho - h, s, t)) / (2 * h * s * t)
    # A central difference errs by h² times a third derivative; ReLU's, the largest, is ρ/(2π (1 − ρ²)^(3/2)).
    allowed = h * h * (1 + s * t) ** 2 * 20 + 1e-9 / (s * t)
    assert abs(slope - kernels.dual_derivative(name, rho, s, t)) <= allowed
    assert abs(kernels.dual(name, rho, s, t) - kernels.dual(name, rho, t, s)) <= 1e-12 * (s * t + 1e-3)


@pytest.mark.long
@pytest.mark.parametrize("name", ["tanh", "silu", "gelu_tanh"])
@pytest.mark.parametrize("std", [0.011, 0.554, 1.28, 3.0, 6.0])
def test_series_agrees_with_the_lattice(name, std):
    """Two independent methods; 6.0 is beyond the Hermite series, where 512 terms no longer do."""
    rho = np.array([-1.0, -0.99, -0.4, 0.0, 0.2, 0.9, 0.9999, 1.0])
    phi = kernels.ACTIVATIONS[name]
    lattice = kernels.lattice_dual(phi, np.arccos(rho), std, std)
    assert np.all(np.abs(kernels.dual(name, rho, std) - lattice) <= 1e-12 * kernels.second_moment(name, std))


@settings(max_examples=30)
@given(rho=st.floats(-1, 1), name=st.sampled_from(NAMES), s=st.floats(0.1, 3), degree=st.integers(0, 60))
def test_hermite_series_errs_within_its_stated_bound(rho, name, s, degree):
    value, bound = kernels.hermite_dual(name, rho, s, degree)
    truth = kernels.dual(name, rho, s)
    assert abs(value - truth) <= bound + 1e-13 * kernels.second_moment(name, s)


def test_hermite_takes_any_function_and_knows_the_classical_coefficients():
    # |u|: a_0 = √(2/π), a_2 = 1/√π, odd ones 0; and x² − 1 is √2 he_2.
    a = kernels.hermite_coefficients(np.abs, 1.0, 4)
    classical = [np.sqrt(2 / np.pi), 0, 1 / np.sqrt(np.pi), 0, -1 / np.sqrt(12 * np.pi)]
    assert a == pytest.approx(classical, abs=1e-14)
    square = kernels.hermite_coefficients(lambda u: u * u - 1, 1.0, 5)
    assert square == pytest.approx([0, 0, np.sqrt(2), 0, 0, 0], abs=1e-13)
    # The bound is attained at ρ = 1, so it is not idle: the truncated ReLU misses by exactly its tail.
    value, bound = kernels.hermite_dual("relu", 1.0, 1.0, 8)
    assert 0.5 - value == pytest.approx(bound, rel=1e-10)


@settings(max_examples=15)
@given(name=st.sampled_from(NAMES), rho=st.floats(-1, 1), rho_up=st.floats(-1, 1), seed=st.integers(0, 2**31))
def test_gated_dual_against_monte_carlo(name, rho, rho_up, seed):
    rng = np.random.default_rng(seed)
    g, g2 = draw(rng, 60_000, rho, 0.9, 0.9)
    u, u2 = draw(rng, 60_000, rho_up, 0.7, 0.7)
    phi = kernels.ACTIVATIONS[name]
    value = kernels.gated_dual(name, rho, 0.9, rho_up, 0.7)
    assert monte_carlo_accepts(value, phi(g) * u * phi(g2) * u2)


def test_gated_dual_is_zero_at_zero_and_defaults_to_the_gate():
    assert kernels.gated_dual("silu", 0.0, 0.5) == 0.0
    same = kernels.gated_dual("silu", 0.4, 0.5, std2=0.8)
    full = kernels.gated_dual("silu", 0.4, 0.5, 0.4, 0.5, std2=0.8, std_up2=0.8)
    assert same == full == kernels.dual("silu", 0.4, 0.5, 0.8) * 0.4 * 0.5 * 0.8


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_stds_agree_with_scalars(name):
    s = np.linspace(0.1, 2.0, 6)
    rho = np.random.default_rng(0).uniform(-1, 1, (6, 6))
    table = kernels.dual(name, rho, s[:, None], s[None, :])
    single = [[float(kernels.dual(name, rho[i, j], s[i], s[j])) for j in range(6)] for i in range(6)]
    assert table == pytest.approx(np.array(single), abs=1e-13)
    assert kernels.dual(name, np.empty((0, 3)), 1.0).shape == (0, 3)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: kernels.dual("relu", 1.01), "rho"),
        (lambda: kernels.dual("relu", np.nan), "rho"),
        (lambda: kernels.dual("relu", 0.0, -1.0), "std"),
        (lambda: kernels.dual("silu", 0.0, 1.0, -1.0), "std2"),
        (lambda: kernels.dual_derivative("gelu", [-1.1, 0.0]), "rho"),
        (lambda: kernels.dual("swish", 0.0), "name"),
        (lambda: kernels.second_moment("relu", -0.1), "std"),
        (lambda: kernels.second_moment("tanh", np.inf), "std"),
        (lambda: kernels.gated_dual("silu", 0.0, 1.0, 2.0), "rho_up"),
        (lambda: kernels.gated_dual("silu", 0.0, 1.0, 0.0, -2.0), "std_up"),
        (lambda: kernels.hermite_coefficients("relu", 1.0, 513), "degree"),
        (lambda: kernels.hermite_coefficients("relu", 1.0, -1), "degree"),
        (lambda: kernels.hermite_dual("relu", 2.0), "rho"),
        (lambda: kernels.hermite_tail("relu", -1.0, np.ones(3)), "std"),
        (lambda: kernels.lattice_dual(np.tanh, np.zeros(1), -1.0, 1.0), "s"),
        (lambda: kernels.lattice_dual(np.tanh, np.zeros(1), 0.0, 0.0), "s"),
        (lambda: kernels.gated_dual("silu", 0.0, 1.0, std2=-1.0), "std2"),
    ],
)
def test_bad_arguments_are_named(call, word):
    with pytest.raises(ValueError, match=rf"^{word}:"):
        call()


def test_rounding_above_one_is_taken_as_one():
    assert kernels.dual("relu", 1 + 1e-15) == kernels.dual("relu", 1.0) == 0.5
