"""Tail probabilities in log space, where the interesting ones live far below 1e−308."""

from __future__ import annotations

import math

import numpy as np
from scipy import special, stats

from bornbiased_jax.stats.tails import LN10


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
    log_terms = stats.binom.logpmf(np.arange(successes, trials + 1), trials, probability)
    return float(min(0.0, special.logsumexp(log_terms) / LN10))


def log10_preference_p(count: int, num_inputs: int, vocab_size: int) -> float:
    """Compute log₁₀ of Appendix B.2's Bonferroni-corrected p: min(1, V · P(X ≥ count)), X ~ Bin(N, 1/V)."""
    if vocab_size < 2:
        return 0.0
    return min(0.0, math.log10(vocab_size) + log10_binomial_tail(count, num_inputs, 1.0 / vocab_size))


def log10_chi2_tail(value: float, dof: float) -> float:
    """Compute log₁₀ P(X ≥ value) for X ~ χ² with ``dof`` degrees of freedom, at any distance in the tail.

    Where the regularised incomplete gamma function underflows, its continued fraction (DLMF 8.9.2)
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
    return (a * math.log(x) - x - special.gammaln(a) + math.log(fraction)) / LN10


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
    log_below = stats.poisson.logcdf(np.arange(0, upper), rate)
    return float(np.sum(-np.expm1(vocab_size * log_below)))
