"""The activations the theory knows, and their derivatives, as functions of float64 arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

LEAK = 0.01
"""Slope of the leaky ReLU below 0."""
CENTERED = "_centered"
"""What follows the name of an activation from which its mean over a standard normal variable is subtracted."""
ROOT_2PI = np.sqrt(2 * np.pi)
_TANH_GELU = np.sqrt(2 / np.pi)


def _gelu(u: Array) -> Array:
    return u * special.ndtr(u)


def _gelu_tanh(u: Array) -> Array:
    return 0.5 * u * (1 + np.tanh(_TANH_GELU * (u + 0.044715 * u**3)))


def _gelu_tanh_slope(u: Array) -> Array:
    t = np.tanh(_TANH_GELU * (u + 0.044715 * u**3))
    return 0.5 * (1 + t) + 0.5 * u * (1 - t * t) * _TANH_GELU * (1 + 3 * 0.044715 * u**2)


def _silu(u: Array) -> Array:
    return u * special.expit(u)


def _silu_slope(u: Array) -> Array:
    s = special.expit(u)
    return s * (1 + u * (1 - s))


class Nonlinearity(NamedTuple):
    """One activation."""

    function: Function
    derivative: Function
    odd: bool = False
    """φ(−u) = −φ(u): its kernel is odd in ρ, and its mean 0."""


TABLE: dict[str, Nonlinearity] = {
    "relu": Nonlinearity(lambda u: np.maximum(u, 0.0), lambda u: np.heaviside(u, 0.5)),
    "gelu": Nonlinearity(_gelu, lambda u: special.ndtr(u) + u * np.exp(-u * u / 2) / ROOT_2PI),
    "gelu_tanh": Nonlinearity(_gelu_tanh, _gelu_tanh_slope),
    "erf": Nonlinearity(lambda u: np.asarray(special.erf(u)), lambda u: 2 / np.sqrt(np.pi) * np.exp(-u * u), odd=True),
    "tanh": Nonlinearity(np.tanh, lambda u: 1 - np.tanh(u) ** 2, odd=True),
    "silu": Nonlinearity(_silu, _silu_slope),
    "relu_squared": Nonlinearity(lambda u: np.maximum(u, 0.0) ** 2, lambda u: 2 * np.maximum(u, 0.0)),
    "leaky_relu": Nonlinearity(lambda u: np.where(u > 0, u, LEAK * u), lambda u: np.where(u > 0, 1.0, LEAK)),
    "shifted_relu": Nonlinearity(lambda u: np.maximum(u, -1.0), lambda u: np.heaviside(u + 1, 0.5)),
    "signed_square": Nonlinearity(lambda u: u * np.abs(u), lambda u: 2 * np.abs(u), odd=True),
    "identity": Nonlinearity(lambda u: np.asarray(u, dtype=np.float64), np.ones_like, odd=True),
}
"""Kernels in closed form are in ``closed_forms``; an activation without one gets a series in ``kernels``."""


def _unit_mean(name: str) -> float:
    """Compute E[φ(z)], z ~ N(0, 1), in panels between which a derivative may jump."""
    nodes_N, weights_N = np.polynomial.legendre.leggauss(64)
    value = 0.0
    for low, high in ((-12, -1), (-1, 0), (0, 12)):
        z_N = low + (high - low) * (nodes_N + 1) / 2
        value += (high - low) / 2 * float(weights_N @ (TABLE[name].function(z_N) * np.exp(-z_N * z_N / 2)))
    return value / float(ROOT_2PI)


UNIT_MEANS: dict[str, float] = {name: _unit_mean(name) for name, entry in TABLE.items() if not entry.odd}
"""What centered activations subtract, by the name of the activation."""


def _centered(name: str) -> Nonlinearity:
    function, derivative, _ = TABLE[name]
    return Nonlinearity(lambda u: function(u) - UNIT_MEANS[name], derivative)


TABLE.update({name + CENTERED: _centered(name) for name in UNIT_MEANS})
ACTIVATIONS: dict[str, Function] = {name: entry.function for name, entry in TABLE.items()}
DERIVATIVES: dict[str, Function] = {name: entry.derivative for name, entry in TABLE.items()}
ODD_PARTS: dict[str, tuple[str, float]] = {
    "relu": ("identity", 1.0),
    "gelu": ("identity", 1.0),
    "gelu_tanh": ("identity", 1.0),
    "silu": ("identity", 1.0),
    "leaky_relu": ("identity", 1.0 + LEAK),
    "relu_squared": ("signed_square", 1.0),
    "tanh": ("tanh", 2.0),
    "erf": ("erf", 2.0),
    "identity": ("identity", 2.0),
}
ODD_PARTS.update({name + CENTERED: ODD_PARTS[name] for name in UNIT_MEANS if name in ODD_PARTS})
"""φ(u) − φ(−u), which a pair of mirrored neurons writes: an activation and a factor. The shifted ReLU has none here."""
