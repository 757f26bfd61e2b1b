"""Tail probabilities in log space, and means of them.

Natural logarithms of p; nothing here underflows, so z = 200 has a p as z = 2 has.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

LN10 = math.log(10.0)


def log_normal_sf(z: float) -> float:
    """Compute log P(Z ≥ z) of a standard normal Z."""
    return float(special.log_ndtr(-z))


def normal_isf(log_p: float) -> float:
    """Return the z with log P(Z ≥ z) = ``log_p``: the inverse of :func:`log_normal_sf`."""
    return -float(special.ndtri_exp(log_p))


def log_t_sf(t: float, df: float) -> float:
    """Compute log P(T ≥ t) of Student's t with ``df`` degrees of freedom, in the far tail too.

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
    """Compute the log of the mean of the p whose logarithms are given."""
    log_ps = np.asarray(log_ps, np.float64)
    return float(special.logsumexp(log_ps)) - math.log(len(log_ps))


def log_fisher(log_ps: np.ndarray) -> float:
    """Compute log p of Fisher's combination: −2 Σ log p of L independent uniform p is χ² with 2L degrees of freedom.

    With x = −Σ log p the tail is e^{−x} Σ_{k<L} x^k/k!, summed in log space. NaN for none, or any NaN.
    """
    log_ps = np.asarray(log_ps, np.float64)
    x = -float(log_ps.sum())
    if not len(log_ps) or math.isnan(x):
        return math.nan
    if math.isinf(x):
        return -math.inf
    k = np.arange(len(log_ps))
    return min(0.0, float(special.logsumexp(special.xlogy(k, x) - special.gammaln(k + 1))) - x)


def log_spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Compute log p, two-sided, of Spearman's correlation of two orders of n labels, by Student's t with n − 2.

    The approximation is SciPy's; it is kept from falling below 2/n!, the least that n! orders allow. NaN for n < 3.
    """
    num = len(first)
    if num < 3:
        return math.nan
    rho = spearman(first, second)
    floor = math.log(2.0) - math.lgamma(num + 1)
    if abs(rho) >= 1.0:
        return floor
    t = abs(rho) * math.sqrt((num - 2) / ((1 - rho) * (1 + rho)))
    return min(0.0, max(floor, math.log(2.0) + log_t_sf(t, num - 2)))


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Compute Spearman's correlation of two permutations of 0 … n − 1 (no ties): 1 − 6 Σ d²/(n(n² − 1))."""
    difference = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    num = len(difference)
    return 1.0 - 6.0 * float(difference @ difference) / (num * (num * num - 1.0))


def log_student_greater(sample: np.ndarray, null: np.ndarray) -> float:
    """Compute log p of the one-sided two-sample t-test (equal variances) that the sample's mean is greater.

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
    """Compute log p of the one-sided Mann–Whitney U test by normal approximation, corrected for ties and continuity.

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
