"""Rows of softmax attention over Gaussian logits, whatever their variance: overlap of two rows, entropy of one.

A query's logits are independent N(0, Ω) over keys, and those of two queries of cosine ρ correlate by ρ for each key.
Products of normalizers are integrals, 1/(Z Z') = ∫∫ e^(−yZ − y'Z') dy dy', in which the keys factor. All integrals are
trapezoidal sums in ln y and over lattices: deterministic, and exact up to rounding in effect. With the participation
E Σ a² they say how attention mixes tokens on both sides of the entropy transition, Ω of about 2 ln(count).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from bornbiased_jax.theory import checks, quadrature
from bornbiased_jax.theory.activations import Array

LARGEST_VARIANCE = 200.0
"""Of logits: the largest for which moments of the weights are integrated."""
PARTICIPATION_STEP, LOG_STEP = 0.3, 0.4
"""Of the lattices in ln y: of one integral, and of two."""
NARROW_SCALE = 0.12
"""Standard deviation of a common part up to which a few Gauss-Hermite nodes serve; beyond, a lattice."""
HERMITE_NODES = 12


class SharedLogit(NamedTuple):
    """The part that two queries' logits for one key share: nodes in units of the logit, and their weights."""

    shift_c: Array
    weight_c: Array


@functools.lru_cache(maxsize=4096)
def participation(count: int, variance: float) -> float:
    """Compute E Σ a² of a softmax over ``count`` independent N(0, variance) logits: 1/count at variance 0, at most 1.

    With 1/Z² = ∫ y e^(−yZ) dy it is count·∫ y E[e^(2λ) e^(−y e^λ)] E[e^(−y e^λ)]^(count−1) dy. The expectations over
    λ are lattice sums. So is the integral, in ln y: turned by an angle θ < π/2 the integrand is at most 1/cos²θ times
    as large, so that a step h leaves a relative error of 2 e^(−2πθ/h)/cos²θ. Relative error below 1e-10 for every
    count and variances up to ``LARGEST_VARIANCE``; a millisecond, 50 at the largest variance.

    Raises:
        ValueError: count below 1, a variance outside 0 to ``LARGEST_VARIANCE``.

    >>> round(participation(4, 0.0), 9)
    0.25
    >>> round(participation(4096, 74.9), 4)
    0.588
    """
    count, variance = checks.whole(count, "count"), checks.finite(variance, "variance")
    log_y, w, exp_logit, complement = _factors(count, variance)
    squared = (1 - complement) @ (w * exp_logit**2)
    remaining = np.exp((count - 1) * np.log1p(-np.minimum(complement @ w, 1 - 1e-16)))
    return float(count * np.sum(np.exp(2 * log_y) * squared * remaining) * PARTICIPATION_STEP)


def _factors(count: int, variance: float, below: float = 0.0) -> tuple[Array, Array, Array, Array]:
    """Return nodes of ln y, so much further down, and over those of a logit λ weights, e^λ and 1 − e^(−y e^λ)."""
    _refuse_large(variance)
    scale, reach = np.sqrt(variance), np.sqrt(2 * (np.log(count) + 40))  # All of the logits lie within the reach.
    z, w = quadrature.normal_lattice(float(scale), float(reach))
    log_y = np.arange(-16 - below - np.log(count) - reach * scale, 4 + reach * scale, PARTICIPATION_STEP)
    exp_logit = np.exp(scale * z)
    return log_y, w, exp_logit, -np.expm1(-np.outer(np.exp(log_y), exp_logit))


class WithSink(NamedTuple):
    """Moments of a row of weights next to a logit of 0 that takes a part of them."""

    mean: float
    """E A, A the sum of the weights."""
    square: float
    """E A²."""
    participation: float
    """E Σ a²."""


@functools.lru_cache(maxsize=4096)
def with_sink(count: int, variance: float, common: float) -> WithSink:
    """Compute moments of a softmax over ``count`` logits and a further one of 0.

    The integrals are those of :func:`participation`, times E e^(−y e^(−c)): divided by e^c of their common part, the
    logits are independent and the further one is −c.

    Args:
        count: logits.
        variance: of each logit around their common part.
        common: variance of what they have in common, which a softmax without a sink does not see.

    Raises:
        ValueError: count below 1, a variance outside 0 to ``LARGEST_VARIANCE``, both together above it.

    >>> [round(moment, 6) for moment in with_sink(3, 0.0, 0.0)]  # 3/4, its square, 3/16
    [0.75, 0.5625, 0.1875]
    """
    count, variance = checks.whole(count, "count"), checks.finite(variance, "variance")
    common = checks.finite(common, "common")
    _refuse_large(variance + common)
    c, w_c = quadrature.normal_lattice(float(np.sqrt(common)))
    # The mean falls off as y where the others fall off as y²; a sink of e^(−c) moves all of them.
    log_y, w, exp_logit, complement = _factors(count, variance, 16 + quadrature.REACH * float(np.sqrt(common)))
    y = np.exp(log_y)
    kept = np.exp(-np.outer(y, np.exp(np.sqrt(common) * c))) @ w_c * PARTICIPATION_STEP
    once, twice = ((1 - complement) @ (w * exp_logit**k) for k in (1, 2))
    log_rest = np.log1p(-np.minimum(complement @ w, 1 - 1e-16))
    one_gone, two_gone = (np.exp(max(count - k, 0) * log_rest) for k in (1, 2))
    squares = float(count * np.sum(kept * y**2 * twice * one_gone))
    pairs = float(count * (count - 1) * np.sum(kept * y**2 * once**2 * two_gone))
    return WithSink(float(count * np.sum(kept * y * once * one_gone)), squares + pairs, squares)


@functools.lru_cache(maxsize=16_384)
def row_overlap(first: int, second: int, variance: float, rho: float) -> float:
    """Compute E Σ_j a_j a'_j of two rows of softmax weights, over the keys that both queries see.

    Args:
        first: keys that one query sees.
        second: keys that the other sees; the smaller number is seen by both.
        variance: Ω of either query's logits.
        rho: correlation of the two queries' logits for one key, at least 0.

    Returns:
        1/max(first, second) at ρ = 0 (or Ω = 0), the participation at ρ = 1 and equal numbers. Relative error below
        1e-8 for variances up to ``LARGEST_VARIANCE``; milliseconds, a fifth of a second at the largest variance.

    Raises:
        ValueError: a number of keys below 1, a variance outside 0 to ``LARGEST_VARIANCE``, rho outside [0, 1].

    >>> round(row_overlap(512, 512, 6.0, 0.5), 6)
    0.017124
    >>> round(row_overlap(8, 16, 3.0, 0.0), 6)
    0.0625
    """
    few, many = sorted((checks.whole(first, "first"), checks.whole(second, "second")))
    variance, rho = checks.finite(variance, "variance"), checks.probability(rho, "rho")
    _refuse_large(variance)
    if variance == 0 or rho == 0 or few == 1:
        return 1.0 / many
    if rho == 1 and few == many:
        return participation(few, variance)
    reach = np.sqrt(2 * (np.log(many) + 40))
    log_y = _log_lattice(many, variance, float(reach))
    common = _common(float(np.sqrt(variance * rho)), float(reach))
    # Given the common part c, both queries' factors are the same functions of ln y + c.
    gone_cy, weighted_cy = _conditional(log_y[None, :] + common.shift_c[:, None], np.sqrt(variance * (1 - rho)), reach)
    # One key's 1 − E e^(−y e^s − y' e^s'), summed so that nothing cancels where it is small.
    w = common.weight_c[:, None]
    gone_y = common.weight_c @ gone_cy
    gone_yy = gone_y[:, None] + gone_y[None, :] - gone_cy.T @ (w * gone_cy)
    product_yy = weighted_cy.T @ (w * weighted_cy)
    log_rest_yy = (few - 1) * np.log1p(-np.minimum(gone_yy, 1 - 1e-16))
    # Keys that the second query alone sees.
    log_rest_yy = log_rest_yy + (many - few) * np.log1p(-np.minimum(gone_y, 1 - 1e-16))[None, :]
    return float(few * np.sum(product_yy * np.exp(log_rest_yy)) * LOG_STEP**2)


def _refuse_large(variance: float) -> None:
    if variance > LARGEST_VARIANCE:
        raise ValueError(
            f"variance: {variance:.4g} of the attention's logits is above {LARGEST_VARIANCE:g}, the largest that is "
            "integrated accurately; the weights are too large for this width"
        )


def _log_lattice(count: int, variance: float, reach: float) -> Array:
    """Return the nodes of ln y: beyond them e^(−yZ) is 1 or 0, whatever the logits are."""
    half_width = reach * float(np.sqrt(variance))
    return np.arange(-22 - np.log(count) - half_width, 4 + half_width, LOG_STEP)


def _common(scale: float, reach: float) -> SharedLogit:
    """Return nodes of N(0, scale²), aligned with the lattice in ln y so that their sums have few values."""
    if scale <= NARROW_SCALE:
        z, w = quadrature.normal_nodes(HERMITE_NODES)
        return SharedLogit(scale * z, w)
    step = LOG_STEP / np.ceil(LOG_STEP / (scale * quadrature.COARSEST_STEP))
    count = int(np.ceil(reach * scale / step))
    shift_c: Array = np.arange(-count, count + 1, dtype=np.float64) * float(step)
    weight_c: Array = np.exp(-((shift_c / scale) ** 2) / 2)
    return SharedLogit(shift_c, weight_c / weight_c.sum())


def _conditional(log_cy: Array, scale: float, reach: float) -> tuple[Array, Array]:
    """Compute 1 − E e^(−x e^u) and x E e^u e^(−x e^u), u ~ N(0, scale²), at x = exp of each argument."""
    arguments, back = np.unique(np.round(log_cy, 9), return_inverse=True)
    z, w = quadrature.normal_lattice(float(scale), float(reach))
    exponent = np.exp(np.minimum(arguments[:, None] + scale * z, 700.0))
    left = np.exp(-exponent)
    complement = np.where(exponent < 0.1, -np.expm1(-np.minimum(exponent, 0.1)), 1 - left) @ w
    weighted = (exponent * left) @ w
    return complement[back].reshape(log_cy.shape), weighted[back].reshape(log_cy.shape)


@functools.lru_cache(maxsize=4096)
def row_entropy(count: int, variance: float) -> float:
    """Compute the expected entropy of a softmax over ``count`` independent N(0, variance) logits, in nats.

    That is E ln Z − Ω(1 − E Σ a²) by Stein's lemma, and E ln Z = ∫ (e^(−y) − E e^(−yZ)) dy/y.

    Raises:
        ValueError: count below 1, a variance outside 0 to ``LARGEST_VARIANCE``.

    >>> round(float(row_entropy(64, 0.0) / np.log(64)), 9)
    1.0
    """
    count, variance = checks.whole(count, "count"), checks.finite(variance, "variance")
    _refuse_large(variance)
    reach = float(np.sqrt(2 * (np.log(count) + 40)))
    log_y = _log_lattice(count, variance, reach) - 16
    log_y = np.concatenate([log_y, np.arange(log_y[-1] + LOG_STEP, log_y[-1] + 24, LOG_STEP)])
    complement, _ = _conditional(log_y, float(np.sqrt(variance)), reach)
    rest = np.exp(count * np.log1p(-np.minimum(complement, 1 - 1e-16)))
    log_normalizer = float(np.sum(np.exp(-np.exp(np.minimum(log_y, 700.0))) - rest) * LOG_STEP)
    return max(log_normalizer - variance * (1 - participation(count, variance)), 0.0)
