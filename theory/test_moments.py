"""Formulas that the real modules feel only weakly, held to sums that are written out."""

import itertools

import numpy as np
import pytest
from scipy import special

from bornbiased_jax.theory import finite_width, mlp
from bornbiased_jax.theory.quadrature import normal_nodes


def test_covariance_of_products_of_two_normals():
    """Isserlis: the covariance of z_a z_b and z_c z_d is k_ac k_bd + k_ad k_bc."""
    k = np.array([[1.3, -0.4], [-0.4, 0.7]])
    pairs = ((0, 0), (1, 1), (0, 1))
    expected = [[k[a, c] * k[b, d] + k[a, d] * k[b, c] for c, d in pairs] for a, b in pairs]
    np.testing.assert_allclose(mlp._wishart(np.array([k[0, 0], k[1, 1], k[0, 1]])), expected, rtol=1e-14)
    # And Isserlis, by a product rule that is exact for these polynomials.
    z, w = normal_nodes(8)
    root = np.linalg.cholesky(k)
    weights = np.outer(w, w).ravel()
    draws = [(root @ np.array(pair), weight) for pair, weight in zip(itertools.product(z, z), weights, strict=True)]
    mean = [sum(weight * x[a] * x[b] for x, weight in draws) for a, b in pairs]
    second = [[sum(weight * x[a] * x[b] * x[c] * x[d] for x, weight in draws) for c, d in pairs] for a, b in pairs]
    np.testing.assert_allclose(expected, np.array(second) - np.outer(mean, mean), rtol=1e-12)


@pytest.mark.parametrize(("gated", "degree"), [(False, 1.0), (True, 2.0)])
def test_stretch_of_a_homogeneous_kernel(gated, degree):
    """ReLU's kernel is homogeneous of degree 1 in each standard deviation, a gated one's of degree 2."""
    std_n, rho = np.array([0.3, 1.1]), np.array([[0.9, 0.2], [0.2, 0.8]])
    kernel = finite_width.kernel("relu", gated, std_n)
    # A central difference of a power: its error is of order STEP².
    np.testing.assert_allclose(kernel.stretch(rho), degree * kernel.expand(rho)[0], rtol=5 * finite_width.STEP**2)


@pytest.mark.parametrize("activation", ["tanh", "gelu", "relu"])
def test_moments_of_neurons_are_central_moments(activation):
    """ψ, E(φ − ψ)³ and the variance of (φ − ψ)², each about the neuron's own mean, on a grid of both variables."""
    phi = {"tanh": np.tanh, "gelu": lambda u: u * special.ndtr(u), "relu": lambda u: np.maximum(u, 0)}[activation]
    std, rho = 0.8, 0.35
    z = np.linspace(-9, 9, 4001)
    w = np.exp(-(z**2) / 2) / np.exp(-(z**2) / 2).sum()
    b, wb = z[::20], np.exp(-(z[::20] ** 2) / 2) / np.exp(-(z[::20] ** 2) / 2).sum()
    value = phi(std * (np.sqrt(rho) * b[:, None] + np.sqrt(1 - rho) * z))
    mean = value @ w
    apart = value - mean[:, None]
    skew, length = mean * (apart**3 @ w), apart**4 @ w - (apart**2 @ w) ** 2
    neurons = finite_width.kernel(activation, False, np.array([std])).neurons(np.array([rho]))
    # The grid's step is 0.0045, with a kink for ReLU: errors of its square.
    np.testing.assert_allclose([part[0] for part in neurons], [skew @ wb, length @ wb], rtol=1e-4)
