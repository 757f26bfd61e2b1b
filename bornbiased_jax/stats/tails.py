"""Tail probabilities in log space, and means of them.

Natural logarithms of p; nothing here underflows, so z = 200 has a p as z = 2 has.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

LN10 = math.log(10.0)


def log_normal_sf(z: float) -> float:
    """log P(Z ≥ z) of a standard normal Z."""
    return float(special.log_ndtr(-z))


def normal_isf(log_p: float) -> float:
    """The z with log P(Z ≥ z) = ``log_p``: the inverse of :func:`log_normal_sf`."""
    return -float(special.ndtri_exp(log_p))


def log_t_sf(t: float, df: float) -> float:
    """log P(T ≥ t) of Student's t with ``df`` degrees of freedom, in the far tail too.

    The tail is I_x(df/2, 1/2)/2 with x = df/(df + t²); where the incomplete beta function underflows,
    its series x^a (1 − x)^b / (a B(a, b)) · Σ_k x^k Π (a + b + i)/(a + 1 + i) is summed instead.
    """
    p = float(stats.t.sf(t, df))
    if p > 1e-290:
        return math.log(p)
    if math.isinf(t):
        return -math.inf
    a, b = df / 2.0, 0.5
    log_x = -float(np.logaddexp(0.0, 2.0 * math.log(t) - math.log(df)))
    log_rest = -math.log1p(df / t / t)
    steps = np.arange(math.ceil(40.0 / -log_x) + 10, dtype=np.float64)
    log_ratios = np.log((a + b + steps) / (a + 1.0 + steps)) + log_x
    log_series = float(special.logsumexp(np.concatenate([[0.0], np.cumsum(log_ratios)])))
    log_front = math.log(0.5) - math.log(a) - float(special.betaln(a, b))
    return log_front + a * log_x + b * log_rest + log_series


def log_mean(log_ps: np.ndarray) -> float:
    """log of the mean of the p whose logarithms are given."""
    log_ps = np.asarray(log_ps, np.float64)
    return float(special.logsumexp(log_ps)) - math.log(len(log_ps))


def log_student_greater(sample: np.ndarray, null: np.ndarray) -> float:
    """log p of the one-sided two-sample t-test (equal variances) that the sample's mean is greater.

    Returns NaN when neither sample varies or they hold fewer than two numbers each.
    """
    sample, null = np.asarray(sample, np.float64), np.asarray(null, np.float64)
    num_a, num_b = len(sample), len(null)
    if num_a < 2 or num_b < 2:
        return math.nan
    df = num_a + num_b - 2
    pooled = ((num_a - 1) * sample.var(ddof=1) + (num_b - 1) * null.var(ddof=1)) / df
    if not pooled > 0:
        return math.nan
    return log_t_sf(float((sample.mean() - null.mean()) / math.sqrt(pooled * (1 / num_a + 1 / num_b))), df)


def log_mann_whitney_greater(sample: np.ndarray, null: np.ndarray) -> float:
    """log p of the one-sided Mann–Whitney U test: normal approximation, corrected for ties and continuity.

    Equals ``scipy.stats.mannwhitneyu(sample, null, alternative="greater", method="asymptotic")``.
    Returns NaN when every number is the same or a sample is empty.
    """
    num_a, num_b = len(sample), len(null)
    if min(num_a, num_b) == 0:
        return math.nan
    total = num_a + num_b
    ranks = stats.rankdata(np.concatenate([sample, null], dtype=np.float64))
    _, counts = np.unique(ranks, return_counts=True)
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    u = float(ranks[:num_a].sum()) - num_a * (num_a + 1) / 2
    variance = num_a * num_b / 12 * ((total + 1) - ties / (total * (total - 1)))
    if not variance > 0:
        return math.nan
    return log_normal_sf((u - num_a * num_b / 2 - 0.5) / math.sqrt(variance))
