"""Stacks of MLP₀ blocks (Definition 1: φ(X W_up) W_down, no norm, no residual): Proposition 2 and its surroundings.

Infinite width first: the recurrence, its map g, its limit and its rate; any activation at any scale of the
weights. Then finite width: the first-order mean and standard deviation of the cosine at width d and hidden
width F.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from bornbiased_jax.theory import checks, kernels
from bornbiased_jax.theory.activations import Array

# g(1 − ε) = 1 − ε + A ε^(3/2) + O(ε^(5/2)).
RATE_CONSTANT = 2 * np.sqrt(2) / (3 * np.pi)


def relu_map(rho: npt.ArrayLike) -> Array:
    """Compute g(ρ) = (√(1 − ρ²) + (π − arccos ρ) ρ)/π, equation (3): one wide ReLU layer's action on a cosine.

    Elementwise.

    Raises:
        ValueError: |rho| > 1.
    """
    return 2 * kernels.dual("relu", rho)


def relu_map_gap(gap: npt.ArrayLike) -> Array:
    """Compute 1 − g(1 − ε) as a function of ε = 1 − ρ, to relative precision however small ε is. Elementwise.

    With cos θ = 1 − ε it is ε − (sin θ − θ cos θ)/π: the second term is O(ε^(3/2)), so nothing cancels, and
    for small θ it is summed as a series.

    Raises:
        ValueError: gap outside [0, 2].
    """
    e = checks.within(gap, "gap", 0, 2)
    theta = 2 * np.arcsin(np.sqrt(e / 2))
    t2 = theta * theta
    series = theta * t2 * (1 / 3 - t2 * (1 / 30 - t2 * (1 / 840 - t2 * (1 / 45_360 - t2 / 3_991_680))))
    return e - np.where(theta < 0.3, series, np.sin(theta) - theta * np.cos(theta)) / np.pi


def prop2(layers: int, rho0: float = 0.0) -> Array:
    """Compute ρ_1 … ρ_layers of Proposition 2, infinite width: ρ_l = g(ρ_{l−1}). Shape [layers].

    Args:
        layers: number of ReLU MLP₀ layers.
        rho0: cosine of the two inputs (0 in the proposition).

    Raises:
        ValueError: layers < 0 or |rho0| > 1.

    >>> prop2(3).round(4).tolist()
    [0.3183, 0.4937, 0.6048]
    """
    return 1 - prop2_gap(layers, rho0)


def prop2_gap(layers: int, rho0: float = 0.0) -> Array:
    """Compute 1 − ρ_1 … 1 − ρ_layers, to relative precision. Shape [layers]; raises as :func:`prop2`."""
    gap: Array = 1.0 - checks.rho(rho0, "rho0")
    gaps = np.empty(checks.whole(layers, "layers", 0))
    for i in range(gaps.size):
        gaps[i] = gap = relu_map_gap(gap)
    return gaps


def prop2_rate(layers: npt.ArrayLike) -> Array:
    """Compute the leading rate 1 − ρ_l ~ 9π²/(2l²), for l → ∞ only: 24% too large at l = 100, 3% at l = 1000.

    It ignores a logarithm. From ε' = ε − A ε^(3/2), A = 2√2/(3π): ε^(−1/2) grows by A/2 a layer, so ε ~ 4/(A l)².
    Raises ValueError for l < 1.
    """
    depth = checks.from_least(layers, "layers", 1)
    return 4 / (RATE_CONSTANT * depth) ** 2


def prop2_rate_refined(layers: npt.ArrayLike) -> Array:
    """Compute 1 − ρ_l ≈ (A l/2 + (3A/4) ln l + C)^(−2) from ρ_0 = 0: within 5% for l ≥ 20, 0.3% for l ≥ 100.

    The logarithm is the next term of y' = y + A/2 + 3A²/(8y) + …, y = ε^(−1/2); C is the limit of what then
    remains.
    """
    depth = checks.from_least(layers, "layers", 1)
    return (RATE_CONSTANT * depth / 2 + 0.75 * RATE_CONSTANT * np.log(depth) + _rate_offset()) ** -2.0


@functools.lru_cache(maxsize=1)
def _rate_offset() -> float:
    depth = 20_000
    gap = 1.0
    for _ in range(depth):
        theta = 2 * np.arcsin(np.sqrt(gap / 2))
        gap -= (np.sin(theta) - theta * np.cos(theta)) / np.pi
    # The remainder falls as ln(l)/l; with its leading coefficient the offset is good to about 1e-5.
    slope = 9 * RATE_CONSTANT / 8 * np.log(depth) / depth
    return float(gap**-0.5 - RATE_CONSTANT * depth / 2 - 0.75 * RATE_CONSTANT * np.log(depth) - slope)


def activation_map(name: str, rho: npt.ArrayLike, std: npt.ArrayLike = 1.0) -> Array:
    """Map ρ to E[φ(u)φ(u')]/E[φ(u)²] of one wide layer with any activation, pre-activation std given.

    Elementwise. Odd activations (tanh, erf, identity) keep ρ = 0 exactly: the tanh half of Proposition 2.

    Raises:
        ValueError: |rho| > 1, std ≤ 0, unknown name.

    >>> float(activation_map("gelu", 0.0, 0.554).round(4))
    0.1078
    """
    if not np.all(np.asarray(std) > 0):
        raise ValueError("std: the cosine of zero vectors is not defined; std must be positive")
    return np.clip(kernels.dual(name, rho, std) / kernels.second_moment(name, std), -1.0, 1.0)


class MLPStack(NamedTuple):
    """An infinitely wide MLP₀ stack: entry 0 of ``rho`` and ``rms`` is the input.

    rho: cosine [layers + 1]; rms: root mean square of a coordinate [layers + 1]; preactivation_std [layers].
    """

    rho: Array
    rms: Array
    preactivation_std: Array


def mlp0_stack(
    name: str,
    layers: int,
    *,
    rho0: float = 0.0,
    input_std: float = 1.0,
    up_gain: float = 1.0,
    down_gain: float = 1.0,
) -> MLPStack:
    """Iterate the infinite-width recursion of an MLP₀ stack with any activation.

    Args:
        name: activation.
        layers: number of blocks.
        rho0: cosine of the two inputs.
        input_std: root mean square of an input coordinate.
        up_gain: D·Var(W_up): variance of a pre-activation for inputs of unit mean square (0.02²·768 = 0.307).
        down_gain: F·Var(W_down), likewise.

    Raises:
        ValueError: an argument out of range.
    """
    for label, number in (("input_std", input_std), ("up_gain", up_gain), ("down_gain", down_gain)):
        checks.positive(number, label)
    rho, rms = [float(checks.rho(rho0, "rho0"))], [float(input_std)]
    stds = []
    for _ in range(checks.whole(layers, "layers", 0)):
        stds.append(float(np.sqrt(up_gain)) * rms[-1])
        rho.append(float(activation_map(name, rho[-1], stds[-1])))
        rms.append(float(np.sqrt(down_gain * kernels.second_moment(name, stds[-1]))))
    return MLPStack(np.array(rho), np.array(rms), np.array(stds))


# Finite width.


def finite_width_cosine(rho: npt.ArrayLike, width: int) -> Array:
    """Compute E[cosine] of vectors of ``width`` i.i.d. centered Gaussian coordinate pairs of correlation rho.

    Exact: ρ (2/d) (Γ((d+1)/2)/Γ(d/2))² ₂F₁(½, ½; d/2 + 1; ρ²) (Hotelling 1953), = ρ − ρ(1 − ρ²)/(2d) + O(d^(−2)).

    Raises:
        ValueError: |rho| > 1, width < 1.
    """
    r, d = checks.rho(rho), checks.whole(width, "width")
    log_ratio = special.gammaln((d + 1) / 2) - special.gammaln(d / 2)
    return r * (2 / d) * np.exp(2 * log_ratio) * special.hyp2f1(0.5, 0.5, d / 2 + 1, r * r)


def mlp0_finite_width(
    name: str,
    layers: int,
    width: int,
    hidden: int,
    *,
    rho0: float = 0.0,
    input_std: float = 1.0,
    up_gain: float = 1.0,
    down_gain: float = 1.0,
) -> tuple[Array, Array]:
    """Compute mean and standard deviation, over weights and inputs, of the cosine after 1 … layers MLP₀ blocks.

    First order in 1/width and 1/hidden. The state is the kernel (|x|²/d, |x'|²/d, x·x'/d). Given it, the F
    hidden units are i.i.d., so the hidden kernel is a mean of F terms; given that, the d outputs are i.i.d.
    Gaussian, so the output kernel is a Wishart mean of d terms. Both means are unbiased, so only curvature
    shifts the average: the shift and the 3×3 covariance of the state are carried through the layers by the
    Jacobian and Hessian of the kernel map, and turned into a cosine at the end. What is left out is of order
    1/width², and grows with depth: expect 10% of the correction at layers = width/20.

    Args:
        name: as :func:`mlp0_stack`.
        layers: as :func:`mlp0_stack`.
        width: d, coordinates of a representation.
        hidden: F, hidden units.
        rho0: correlation of the inputs' coordinate pairs, which are i.i.d. Gaussian.
        input_std: as :func:`mlp0_stack`.
        up_gain: as :func:`mlp0_stack`.
        down_gain: as :func:`mlp0_stack`.

    Returns:
        (mean [layers], std [layers]).

    Raises:
        ValueError: an argument out of range.
    """
    d, f = checks.whole(width, "width"), checks.whole(hidden, "hidden")
    for label, number in (("input_std", input_std), ("up_gain", up_gain), ("down_gain", down_gain)):
        checks.positive(number, label)
    q = input_std**2
    mu = np.array([q, q, float(checks.rho(rho0, "rho0")) * q])
    shift, cov = np.zeros(3), _wishart(mu) / d
    means, stds = [], []
    for _ in range(checks.whole(layers, "layers", 0)):
        pre = np.full(3, up_gain)
        # Carry the shift and the covariance through the kernel map.
        value, jacobian, hessian = _kernel_jet(name, pre * mu)
        jacobian, hessian = jacobian * pre, hessian * np.outer(pre, pre)
        shift = down_gain * (jacobian @ shift + 0.5 * np.einsum("kij,ij->k", hessian, cov))
        cov = down_gain**2 * (jacobian @ cov @ jacobian.T + _hidden_covariance(name, pre * mu) / f)
        # The output kernel is a Wishart mean of d terms.
        mu = down_gain * value
        cov = cov + _wishart(mu) / d
        mean, std = _cosine(mu, shift, cov)
        means.append(mean)
        stds.append(std)
    return np.array(means), np.array(stds)


def _wishart(k: Array) -> Array:
    """Compute covariance of (z², z'², z z') for (z, z') Gaussian with second moments k (Isserlis)."""
    a, b, c = k
    return np.array(
        [[2 * a * a, 2 * c * c, 2 * a * c], [2 * c * c, 2 * b * b, 2 * b * c], [2 * a * c, 2 * b * c, a * b + c * c]]
    )


def _kernel_map(name: str, k: Array) -> Array:
    """Compute (E φ(u)², E φ(u')², E φ(u)φ(u')) for pre-activation second moments k [..., 3]."""
    s, t = np.sqrt(k[..., 0]), np.sqrt(k[..., 1])
    cross = kernels.dual(name, np.clip(k[..., 2] / (s * t), -1, 1), s, t)
    return np.stack([kernels.second_moment(name, s), kernels.second_moment(name, t), cross], axis=-1)


def _kernel_jet(name: str, k: Array) -> tuple[Array, Array, Array]:
    """Compute value [3], Jacobian [3, 3] and Hessian [3, 3, 3] of the kernel map, by central differences.

    The step stays inside |ρ| < 1; its errors (h² and rounding/h²) are far below the O(1/d²) that is
    neglected.
    """
    rho = k[2] / np.sqrt(k[0] * k[1])
    step = min(1e-3, (1 - abs(rho)) / 8) * np.sqrt(k[0] * k[1])
    if not step > 0:
        raise ValueError("rho0: the finite-width expansion needs |rho| < 1")
    e = step * np.eye(3)
    pairs = [(i, j) for i in range(3) for j in range(i, 3)]
    points = [k] + [k + a for a in e] + [k - a for a in e]
    points += [k + sign * (e[i] + e[j]) for i, j in pairs if i != j for sign in (1, -1)]
    v = _kernel_map(name, np.array(points))
    up, down = v[1:4], v[4:7]
    jacobian = (up - down).T / (2 * step)
    hessian = np.zeros((3, 3, 3))
    row = 7
    for i, j in pairs:
        if i == j:
            second = (up[i] - 2 * v[0] + down[i]) / step**2
        else:
            ends = v[row] + v[row + 1] - up[i] - down[i] - up[j] - down[j] + 2 * v[0]
            second = ends / (2 * step**2)
            row += 2
        hessian[:, i, j] = hessian[:, j, i] = second
    return v[0], jacobian, hessian


def _hidden_covariance(name: str, k: Array) -> Array:
    """Compute covariance of (h², h'², h h'), h = φ(u), for one hidden unit."""
    s, t = float(np.sqrt(k[0])), float(np.sqrt(k[1]))
    theta = float(np.arccos(np.clip(k[2] / (s * t), -1, 1)))
    moment = {(a, b): _moment(name, a, b, theta, s, t) for a, b in ((4, 0), (0, 4), (2, 2), (3, 1), (1, 3))}
    second = np.array(
        [
            [moment[4, 0], moment[2, 2], moment[3, 1]],
            [moment[2, 2], moment[0, 4], moment[1, 3]],
            [moment[3, 1], moment[1, 3], moment[2, 2]],
        ]
    )
    first = _kernel_map(name, k)
    return second - np.outer(first, first)


def _moment(name: str, a: int, b: int, theta: float, s: float, t: float) -> float:
    """Compute E[φ(u)^a φ(u')^b], a + b = 4. ReLU: in polar coordinates, where the radius factors out (E r⁴ = 8)."""
    if name == "relu":
        low, high = (theta - np.pi / 2, np.pi / 2) if a and b else (-np.pi / 2, np.pi / 2)
        x, w = np.polynomial.legendre.leggauss(40)
        alpha = (low + high) / 2 + (high - low) / 2 * x
        cosine = np.cos(alpha - theta) if b and a else np.cos(alpha)
        angular = (high - low) / 2 * np.sum(w * np.cos(alpha) ** a * cosine**b) / (2 * np.pi)
        return float(8 * s**a * t**b * angular)
    phi = checks.function(name)
    value = kernels.lattice_dual(lambda u: phi(u) ** a, np.array([theta]), s, t, lambda u: phi(u) ** b)
    return float(value[0])


def _cosine(mu: Array, shift: Array, cov: Array) -> tuple[float, float]:
    """Compute mean and std of c/√(ab) from the first two moments of (a, b, c), second-order delta method."""
    a, b, c = mu
    root = np.sqrt(a * b)
    f = c / root
    gradient = np.array([-f / (2 * a), -f / (2 * b), 1 / root])
    hessian = np.array(
        [
            [0.75 * f / a**2, 0.25 * f / (a * b), -0.5 / (a * root)],
            [0.25 * f / (a * b), 0.75 * f / b**2, -0.5 / (b * root)],
            [-0.5 / (a * root), -0.5 / (b * root), 0.0],
        ]
    )
    mean = f + gradient @ shift + 0.5 * np.sum(hessian * cov)
    return float(mean), float(np.sqrt(gradient @ cov @ gradient))
