"""The score of a baseline with the published decision, or why there is none, and its null over unrelated seeds."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from bornbiased_jax.stats import tails

THRESHOLD, LEVEL = 0.8, 0.01
"""The published decision: a score above the first or, where the method gives a p, a p below the second."""


@dataclasses.dataclass(frozen=True)
class Score:
    """One baseline's score. ``value`` is None, with the ``reason``, where the method is not defined.

    ``log10_p`` is there for methods that give a p, and decides then.
    """

    method: str
    value: float | None
    reason: str = ""
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)
    log10_p: float | None = None

    @property
    def same(self) -> bool | None:
        """The decision: p < 0.01 where there is a p, else score > 0.8; None without a score."""
        if self.value is None:
            return None
        return self.value > THRESHOLD if self.log10_p is None else self.log10_p < math.log10(LEVEL)

    def to_json(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        above = None if self.value is None else self.value > THRESHOLD
        fixed = {"method": self.method, "score": self.value, "same_at_0.8": above, "reason": self.reason}
        by_p = {} if self.log10_p is None else {"log10_p": self.log10_p, "same_at_p_0.01": self.same}
        return {**fixed, **by_p, **self.detail}


def score(method: str, value: float, *, log10_p: float | None = None, **detail: object) -> Score:
    """Wrap a number as a score, undefined if it is NaN (never a number in its place)."""
    if math.isfinite(value):
        return Score(method, float(value), detail=detail, log10_p=log10_p)
    return Score(method, None, "the score is not a number: an input to it is constant", detail)


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Compute Pearson's correlation in float64; NaN if an argument is constant."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / scale if scale > 0 else math.nan


def against_null(measured: Score, null_scores: np.ndarray) -> dict[str, Any]:
    """Rank a score among scores of unrelated pairs: p = (1 + #{null ≥ score})/(1 + K), z and log10 p.

    The log10 p is of Student's t with K − 1 degrees of freedom for a new draw from the null's mean and
    standard deviation (approximate). All are None where the score or its null does not exist.
    """
    # Scores that are not defined leave the null.
    null = np.asarray(null_scores, np.float64)
    null = null[np.isfinite(null)]
    count = len(null)
    empty: dict[str, Any] = {"p_value": None, "z": None, "log10_p": None, "num_null": count}
    if measured.value is None or count == 0:
        return {**measured.to_json(), **empty}
    p_value = (1 + int((null >= measured.value).sum())) / (1 + count)
    # The distance from the null's mean describes; a rank needs no spread.
    std = float(null.std(ddof=1)) if count > 1 else 0.0
    if not std > 0:
        return {**measured.to_json(), **empty, "p_value": p_value}
    z = (measured.value - float(null.mean())) / std
    log_p = tails.log_t_sf(z / math.sqrt(1 + 1 / count), count - 1)
    moments = {"null_mean": float(null.mean()), "null_std": std}
    return {
        **measured.to_json(),
        "p_value": p_value,
        "z": z,
        "log10_p": log_p / tails.LN10,
        "num_null": count,
        **moments,
    }
