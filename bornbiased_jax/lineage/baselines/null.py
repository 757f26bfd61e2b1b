"""The empirical null of a score: the same score over unrelated seeds of the same architecture."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bornbiased_jax.lineage.baselines.score import Score
from bornbiased_jax.stats import tails


def against_null(measured: Score, null_scores: np.ndarray) -> dict[str, Any]:
    """Rank a score among scores of unrelated pairs: p = (1 + #{null ≥ score})/(1 + K), z and log10 p.

    The log10 p is of Student's t with K − 1 degrees of freedom for a new draw from the null's mean and
    standard deviation (approximate). All are None where the score or its null does not exist.
    """
    null = np.asarray(null_scores, np.float64)
    null = null[np.isfinite(null)]
    count = len(null)
    empty: dict[str, Any] = {"p_value": None, "z": None, "log10_p": None, "num_null": count}
    if measured.value is None or count == 0:
        return {**measured.to_json(), **empty}
    p_value = (1 + int((null >= measured.value).sum())) / (1 + count)
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
