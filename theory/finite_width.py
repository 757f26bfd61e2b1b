"""What survives at order 1/D, and gives gated MLPs their contraction.

Two tokens' cosine is not exactly its mean ρ: over pairs it has a variance v of order 1/D, so the mean kernel
is K(ρ) + ½ K''(ρ) v. For a gated MLP K(ρ) = κ(ρ) ρ σ² is 0 at ρ = 0, but K''(0) = 2κ'(0) σ² is not, and the
mean cosine of independent inputs starts at order 1/D instead of 0. The same number seen from one neuron: its
gate row g and up row u overlap, so E over inputs of silu(g·n)(u·n) = g·Σu E[silu'] with Σ the inputs'
covariance and E[silu'] = 1/2; squared and summed over neurons, std⁴ tr(Σ²)/4 each. Since v = tr(Σ²)/D², what
counts is how many dimensions inputs really span: v starts at 1/D and grows as projections of width F and G·K
squeeze them (``sublayers.add``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from theory import checks, kernels
from theory.activations import ACTIVATIONS, Array
from theory.quadrature import normal_nodes

QUADRATURE = 48
STEP = 1e-3
"""Of the difference quotients; their error is below 1e-6 of the derivative away from |ρ| = 1."""
CLOSED = ("relu", "gelu", "erf", "identity")
DEGREES = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
TAIL = 1e-10


class Kernel(NamedTuple):
    """E[h h'] of one MLP's hidden layer as a function of the input's cosine at each pair of nodes."""

    activation: str
    gated: bool
    std_n: Array
    """Standard deviation of the pre-activations."""
    coefficients_nk: Array | None
    """Hermite coefficients of φ(std·z), where the dual kernel has no closed form."""

    def variance(self) -> Array:
        """E[h²], [n]."""
        plain = kernels.second_moment(self.activation, self.std_n)
        return plain * self.std_n**2 if self.gated else plain

    def expand(self, rho: Array) -> tuple[Array, Array, Array]:
        """Value, d/dρ and d²/dρ²; ``rho`` is [n, n], or [n] for pairs at one and the same node."""
        size = _between(self.std_n, rho)
        if self.coefficients_nk is not None:
            value, slope, curvature = _series(self.coefficients_nk, rho)
        else:
            left, right = (self.std_n, self.std_n) if rho.ndim == 1 else (self.std_n[:, None], self.std_n[None, :])
            value = kernels.dual(self.activation, rho, left, right)
            slope = size * kernels.dual_derivative(self.activation, rho, left, right)
            low, high = np.clip(rho - STEP, -1.0, 1.0), np.clip(rho + STEP, -1.0, 1.0)
            rise = kernels.dual_derivative(self.activation, high, left, right)
            rise = rise - kernels.dual_derivative(self.activation, low, left, right)
            curvature = size * rise / (high - low)
        if not self.gated:
            return value, slope, curvature
        return size * rho * value, size * (value + rho * slope), size * (2 * slope + rho * curvature)

    def stretch(self, rho: Array) -> Array:
        """d/d ln(std) of one of the two nodes, at fixed ρ. Shape of ``rho``."""
        up, down = (kernel(self.activation, self.gated, self.std_n * (1 + s)) for s in (STEP, -STEP))
        both = (up.expand(rho)[0] - down.expand(rho)[0]) / (2 * STEP)
        return both / 2

    def neurons(self, rho_n: Array) -> tuple[Array, Array]:
        """Covariance over inputs of ψφ and (φ − ψ)², and variance of (φ − ψ)², averaged over neurons, [n] each.

        ψ is a neuron's mean output. Summed over F neurons they are what one plain hidden layer adds, token by
        token, to the covariance of h̄·h̃ and ‖h̃‖², and to the variance of ‖h̃‖².
        """
        mean, second, third, fourth = (neuron_moment(self.activation, self.std_n, rho_n, k) for k in (1, 2, 3, 4))
        variance = second - mean**2
        skew = third - 3 * mean * second + 2 * mean**3
        kurtosis = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
        _, w = normal_nodes(QUADRATURE)
        return (mean * skew) @ w, (kurtosis - variance**2) @ w


def neuron_moment(activation: str, std_n: Array, rho_n: Array, power: int) -> Array:
    """E over inputs of φ(u)^power for neurons of mean pre-activation std·√ρ·b, at nodes b of N(0, 1); [n, b].

    A negative cosine has no common mean; it counts as 0.

    Raises:
        ValueError: a negative standard deviation, |rho| > 1, power below 1, an unknown activation.
    """
    checks.function(activation), checks.std(std_n, "std_n")
    checks.whole(power, "power")
    z, w = normal_nodes(QUADRATURE)
    rho = np.clip(checks.rho(rho_n, "rho_n"), 0.0, 1.0)[:, None, None]
    pre = std_n[:, None, None] * (np.sqrt(rho) * z[:, None] + np.sqrt(1 - rho) * z)
    return np.asarray(ACTIVATIONS[activation](pre) ** power @ w)


def kernel(activation: str, gated: bool, std_n: Array) -> Kernel:
    """The kernel of an MLP whose pre-activations have these standard deviations at the nodes.

    Raises:
        ValueError: a negative standard deviation, an unknown activation.
    """
    checks.function(activation), checks.std(std_n, "std_n")
    if activation in CLOSED:
        return Kernel(activation, gated, std_n, None)
    energy = kernels.second_moment(activation, std_n)
    table = kernels.hermite_coefficients(activation, std_n, DEGREES[-1] if np.max(std_n) > 2.5 else 64)
    for degree in DEGREES:
        kept = table[:, : degree + 1]
        if np.all(energy - np.sum(kept**2, axis=1) <= TAIL * energy):
            return Kernel(activation, gated, std_n, kept)
    return Kernel(activation, gated, std_n, table)


def _between(values_n: Array, rho: Array) -> Array:
    return values_n**2 if rho.ndim == 1 else np.outer(values_n, values_n)


def _series(coefficients_nk: Array, rho: Array) -> tuple[Array, Array, Array]:
    """Σ a_k a'_k ρ^k with its first two derivatives, by Horner's rule."""
    value, slope, half = np.zeros_like(rho), np.zeros_like(rho), np.zeros_like(rho)
    for column in coefficients_nk.T[::-1]:
        half = half * rho + slope
        slope = slope * rho + value
        value = value * rho + _between(column, rho)
    return value, slope, 2 * half


class Lengths(NamedTuple):
    """Moments of what one token adds to its cosine with the mean, δ = (1 − ρ) m·g − ½ρ(‖g‖² − (1 − ρ))."""

    variance: Array
    with_mean: Array
    """Covariance with m·g."""
    with_length: Array
    """Covariance with ‖g‖²."""


class Overlap(NamedTuple):
    """How cosines vary from pair to pair of tokens.

    With x = m + g, m the mean over inputs, and all in units of ‖x‖²: variances of g·g' (``own``) and of m·g'
    (``lean``) and of ‖g‖² (``length``), and covariance of m·g and ‖g‖² (``skew``). The cosine of x and x' is,
    to first order, ρ + δ + δ' + g·g', with δ and δ' as in :class:`Lengths`.
    """

    own: Array
    lean: Array
    skew: Array
    length: Array

    def diagonal(self) -> Overlap:
        """For pairs of tokens at one and the same node."""
        return Overlap(*(np.diag(a) for a in self))

    def lengths(self, rho: Array) -> Lengths:
        """The moments of δ."""
        rest = 1.0 - rho
        with_mean = rest * self.lean - 0.5 * rho * self.skew
        with_length = rest * self.skew - 0.5 * rho * self.length
        return Lengths(np.maximum(rest * with_mean - 0.5 * rho * with_length, 0.0), with_mean, with_length)

    def cosine_variance(self, rho: Array) -> Array:
        """Over pairs of tokens, given the seed."""
        return self.own + 2.0 * _symmetric(self.lengths(rho).variance)

    def cosine_bias(self, rho: Array) -> Array:
        """What dividing by the norms of single tokens adds to the mean cosine, given the seed.

        The second-order terms: −(2 − 3ρ) lean − (1 − 3ρ) skew + (3/4)ρ length. For isotropic Gaussian g that is
        ρ(1 − ρ)(3ρ − 1)/(2D); the spread of ‖m‖² over seeds (``seeds``) adds −2ρ²(1 − ρ)/D, in all the
        −ρ(1 − ρ²)/(2D) of a sample correlation.
        """
        tilt = (2.0 - 3.0 * rho) * self.lean + (1.0 - 3.0 * rho) * self.skew
        return _symmetric(0.75 * rho * self.length - tilt)


def _symmetric(field: Array) -> Array:
    return 0.5 * (field + field.T) if field.ndim == 2 else field
