"""What a baseline says of a pair: a score with the published decision, or why there is none."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

THRESHOLD = 0.8


@dataclasses.dataclass(frozen=True)
class Score:
    """One baseline's score. ``value`` is None, with the ``reason``, where the method is not defined."""

    method: str
    value: float | None
    reason: str = ""
    detail: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def same(self) -> bool | None:
        """The published decision, score > 0.8; None without a score."""
        return None if self.value is None else self.value > THRESHOLD

    def to_json(self) -> dict[str, Any]:
        """JSON-ready values."""
        fixed = {"method": self.method, "score": self.value, "same_at_0.8": self.same, "reason": self.reason}
        return {**fixed, **self.detail}


def score(method: str, value: float, **detail: Any) -> Score:
    """A score, undefined if the number is NaN (never a number in its place)."""
    if math.isfinite(value):
        return Score(method, float(value), detail=detail)
    return Score(method, None, "the score is not a number: an input to it is constant", detail)


def pearson(a: np.ndarray, b: np.ndarray) -> float:
    """Pearson's correlation in float64; NaN if an argument is constant."""
    a, b = a.astype(np.float64).ravel(), b.astype(np.float64).ravel()
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a)) * math.sqrt(float(b @ b))
    return float(a @ b) / scale if scale > 0 else math.nan
