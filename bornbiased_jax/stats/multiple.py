"""Corrections for many tests at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bornbiased_jax.errors import InputError


def holm(p_values: Sequence[float], *, count: int | None = None) -> np.ndarray:
    """Adjust p-values by Holm's step-down method (1979): reject those at or below α, with family-wise error at most α.

    The k-th smallest of M p-values is multiplied by M − k + 1; none is adjusted to less than a smaller one.

    Args:
        p_values: of the tests, in any order; none may be NaN.
        count: tests of the family, M, where some have no p; these count as p = 1. All have one by default.

    Returns:
        [len(p_values)] float64, in the same order.

    Raises:
        InputError: a p-value is not a number from 0 to 1, or there are more of them than tests.

    Example:
        >>> holm([0.04, 0.01, 0.02]).tolist()
        [0.04, 0.03, 0.04]
    """
    p = np.asarray(p_values, np.float64)
    if not ((p >= 0) & (p <= 1)).all():
        raise InputError("Holm's correction needs p-values from 0 to 1: leave undefined ones out and say so")
    return _step_down(p, _factors(len(p), count), np.multiply).clip(max=1.0)


def holm_log10(log10_p: Sequence[float], *, count: int | None = None) -> np.ndarray:
    """Adjust p-values as :func:`holm` does, all in base 10 logarithms, where p may be below the smallest float.

    Raises:
        InputError: a logarithm is NaN or above 0, or there are more of them than tests.

    Example:
        >>> holm_log10([-400.0, -1.0], count=10).tolist()
        [-399.0, -0.04575749056067513]
    """
    logs = np.asarray(log10_p, np.float64)
    if not (logs <= 0).all():
        raise InputError("Holm's correction needs logarithms of p-values, 0 at most: leave undefined ones out")
    return _step_down(logs, np.log10(_factors(len(logs), count)), np.add).clip(max=0.0)


def _factors(size: int, count: int | None) -> np.ndarray:
    """Return M, M − 1, … for each place from the smallest p."""
    count = size if count is None else count
    if count < size:
        raise InputError(f"{size} p-values are more than the {count} tests that they are corrected for")
    return count - np.arange(size, dtype=np.float64)


def _step_down(values: np.ndarray, factors: np.ndarray, combine: np.ufunc) -> np.ndarray:
    """Combine each value with the factor of its place from the smallest, and keep the order."""
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    adjusted[order] = np.maximum.accumulate(combine(factors, values[order]))
    return adjusted
