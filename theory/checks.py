"""Arguments, checked: each function returns the value in the type that is computed with, or raises ValueError.

Messages begin with the argument's name and a colon.
"""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from bornbiased_jax.theory.activations import ACTIVATIONS, Array, Function

RHO_SLACK = 1e-12
"""Correlations computed from covariances overshoot 1 by rounding; anything within this is taken as ±1."""


def function(phi: str | Function, label: str = "name") -> Function:
    """Return an activation by its name; any other function is returned as it is."""
    if callable(phi):
        return phi
    return ACTIVATIONS[choice(phi, label, ACTIVATIONS)]


def choice(value: str, label: str, allowed: Collection[str]) -> str:
    """Check that a name is one of those allowed."""
    if value not in allowed:
        raise ValueError(f"{label}: {value!r} is not one of {', '.join(allowed)}")
    return value


def std(value: npt.ArrayLike, label: str = "std", most: float = math.inf) -> Array:
    """Check that standard deviations are finite, not negative and not above ``most``."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all(array >= 0) or not np.all(np.isfinite(array)):
        raise ValueError(f"{label}: a standard deviation must be finite and not negative")
    if not np.all(array <= most):
        raise ValueError(f"{label}: {np.max(array):.4g} is above {most:g}, the largest that is integrated accurately")
    return array


def rho(value: npt.ArrayLike, label: str = "rho") -> Array:
    """Check that correlations are in [-1, 1] up to ``RHO_SLACK``, and clip them."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all(np.abs(array) <= 1 + RHO_SLACK):
        raise ValueError(f"{label}: a correlation must lie in [-1, 1]")
    return np.clip(array, -1.0, 1.0)


def within(value: npt.ArrayLike, label: str, least: float, most: float) -> Array:
    """Check that numbers are in [least, most]."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all((array >= least) & (array <= most)):
        raise ValueError(f"{label}: it must lie in [{least:g}, {most:g}]")
    return array


def from_least(value: npt.ArrayLike, label: str, least: float) -> Array:
    """Check that numbers are at least ``least``, infinity included."""
    array = np.asarray(value, dtype=np.float64)
    if not np.all(array >= least):
        raise ValueError(f"{label}: it must be at least {least:g}")
    return array


def whole(value: float, label: str, least: int = 1) -> int:
    """Check that a number is whole and at least ``least``."""
    if not least <= value < math.inf or value != int(value):
        raise ValueError(f"{label}: {value} must be a whole number of at least {least}")
    return int(value)


def probability(value: float, label: str) -> float:
    """Check that a number is in [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"{label}: {value} lies outside [0, 1]")
    return float(value)


def finite(value: float, label: str, least: float = 0.0) -> float:
    """Check that a number is finite and at least ``least``."""
    if not least <= value < math.inf:
        raise ValueError(f"{label}: {value} must be finite and at least {least:g}")
    return float(value)


def positive(value: float, label: str) -> float:
    """Check that a number is finite and above 0."""
    if not 0 < value < math.inf:
        raise ValueError(f"{label}: {value} is not positive and finite")
    return float(value)
