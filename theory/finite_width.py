"""Corrections of order 1/D to the kernels of MLPs, which give gated ones their contraction.

Two tokens' cosine is not exactly its mean ρ: over pairs it has a variance v of order 1/D, so the mean kernel
is K(ρ) + ½ K''(ρ) v. For a gated MLP K(ρ) = κ(ρ) ρ σ² is 0 at ρ = 0, but K''(0) = 2κ'(0) σ² is not, and the
mean cosine of independent inputs starts at order 1/D instead of 0. The same number seen from one neuron: its
gate row g and up row u overlap, so E over inputs of silu(g·n)(u·n) = g·Σu E[silu'] with Σ the inputs'
covariance and E[silu'] = 1/2; squared and summed over neurons, std⁴ tr(Σ²)/4 each. Since v = tr(Σ²)/D², what
counts is how many dimensions inputs really span: v starts at 1/D and grows as projections of width F and G·K
squeeze them (``sublayers.add``).
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
from scipy import special

from bornbiased_jax.theory import checks, kernels
from bornbiased_jax.theory.activations import CENTERED, LEAK, ROOT_2PI, UNIT_MEANS, Array
from bornbiased_jax.theory.closed_forms import CLOSED
from bornbiased_jax.theory.quadrature import normal_lattice, normal_panels

STEP = 1e-3
"""Of the difference quotients; their error is below 1e-6 of the derivative away from |ρ| = 1."""
DEGREES = (12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
TAIL = 1e-10
"""Of the energy, that a series may leave out: its slope is then right to about 1e-7, its curvature to 1e-5."""


class Piecewise(NamedTuple):
    """φ(u) = (u + shift)^degree above −shift, −slope·|u + shift|^degree below, less an offset.

    Its moments have a closed form.
    """

    degree: int
    slope: float = 0.0
    shift: float = 0.0
    offset: float = 0.0


PIECEWISE: dict[str, Piecewise] = {
    "relu": Piecewise(1),
    "relu_squared": Piecewise(2),
    "signed_square": Piecewise(2, 1.0),
    "leaky_relu": Piecewise(1, LEAK),
    "shifted_relu": Piecewise(1, shift=1.0, offset=1.0),
}
PIECEWISE.update(
    {
        name + CENTERED: piecewise._replace(offset=piecewise.offset + UNIT_MEANS[name])
        for name, piecewise in PIECEWISE.items()
        if name in UNIT_MEANS
    }
)


class KernelMoments(NamedTuple):
    """E[h h'] of one MLP's hidden layer as a function of the input's cosine at each pair of nodes."""

    activation: str
    gated: bool
    std_n: Array
    """Standard deviation of the pre-activations."""
    coefficients_nk: Array | None
    """Hermite coefficients of φ(std·z), where the dual kernel has no closed form."""
    offset_n: Array
    """What is taken out of every neuron's activation: its mean where the weights behind it are balanced, else 0."""

    def variance(self) -> Array:
        """Compute E[h²], [n]."""
        plain = kernels.second_moment(self.activation, self.std_n) - self.offset_n**2
        return plain * self.std_n**2 if self.gated else plain

    def expand(self, rho: Array) -> tuple[Array, Array, Array]:
        """Compute value, d/dρ and d²/dρ²; ``rho`` is [n, n], or [n] for pairs at one and the same node."""
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
            return value - _between(self.offset_n, rho), slope, curvature
        return size * rho * value, size * (value + rho * slope), size * (2 * slope + rho * curvature)

    def stretch(self, rho: Array) -> Array:
        """Compute d/d ln(std) of one of the two nodes, at fixed ρ. Shape of ``rho``."""
        centered = bool(np.any(self.offset_n))
        up, down = (kernel(self.activation, self.gated, self.std_n * (1 + s), centered=centered) for s in (STEP, -STEP))
        change = (up.expand(rho)[0] - down.expand(rho)[0]) / (2 * STEP)
        return change / 2

    def neurons(self, rho_n: Array) -> tuple[Array, Array]:
        """Compute covariance over inputs of ψφ and (φ − ψ)², and variance of (φ − ψ)², averaged over neurons, [n] each.

        ψ is a neuron's mean output. Summed over F neurons they are what one plain hidden layer adds, token by
        token, to the covariance of h̄·h̃ and ‖h̃‖², and to the variance of ‖h̃‖².
        """
        (mean, second, third, fourth), w = neuron_moments(self.activation, self.std_n, rho_n, 4)
        variance = second - mean**2
        skew = third - 3 * mean * second + 2 * mean**3
        kurtosis = fourth - 4 * mean * third + 6 * mean**2 * second - 3 * mean**4
        return ((mean - self.offset_n[:, None]) * skew) @ w, (kurtosis - variance**2) @ w


def neuron_moments(activation: str, std_n: Array, rho_n: Array, highest: int) -> tuple[Array, Array]:
    """Compute E over inputs of φ(u)^k, k ≤ highest, for neurons of mean pre-activation std·√ρ·b, b ~ N(0, 1).

    A negative cosine has no common mean; it counts as 0. ReLU's moments have a closed form, and its b lies on panels;
    the others are lattice sums over both variables. The error is below 1e-10 of the largest moment within |b| < 5.

    Returns:
        (moments [highest, n, b], weights of the nodes b).

    Raises:
        ValueError: a standard deviation outside 0 to ``kernels.LARGEST_STD`` (not for ReLU), |rho| > 1, highest below
            1, an unknown activation.
    """
    phi, std_n = checks.function(activation), checks.std(std_n, "std_n")
    rho_n = np.clip(checks.rho(rho_n, "rho_n"), 0.0, 1.0)
    checks.whole(highest, "highest")
    if activation in PIECEWISE:
        degree, slope, shift, offset = PIECEWISE[activation]
        b, w = normal_panels()
        mean, std = (std_n * np.sqrt(rho_n))[:, None] * b + shift, (std_n * np.sqrt(1 - rho_n))[:, None]
        moments = _rectified(mean, std, degree * highest)[degree - 1 :: degree]
        if slope != 0.0:
            # Below the kink the activation is −slope·|u|^degree: powers of −slope times those of the rectified −u.
            signs = (-slope) ** np.arange(1, highest + 1)[:, None, None]
            moments = moments + signs * _rectified(-mean, std, degree * highest)[degree - 1 :: degree]
        # Subtract the offset one factor at a time: E[ψ^j φ^(k+1)] = E[ψ^(j+1) φ^k] − offset E[ψ^j φ^k].
        powers = [np.ones_like(moments[0]), *moments]
        centered = []
        while offset != 0.0 and len(powers) > 1:
            powers = [higher - offset * lower for lower, higher in itertools.pairwise(powers)]
            centered.append(powers[0])
        return (np.array(centered) if centered else moments), w
    b, w = normal_lattice(float(np.max(checks.std(std_n, "std_n", kernels.LARGEST_STD), initial=0.0)))
    moments = np.empty((highest, std_n.size, b.size))
    for i, (std, rho) in enumerate(zip(std_n, rho_n, strict=True)):
        value = phi(std * (np.sqrt(rho) * b[:, None] + np.sqrt(1 - rho) * b))
        power = value
        for k in range(highest):
            moments[k, i] = power @ w
            power = power * value
    return moments, w


def _rectified(mean: Array, std: Array, highest: int) -> Array:
    """Compute E[max(u, 0)^k], k ≤ highest, u ~ N(mean, std²): M_k = mean M_(k−1) + (k − 1) std² M_(k−2)."""
    ratio = np.divide(mean, std, out=np.where(mean > 0, np.inf, -np.inf), where=std > 0)
    moments = [special.ndtr(ratio), mean * special.ndtr(ratio) + std * np.exp(-ratio * ratio / 2) / ROOT_2PI]
    for k in range(2, highest + 1):
        moments.append(mean * moments[-1] + (k - 1) * std**2 * moments[-2])
    # Far below 0 the recurrence leaves rounding of either sign, relative to mean^k.
    return np.maximum(np.array(moments[1:]), 0.0)


def kernel(activation: str, gated: bool, std_n: Array, *, centered: bool = False) -> KernelMoments:
    """Build the kernel of an MLP whose pre-activations have these standard deviations at the nodes.

    Args:
        activation: its name.
        gated: the activation is multiplied by a linear factor, whose mean is 0.
        std_n: of the pre-activations.
        centered: the mean activation is not written, for the weights behind it are balanced.

    Raises:
        ValueError: a negative standard deviation; one beyond the series of an activation without a closed form, which
            reach to 3 (tanh), 5 (gelu_tanh) and 7 (silu), so at weights of 0.02 to widths of 22,500, 62,500 and
            122,500; an unknown activation.
    """
    checks.function(activation), checks.std(std_n, "std_n")
    # Two independent pre-activations leave the product of two means.
    offset_n = np.zeros_like(std_n)
    if centered and not gated:
        offset_n = kernels.mean(activation, std_n)
    if activation in CLOSED:
        return KernelMoments(activation, gated, std_n, None, offset_n)
    energy = kernels.second_moment(activation, std_n)
    for longest in (64, kernels.DEGREES[-1]):
        table = kernels.hermite_coefficients(activation, std_n, longest)
        for degree in (d for d in DEGREES if d <= longest):
            truncated = table[:, : degree + 1]
            if np.all(energy - np.sum(truncated**2, axis=1) <= TAIL * energy):
                return KernelMoments(activation, gated, std_n, truncated, offset_n)
    raise ValueError(
        f"std_n: {np.max(std_n):.4g} is beyond what {longest} terms of {activation}'s Hermite series follow; "
        "take a smaller width or smaller weights"
    )


def _between(values_n: Array, rho: Array) -> Array:
    return values_n**2 if rho.ndim == 1 else np.outer(values_n, values_n)


def _series(coefficients_nk: Array, rho: Array) -> tuple[Array, Array, Array]:
    """Compute Σ a_k a'_k ρ^k with its first two derivatives, by Horner's rule."""
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
    """The variation of cosines from pair to pair of tokens.

    With x = m + g, m the mean over inputs, and all in units of ‖x‖²: variances of g·g' (``own``) and of m·g'
    (``lean``) and of ‖g‖² (``length``), and covariance of m·g and ‖g‖² (``skew``). The cosine of x and x' is,
    to first order, ρ + δ + δ' + g·g', with δ and δ' as in :class:`Lengths`.
    """

    own: Array
    lean: Array
    skew: Array
    length: Array

    def diagonal(self) -> Overlap:
        """Take the pairs of tokens at one and the same node."""
        return Overlap(*(np.diag(a) for a in self))

    def lengths(self, rho: Array) -> Lengths:
        """Compute the moments of δ."""
        rest = 1.0 - rho
        with_mean = rest * self.lean - 0.5 * rho * self.skew
        with_length = rest * self.skew - 0.5 * rho * self.length
        return Lengths(np.maximum(rest * with_mean - 0.5 * rho * with_length, 0.0), with_mean, with_length)

    def cosine_variance(self, rho: Array) -> Array:
        """Compute the variance of the cosine over pairs of tokens, given the seed."""
        return self.own + 2.0 * _symmetric(self.lengths(rho).variance)

    def cosine_bias(self, rho: Array) -> Array:
        """Compute what dividing by the norms of single tokens adds to the mean cosine, given the seed.

        The second-order terms: −(2 − 3ρ) lean − (1 − 3ρ) skew + (3/4)ρ length. For isotropic Gaussian g that is
        ρ(1 − ρ)(3ρ − 1)/(2D); the variance of ‖m‖² across seeds (``seeds``) adds −2ρ²(1 − ρ)/D, in all the
        −ρ(1 − ρ²)/(2D) of a sample correlation.
        """
        tilt = (2.0 - 3.0 * rho) * self.lean + (1.0 - 3.0 * rho) * self.skew
        return _symmetric(0.75 * rho * self.length - tilt)


def _symmetric(field: Array) -> Array:
    return 0.5 * (field + field.T) if field.ndim == 2 else field
