"""Dual activations with a closed form: functions of the correlation ρ and the two standard deviations s, t.

Each is written so that nothing cancels at |ρ| = 1. ``CLOSED`` maps a name to
(E[φ(u)φ(u')], E[φ'(u)φ'(u')]), ``MEANS`` to E[φ(u)] as a function of the standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import special

from bornbiased_jax.theory.activations import CENTERED, LEAK, ROOT_2PI, UNIT_MEANS, Array


def _relu_dual(rho: Array, s: Array, t: Array) -> Array:
    """Compute the arc-cosine kernel of degree 1 (Cho and Saul 2009)."""
    return s * t / (2 * np.pi) * (np.sqrt((1 - rho) * (1 + rho)) + (np.pi - np.arccos(rho)) * rho)


def _relu_slope_dual(rho: Array, s: Array, t: Array) -> Array:
    """Compute the arc-cosine kernel of degree 0: P(u > 0, u' > 0)."""
    return np.broadcast_to((np.pi - np.arccos(rho)) / (2 * np.pi), np.broadcast(rho, s, t).shape)


def _relu_squared_dual(rho: Array, s: Array, t: Array) -> Array:
    """Compute the arc-cosine kernel of degree 2 (Cho and Saul 2009)."""
    sine = np.sqrt((1 - rho) * (1 + rho))
    return (s * t) ** 2 / (2 * np.pi) * (3 * rho * sine + (np.pi - np.arccos(rho)) * (1 + 2 * rho * rho))


def _leaky_relu_dual(rho: Array, s: Array, t: Array) -> Array:
    """Compute E[φφ'] of φ(u) = relu(u) − a relu(−u)."""
    return (1 + LEAK**2) * _relu_dual(rho, s, t) - 2 * LEAK * _relu_dual(-rho, s, t)


def _leaky_relu_slope_dual(rho: Array, s: Array, t: Array) -> Array:
    return (1 + LEAK**2) * _relu_slope_dual(rho, s, t) + 2 * LEAK * _relu_slope_dual(-rho, s, t)


def _signed_square_dual(rho: Array, s: Array, t: Array) -> Array:
    """Compute E[φφ'] of φ(u) = u|u|, the odd part of the squared ReLU: its kernel is the odd part, twice."""
    return 2 * (_relu_squared_dual(rho, s, t) - _relu_squared_dual(-rho, s, t))


def _cut(rho: Array, s: Array, t: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Return −1/s, −1/t, each given the other one in its conditional standard deviations, and P(u < −1, u' < −1).

    The probability is Owen's (1956): ½[Φ(h) + Φ(k)] − T(h, a) − T(k, b).
    """
    h, k = -1 / np.maximum(s, 1e-12), -1 / np.maximum(t, 1e-12)
    sine = np.sqrt((1 - rho) * (1 + rho))
    # At |ρ| = 1 one variable decides the other: far above or below its cut, or just at it.
    with np.errstate(divide="ignore", invalid="ignore"):
        left, right = (np.nan_to_num((a - rho * b) / sine, posinf=1e150, neginf=-1e150) for a, b in ((k, h), (h, k)))
    joint = (special.ndtr(h) + special.ndtr(k)) / 2 - special.owens_t(h, left / h) - special.owens_t(k, right / k)
    return h, k, left, right, np.maximum(joint, 0.0)


def _shifted_relu_dual(rho: Array, s: Array, t: Array) -> Array:
    """Compute E[φφ'] of φ(u) = max(u, −1) = u + r(u), r(u) = max(−1 − u, 0).

    Stein's lemma gives E[u r(u')] = −ρ s t P(u' < −1), and E[r r'] in terms of P(u < −1, u' < −1).
    """
    h, k, left, right, joint = _cut(rho, s, t)
    linear = rho * s * t * (1 - special.ndtr(h) - special.ndtr(k))
    tails = t * np.exp(-k * k / 2) * special.ndtr(right) + s * np.exp(-h * h / 2) * special.ndtr(left)
    sine = np.sqrt((1 - rho) * (1 + rho))
    corner = s * t * sine * np.exp(-(k * k + right * right) / 2) / (2 * np.pi)
    return linear + (1 + rho * s * t) * joint - tails / ROOT_2PI + corner


def _shifted_relu_slope_dual(rho: Array, s: Array, t: Array) -> Array:
    h, k, _, _, joint = _cut(rho, s, t)
    return 1 - special.ndtr(h) - special.ndtr(k) + joint


def _gelu_parts(rho: Array, s: Array, t: Array) -> tuple[Array, Array, Array, Array, Array]:
    c, q, r = rho * s * t, s * s, t * t
    # det(I + Σ), written so that nothing cancels at |ρ| = 1.
    det = 1 + q + r + q * r * (1 - rho) * (1 + rho)
    density = 1 / (2 * np.pi * np.sqrt(det))  # E[φ_N(u) φ_N(u')], φ_N the normal density
    orthant = 0.25 + np.arctan2(c, np.sqrt(det)) / (2 * np.pi)  # E[Φ(u) Φ(u')], Sheppard's formula
    return c, q, r, density, orthant


def _gelu_dual(rho: Array, s: Array, t: Array) -> Array:
    """Compute E[uΦ(u) u'Φ(u')].

    Stein's lemma in u, then in u', leaves c E[ΦΦ'] + P (q r + c² (1 − q r)/((1 + q)(1 + r))), where P is the
    mean product of the two normal densities: 1/(2π √det(I + Σ)).
    """
    c, q, r, density, orthant = _gelu_parts(rho, s, t)
    return c * orthant + density * (q * r + c * c * (1 - q * r) / ((1 + q) * (1 + r)))


def _gelu_slope_dual(rho: Array, s: Array, t: Array) -> Array:
    c, q, r, density, orthant = _gelu_parts(rho, s, t)
    det = 1 + q + r + q * r * (1 - rho) * (1 + rho)
    return orthant + density * c * (1 / (1 + q) + 1 / (1 + r) + 1 / det)


def _erf_det(rho: Array, s: Array, t: Array) -> Array:
    q, r = s * s, t * t
    return 1 + 2 * q + 2 * r + 4 * q * r * (1 - rho) * (1 + rho)


def _erf_dual(rho: Array, s: Array, t: Array) -> Array:
    """Compute (2/π) arcsin(2c/√((1+2q)(1+2r))) (Williams 1997), as an arctangent: accurate at |ρ| = 1 and any std."""
    return 2 / np.pi * np.arctan2(2 * rho * s * t, np.sqrt(_erf_det(rho, s, t)))


def _erf_slope_dual(rho: Array, s: Array, t: Array) -> Array:
    return 4 / np.pi / np.sqrt(_erf_det(rho, s, t))


DualKernel = Callable[[Array, Array, Array], Array]
CLOSED: dict[str, tuple[DualKernel, DualKernel]] = {
    "relu": (_relu_dual, _relu_slope_dual),
    "gelu": (_gelu_dual, _gelu_slope_dual),
    "erf": (_erf_dual, _erf_slope_dual),
    "relu_squared": (_relu_squared_dual, lambda rho, s, t: 4 * _relu_dual(rho, s, t)),
    "leaky_relu": (_leaky_relu_dual, _leaky_relu_slope_dual),
    "shifted_relu": (_shifted_relu_dual, _shifted_relu_slope_dual),
    "signed_square": (
        _signed_square_dual,
        lambda rho, s, t: 8 * (_relu_dual(rho, s, t) + _relu_dual(-rho, s, t)),
    ),
    "identity": (
        lambda rho, s, t: rho * s * t,
        lambda rho, s, t: np.ones(np.broadcast(rho, s, t).shape),
    ),
}


def _shifted_relu_mean(s: Array) -> Array:
    h = -1 / np.maximum(s, 1e-12)
    return s * np.exp(-h * h / 2) / ROOT_2PI - special.ndtr(h)


MEANS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda s: s / ROOT_2PI,
    "gelu": lambda s: s * s / np.sqrt(1 + s * s) / ROOT_2PI,
    "relu_squared": lambda s: s * s / 2,
    "leaky_relu": lambda s: (1 - LEAK) * s / ROOT_2PI,
    "shifted_relu": _shifted_relu_mean,
}


def _centered_mean(name: str) -> Callable[[Array], Array]:
    mean, c = MEANS[name], UNIT_MEANS[name]
    return lambda s: mean(s) - c


def _centered(name: str) -> tuple[DualKernel, DualKernel]:
    """Return the kernels of φ − c: the derivative's does not change."""
    (value, slope), mean, c = CLOSED[name], MEANS[name], UNIT_MEANS[name]
    return lambda rho, s, t: value(rho, s, t) - c * (mean(s) + mean(t)) + c * c, slope


CLOSED.update({name + CENTERED: _centered(name) for name in MEANS})
MEANS.update({name + CENTERED: _centered_mean(name) for name in MEANS})
