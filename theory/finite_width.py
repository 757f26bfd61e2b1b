"""What survives at order 1/D, and gives gated MLPs their contraction.

Two tokens' cosine is not exactly its mean ρ: over pairs it has a variance v of order 1/D, so the mean kernel is
K(ρ) + ½ K''(ρ) v. For a gated MLP K(ρ) = κ(ρ) ρ σ² is 0 at ρ = 0, but K''(0) = 2κ'(0) σ² is not, and the mean cosine of
independent inputs starts at order 1/D instead of 0. The same number seen from one neuron: its gate row g and up row u
overlap, so E over inputs of silu(g·n)(u·n) = g·Σu E[silu'] with Σ the inputs' covariance and E[silu'] = 1/2; squared and
summed over neurons, std⁴ tr(Σ²)/4 each. Since v = tr(Σ²)/D², what counts is how many dimensions inputs really span: v
starts at 1/D and grows as projections of width F and G·K squeeze them (``sublayers.add``).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from theory import kernels
from theory.kernels import Array

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
        """d/d ln(std) of the left node, at fixed ρ: half the symmetric stretch on the diagonal. Shape of ``rho``."""
        up, down = (kernel(self.activation, self.gated, self.std_n * (1 + s)) for s in (STEP, -STEP))
        both = (up.expand(rho)[0] - down.expand(rho)[0]) / (2 * STEP)
        return both / 2


def kernel(activation: str, gated: bool, std_n: Array) -> Kernel:
    """The kernel of an MLP whose pre-activations have these standard deviations at the nodes.

    Raises:
        ValueError: a negative standard deviation, an unknown activation.
    """
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


class Overlap(NamedTuple):
    """How cosines vary from pair to pair of tokens.

    With x = m + g, m the mean over inputs, and all in units of ‖x‖²: variance of g·g' (``overlap``) and of m·g'
    (``lean``). The cosine of x and x' is, to first order, ρ + (1 − ρ) m·(g + g') + g·g' − ½ρ(‖g‖² + ‖g'‖² − 2(1 − ρ)).
    """

    overlap: Array
    lean: Array

    def cosine_variance(self, rho: Array) -> Array:
        """Over pairs of tokens, given the seed: 2(1 − ρ)² lean + (1 + ρ²) overlap."""
        both = self.lean + self.lean.T if np.ndim(self.lean) == 2 else 2.0 * self.lean
        return (1.0 - rho) ** 2 * both + (1.0 + rho**2) * self.overlap

    def one_sided_variance(self, rho: Array) -> Array:
        """The part of it that one of the two tokens explains: (1 − ρ)² lean + ½ρ² overlap."""
        return (1.0 - rho) ** 2 * self.lean + 0.5 * rho**2 * self.overlap

    def cosine_bias(self, rho: Array) -> Array:
        """What dividing by the norms of single tokens adds to the mean cosine: the second-order terms, given the seed.

        −(2 − 3ρ) lean + (3/2)ρ overlap. For isotropic g that is ρ(1 − ρ)(3ρ − 1)/(2D); the spread of ‖m‖² over seeds
        (``seeds``) adds −2ρ²(1 − ρ)/D, in all the −ρ(1 − ρ²)/(2D) of a sample correlation.
        """
        lean = 0.5 * (self.lean + self.lean.T) if np.ndim(self.lean) == 2 else self.lean
        return -(2.0 - 3.0 * rho) * lean + 1.5 * rho * self.overlap
