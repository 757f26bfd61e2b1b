"""What a baseline says of a pair: a score with the published decision, or why there is none."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

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


def score(method: str, value: float, *, log10_p: float | None = None, **detail: Any) -> Score:
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
