"""Dual activations: E[φ(u)φ(u')] for correlated centered Gaussians, in float64, elementwise over arrays.

ReLU, exact GELU, erf and the identity have closed forms. tanh, SiLU and the tanh form of GELU do not: their
kernels are Hermite series, summed to a tail energy below 2e-14 of the second moment, and re-expanded in
Chebyshev polynomials of the angle arcsin ρ where the series is long. Sources: Cho and Saul (2009) for ReLU,
Williams (1997) for erf, O'Donnell (2014, chapter 11) for Mehler's formula; the GELU form is derived in
``closed_forms``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import fft

from bornbiased_jax.theory import checks
from bornbiased_jax.theory.activations import ACTIVATIONS, DERIVATIVES, TABLE, Array, Function
from bornbiased_jax.theory.closed_forms import CLOSED, MEANS
from bornbiased_jax.theory.quadrature import LARGEST_PANEL_SCALE, normal_lattice, normal_panels

TAIL = 2e-14
DEGREES = (16, 32, 64, 128, 256, 512)
_LONGEST_HORNER = 96
_CHUNK = 16_384
_MOST_PAIRS = 16
LARGEST_STD = 16.0
"""Of pre-activations: the largest for which kernels without a closed form are summed; a lattice takes 1e6 nodes."""


# One-dimensional expectations and Hermite coefficients.


@functools.lru_cache(maxsize=8)
def _hermite_rows(degree: int) -> Array:
    """Compute w(z) he_n(z) on the grid, n = 0..degree, he_n orthonormal under N(0, 1). Shape [nodes, degree + 1]."""
    z, w = normal_panels()
    rows = np.empty((degree + 1, z.size))
    # Carry he_n e^(-z²/4), which is bounded, and put the other half of the weight back at the end.
    envelope = np.exp(-z * z / 4)
    rows[0] = envelope
    if degree:
        rows[1] = z * envelope
    for n in range(1, degree):
        rows[n + 1] = (z * rows[n] - np.sqrt(n) * rows[n - 1]) / np.sqrt(n + 1)
    return np.ascontiguousarray((rows * (w / envelope)).T)


def _mean_square(phi: Function, std: Array) -> Array:
    """Compute E[φ(std·z)²], elementwise over std, to rounding for std up to ``LARGEST_PANEL_SCALE``."""
    checks.std(std, "std", LARGEST_PANEL_SCALE)
    z, w = normal_panels()
    unique, back = np.unique(std, return_inverse=True)
    values = np.array([np.dot(phi(s * z) ** 2, w) for s in unique])
    return values[back].reshape(std.shape)


def hermite_coefficients(phi: str | Function, std: npt.ArrayLike = 1.0, degree: int = 64) -> Array:
    """Compute a_n = E[φ(std·z) he_n(z)], z ~ N(0, 1), he_n orthonormal (he_1 = z, he_2 = (z² − 1)/√2).

    Args:
        phi: name of an activation, or a vectorized function, analytic on either side of 0 (a kink at 0 is
            allowed).
        std: standard deviations, any shape S.
        degree: highest n.

    Returns:
        Shape S + [degree + 1].

    Raises:
        ValueError: std outside 0 to ``LARGEST_PANEL_SCALE``, unknown name, degree outside 0..512.
    """
    if not 0 <= degree <= DEGREES[-1]:
        raise ValueError(f"degree: {degree} lies outside 0..{DEGREES[-1]}")
    f, stds = checks.function(phi), checks.std(std, "std", LARGEST_PANEL_SCALE)
    z, _ = normal_panels()
    unique, back = np.unique(stds, return_inverse=True)
    table = np.stack([f(s * z) for s in unique]) @ _hermite_rows(degree)
    return table[back].reshape(stds.shape + (degree + 1,))


def hermite_tail(phi: str | Function, std: npt.ArrayLike, coefficients: Array) -> Array:
    """Compute the energy left out by a truncation, E[φ(std·z)²] − Σ a_n² (never below 0). Shape of std."""
    return np.maximum(
        _mean_square(checks.function(phi), checks.std(std, "std")) - np.sum(coefficients**2, axis=-1), 0.0
    )


def hermite_dual(
    phi: str | Function,
    rho: npt.ArrayLike,
    std: npt.ArrayLike = 1.0,
    degree: int = 64,
    std2: npt.ArrayLike | None = None,
) -> tuple[Array, Array]:
    """Compute the Mehler series Σ_{n ≤ degree} a_n(std) a_n(std2) ρ^n for any φ, and a bound on what it leaves out.

    By Cauchy-Schwarz the remainder is at most |ρ|^(degree+1) √(tail(std) tail(std2)), with the tail energies
    of :func:`hermite_tail`; the bound holds up to rounding (about 1e-15 of the second moment).

    Returns:
        (values, bounds), both of the broadcast shape.

    Raises:
        ValueError: |rho| > 1, negative std, degree outside 0..512, unknown name.
    """
    r, s = checks.rho(rho), checks.std(std, "std")
    t = s if std2 is None else checks.std(std2, "std2")
    a = hermite_coefficients(phi, s, degree)
    b = a if std2 is None else hermite_coefficients(phi, t, degree)
    tails = np.sqrt(hermite_tail(phi, s, a) * hermite_tail(phi, t, b))
    return _horner(r, a, b), np.abs(r) ** (degree + 1) * tails


def _horner(rho: Array, a: Array, b: Array) -> Array:
    """Compute Σ a[..., n] b[..., n] ρ^n by Horner's rule, broadcasting the leading axes."""
    value = np.zeros(np.broadcast_shapes(rho.shape, a.shape[:-1], b.shape[:-1]))
    for n in range(a.shape[-1] - 1, -1, -1):
        value = value * rho + a[..., n] * b[..., n]
    return value


# Kernels without a closed form.


def _converged(phi: Function, stds: Array) -> Array | None:
    """Return coefficients of the shortest series with a negligible tail at every std; None if 512 is too short."""
    for degree in DEGREES:
        a = hermite_coefficients(phi, stds, degree)
        energy = np.maximum(_mean_square(phi, stds), np.finfo(float).tiny)
        if np.all(hermite_tail(phi, stds, a) <= TAIL * energy):
            return a
    return None


def lattice_dual(phi: Function, theta: Array, s: float, t: float, psi: Function | None = None) -> Array:
    """Compute E[φ(s z) ψ(t (z cos θ + w sin θ))] (ψ = φ if None), by the trapezoidal rule on a square lattice.

    For φ, ψ analytic within π/2 of the real axis (activations with a kink, ReLU and its variants, are not): see
    :func:`bornbiased_jax.theory.quadrature.normal_lattice`. Shape of theta (one axis).

    Raises:
        ValueError: s or t outside 0 to ``LARGEST_STD``, or both 0.
    """
    checks.std(s, "s", LARGEST_STD), checks.std(t, "t", LARGEST_STD)
    if not max(s, t) > 0:
        raise ValueError("s: one of the two standard deviations must be positive")
    psi = psi or phi
    z, w = normal_lattice(max(s, t))
    left = phi(s * z) * w
    return np.array([left @ (psi(t * (np.cos(a) * z[:, None] + np.sin(a) * z)) @ w) for a in theta])


@functools.lru_cache(maxsize=512)
def _series(name: str, slope: bool, s: float, t: float) -> tuple[str, Array]:
    """Expand a kernel: ("power", coefficients in ρ) or ("angle", Chebyshev coefficients in (2/π) arcsin ρ)."""
    phi = (DERIVATIVES if slope else ACTIVATIONS)[name]
    a = _converged(phi, np.array([s, t]))
    if a is not None and a.shape[-1] <= _LONGEST_HORNER:
        kind, c = "power", a[0] * a[1]
    elif a is not None:
        pair = a
        kind, c = "angle", _chebyshev(lambda theta: _horner(np.cos(theta), pair[0], pair[1]))
    else:
        kind, c = "angle", _chebyshev(lambda theta: lattice_dual(phi, theta, s, t))
    if TABLE[name].odd:
        # An odd φ has an odd kernel and φ' an even one: without the rounding noise, 0 stays exactly 0.
        c[int(slope) :: 2] = 0.0
    return kind, c


def _chebyshev(kernel: Callable[[Array], Array]) -> Array:
    """Expand a kernel, given as a function of θ = arccos ρ, in Chebyshev polynomials of x = (2/π) arcsin ρ.

    Interpolation at cos(πj/n), n doubled (old values kept) until the last coefficients are rounding noise. In the
    angle a kernel is smooth at both ends; in ρ, a wide tanh's has nearly a branch point there.
    """
    n = 32
    values = kernel((1 - np.cos(np.pi * np.arange(n + 1) / n)) * np.pi / 2)
    while True:
        fit = fft.dct(values, type=1) / n
        fit[[0, -1]] /= 2
        size = np.max(np.abs(fit))
        if n == 512 or np.max(np.abs(fit[-4:])) <= 1e-14 * size:
            break
        n *= 2
        finer = np.empty(n + 1)
        finer[::2] = values
        finer[1::2] = kernel((1 - np.cos(np.pi * np.arange(1, n, 2) / n)) * np.pi / 2)
        values = finer
    keep = np.flatnonzero(np.abs(fit) > 1e-16 * size)
    return np.asarray(fit[: keep[-1] + 1] if keep.size else fit[:1], dtype=np.float64)


def _evaluate(rho: Array, kind: str, coefficients: Array) -> Array:
    """Evaluate a series over an array of correlations, in pieces that stay in cache."""
    flat, out = rho.ravel(), np.empty(rho.size)
    for start in range(0, flat.size, _CHUNK):
        piece = flat[start : start + _CHUNK]
        if kind == "power":
            value = np.full(piece.shape, coefficients[-1])
            for c in coefficients[-2::-1]:
                value *= piece
                value += c
        else:
            value = np.polynomial.chebyshev.chebval(np.arcsin(piece) * (2 / np.pi), coefficients)
        out[start : start + _CHUNK] = value
    return out.reshape(rho.shape)


def _series_dual(name: str, slope: bool, rho: Array, s: Array, t: Array) -> Array:
    shape = np.broadcast_shapes(rho.shape, s.shape, t.shape)
    if 0 in shape:
        return np.empty(shape)
    pairs, index = np.unique(np.stack([a.ravel() for a in np.broadcast_arrays(s, t)]), axis=1, return_inverse=True)
    full = np.broadcast_to(rho, shape)
    if pairs.shape[1] == 1:
        return _evaluate(full, *_series(name, slope, *map(float, pairs[:, 0])))
    if pairs.shape[1] > _MOST_PAIRS:
        phi = (DERIVATIVES if slope else ACTIVATIONS)[name]
        coefficients = _converged(phi, np.concatenate([np.ravel(s), np.ravel(t)]))
        if coefficients is not None:
            a = coefficients[: s.size].reshape(s.shape + (-1,))
            return _horner(rho, a, coefficients[s.size :].reshape(t.shape + (-1,)))
    # One series for each pair of standard deviations.
    place = np.broadcast_to(np.reshape(index, np.broadcast_shapes(s.shape, t.shape)), shape)
    out = np.empty(shape)
    for k in range(pairs.shape[1]):
        mask = place == k
        out[mask] = _evaluate(full[mask], *_series(name, slope, *map(float, pairs[:, k])))
    return out


def _dispatch(name: str, slope: bool, rho: npt.ArrayLike, std: npt.ArrayLike, std2: npt.ArrayLike | None) -> Array:
    checks.function(name)
    r, s = checks.rho(rho), checks.std(std, "std")
    t = s if std2 is None else checks.std(std2, "std2")
    if name in CLOSED:
        return np.asarray(CLOSED[name][slope](r, s, t))
    checks.std(s, "std", LARGEST_STD), checks.std(t, "std2", LARGEST_STD)
    return _series_dual(name, slope, r, s, t)


def dual(name: str, rho: npt.ArrayLike, std: npt.ArrayLike = 1.0, std2: npt.ArrayLike | None = None) -> Array:
    """Compute E[φ(u)φ(u')], (u, u') centered Gaussian with stds std and std2 (default: std), correlation rho.

    Elementwise, broadcasting; exact at ρ = ±1. Absolute error below 1e-12 of √(E[φ(u)²]E[φ(u')²]). The
    activations without a closed form are fastest with one std for the whole array; their cost grows as std²
    beyond std 3 (2 seconds at ``LARGEST_STD``).

    Args:
        name: of ``theory.activations.TABLE``: relu, gelu (u Φ(u)), tanh, silu (u/(1 + e^(−u))), …
        rho: correlations.
        std: pre-activation standard deviations, up to ``LARGEST_STD`` where there is no closed form.
        std2: those of u', likewise; ``std`` unless given.

    Raises:
        ValueError: |rho| > 1, a std out of range, an unknown name.

    >>> dual("relu", [0.0, 1.0]).round(4).tolist()  # 1/(2π) and 1/2
    [0.1592, 0.5]
    """
    return _dispatch(name, False, rho, std, std2)


def dual_derivative(
    name: str, rho: npt.ArrayLike, std: npt.ArrayLike = 1.0, std2: npt.ArrayLike | None = None
) -> Array:
    """Compute E[φ'(u)φ'(u')], the derivative of :func:`dual` in the covariance std·std2·ρ (Price's theorem)."""
    return _dispatch(name, True, rho, std, std2)


def second_moment(name: str, std: npt.ArrayLike = 1.0) -> Array:
    """Compute E[φ(u)²], u ~ N(0, std²), elementwise, to rounding.

    Raises:
        ValueError: a negative std, or one above ``LARGEST_PANEL_SCALE`` where there is no closed form; an unknown name.
    """
    phi, s = checks.function(name), checks.std(std, "std")
    return dual(name, 1.0, s) if name in CLOSED else _mean_square(phi, s)


def mean(name: str, std: npt.ArrayLike = 1.0) -> Array:
    """Compute E[φ(u)], u ~ N(0, std²), elementwise.

    Raises:
        ValueError: a negative std, an unknown name.

    >>> float(mean("relu", 2.0).round(4))
    0.7979
    """
    checks.choice(name, "name", TABLE)
    s = checks.std(std, "std")
    if TABLE[name].odd:
        return np.zeros_like(s)
    if name in MEANS:
        return np.asarray(MEANS[name](s))
    return np.asarray(hermite_coefficients(name, std, 0)[..., 0])


def gated_dual(
    name: str,
    rho: npt.ArrayLike,
    std: npt.ArrayLike = 1.0,
    rho_up: npt.ArrayLike | None = None,
    std_up: npt.ArrayLike | None = None,
    *,
    std2: npt.ArrayLike | None = None,
    std_up2: npt.ArrayLike | None = None,
) -> Array:
    """Compute E[φ(g)u φ(g')u'] of a gated MLP, gate g and up-projection u independent (exact at infinite width).

    The product of the gate's kernel and the linear kernel std_up·std_up2·rho_up; the second standard
    deviations default to the first ones, and the up-projection's values to the gate's. Odd in ρ_up: at ρ = 0
    nothing contracts (ERRATA.md, entry 3).

    Raises:
        ValueError: |rho| > 1, a negative std, an unknown name.

    >>> float(gated_dual("silu", 0.0, 0.554))
    0.0
    """
    up = checks.std(std if std_up is None else std_up, "std_up")
    if std_up2 is not None:
        up2 = checks.std(std_up2, "std_up2")
    else:
        up2 = checks.std(std2, "std2") if std_up is None and std2 is not None else up
    linear = checks.rho(rho if rho_up is None else rho_up, "rho_up")
    return dual(name, rho, std, std2) * linear * up * up2
