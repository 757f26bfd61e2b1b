"""Tail probabilities in log space, and means of them: nothing here underflows, so z = 200 has a p as z = 2 has.

Logarithms are natural, but for functions whose name begins with ``log10``.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from scipy import special

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
    p = float(scipy.stats.t.sf(t, df))
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

    NaN for none, or any NaN.
    """
    log_ps = np.asarray(log_ps, np.float64)
    x = -float(log_ps.sum())
    if not len(log_ps) or math.isnan(x):
        return math.nan
    return -math.inf if math.isinf(x) else LN10 * log10_chi2_tail(2.0 * x, 2.0 * len(log_ps))


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
    ranks = scipy.stats.rankdata(np.concatenate([sample, null], dtype=np.float64))
    _, counts = np.unique(ranks, return_counts=True)
    ties = float((counts.astype(np.float64) ** 3 - counts).sum())
    u = float(ranks[:num_a].sum()) - num_a * (num_a + 1) / 2
    variance = num_a * num_b / 12 * ((total + 1) - ties / (total * (total - 1)))
    if not variance > 0:
        return math.nan
    return log_normal_sf((u - num_a * num_b / 2 - 0.5) / math.sqrt(variance))


def log10_binomial_tail(successes: int, trials: int, probability: float) -> float:
    """Compute log₁₀ P(X ≥ successes) for X ~ Binomial(trials, probability), in log space (Appendix B.2).

    ``scipy.stats.binom.logsf`` returns −inf in the far tail; this does not.

    Raises:
        ValueError: trials < 1, successes outside 0 … trials, or a probability outside (0, 1).
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"need 0 ≤ successes ≤ trials and trials ≥ 1, got {successes} of {trials}")
    if not 0.0 < probability < 1.0:
        raise ValueError(f"probability={probability} is outside (0, 1)")
    if successes == 0:
        return 0.0
    log_terms = scipy.stats.binom.logpmf(np.arange(successes, trials + 1), trials, probability)
    return float(min(0.0, special.logsumexp(log_terms) / LN10))


def log10_preference_p(count: int, num_inputs: int, vocab_size: int) -> float:
    """Compute log₁₀ of Appendix B.2's Bonferroni-corrected p: min(1, V · P(X ≥ count)), X ~ Bin(N, 1/V)."""
    if vocab_size < 2:
        return 0.0
    return min(0.0, math.log10(vocab_size) + log10_binomial_tail(count, num_inputs, 1.0 / vocab_size))


def log10_chi2_tail(value: float, dof: float) -> float:
    """Compute log₁₀ P(X ≥ value) for X ~ χ² with ``dof`` degrees of freedom, at any distance in the tail.

    Where the regularized incomplete gamma function underflows, its continued fraction (DLMF 8.9.2)
    is evaluated by Lentz's method in log space.
    """
    a, x = dof / 2.0, value / 2.0
    if x <= 0.0:
        return 0.0
    direct = special.gammaincc(a, x)
    if direct > 1e-280:
        return math.log10(direct)
    b = x + 1.0 - a
    c, d = 1e300, 1.0 / b
    fraction = d
    for i in range(1, 10_000):
        step = -i * (i - a)
        b += 2.0
        d = 1.0 / (step * d + b)
        c = b + step / c
        change = c * d
        fraction *= change
        if abs(change - 1.0) < 1e-14:
            break
    return float(a * math.log(x) - x - special.gammaln(a) + math.log(fraction)) / LN10


def log10_rayleigh_p(mean_cosine: float, num_vectors: int, dim: int) -> float:
    """Compute log₁₀ p of Rayleigh's test that N directions in D dimensions are uniform on the sphere.

    The statistic D‖Σĥ‖²/N is χ² with D degrees of freedom for large N; with the mean pairwise cosine
    c̄ over N(N−1) ordered pairs, ‖Σĥ‖²/N = 1 + (N−1) c̄. Two-sided deviations below zero give p near 1.
    Asymptotic: exact as N → ∞ at fixed D.
    """
    if num_vectors < 2:
        return 0.0
    return log10_chi2_tail(max(0.0, dim * (1.0 + (num_vectors - 1) * mean_cosine)), dim)


def expected_top_count(num_inputs: int, vocab_size: int) -> float:
    """Compute E[max count] of N uniform draws over V tokens: the dashed line of Figure 1(a).

    Counts are treated as independent Poisson(N/V), which is accurate for V ≫ 1:
    E[max] = Σ_{k≥1} (1 − P(Poisson ≤ k−1)^V).
    """
    rate = num_inputs / vocab_size
    upper = int(rate + 40 * math.sqrt(rate) + 60)
    log_below = scipy.stats.poisson.logcdf(np.arange(0, upper), rate)
    return float(np.sum(-np.expm1(vocab_size * log_below)))
