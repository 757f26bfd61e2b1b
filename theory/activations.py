"""The activations the theory knows, and their derivatives, as functions of float64 arrays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import special

Array = npt.NDArray[np.float64]
Function = Callable[[Array], Array]

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


ACTIVATIONS: dict[str, Function] = {
    "relu": lambda u: np.maximum(u, 0.0),
    "gelu": _gelu,
    "gelu_tanh": _gelu_tanh,
    "erf": lambda u: np.asarray(special.erf(u)),
    "tanh": np.tanh,
    "silu": _silu,
    "identity": lambda u: np.asarray(u, dtype=np.float64),
}
DERIVATIVES: dict[str, Function] = {
    "relu": lambda u: np.heaviside(u, 0.5),
    "gelu": lambda u: special.ndtr(u) + u * np.exp(-u * u / 2) / np.sqrt(2 * np.pi),
    "gelu_tanh": _gelu_tanh_slope,
    "erf": lambda u: 2 / np.sqrt(np.pi) * np.exp(-u * u),
    "tanh": lambda u: 1 - np.tanh(u) ** 2,
    "silu": _silu_slope,
    "identity": lambda u: np.ones_like(u),
}
