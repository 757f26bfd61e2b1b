"""Intervals for rates, exact for independent trials or resampled by model for pairs that share models; for means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

RESAMPLES = 2_000


def binomial_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Compute Clopper and Pearson's interval for a rate: it covers the rate in at least ``confidence`` of cases.

    Example:
        >>> low, high = binomial_interval(0, 24)
        >>> low, round(high, 3)
        (0.0, 0.142)
    """
    interval = scipy.stats.binomtest(successes, trials).proportion_ci(confidence, method="exact")
    return float(interval.low), float(interval.high)


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Compute Student's 95% t interval for the mean of independent values, at least two.

    Raises:
        ValueError: fewer than two values.

    Example:
        >>> low, high = mean_interval([1.0, 2.0, 3.0])
        >>> round(low, 3), round(high, 3)
        (-0.484, 4.484)
    """
    numbers = np.asarray(values, np.float64)
    if len(numbers) < 2:
        raise ValueError("one value has no interval: give at least two")
    half = scipy.stats.t.ppf(0.975, len(numbers) - 1) * numbers.std(ddof=1) / np.sqrt(len(numbers))
    return float(numbers.mean() - half), float(numbers.mean() + half)


def ratio_interval(
    over: Sequence[float] | np.ndarray, under: Sequence[float] | np.ndarray, confidence: float = 0.95
) -> tuple[float, float]:
    """Compute Fieller's interval (1954) for the ratio of two positive means, from pairs: exact for normal numbers.

    It holds every R > 0 for which Student's t does not reject that the mean of over − R · under is zero.

    Args:
        over: the numbers above, of two pairs at least.
        under: the numbers below.
        confidence: of the interval.

    Returns:
        The ends; the upper one is infinite where ``under`` may have a mean of zero.

    Example:
        >>> low, high = ratio_interval([0.30, 0.33, 0.36], [0.005, 0.006, 0.007])
        >>> round(low, 1), round(high, 1)
        (47.7, 72.7)
        >>> ratio_interval([3.0, 3.1, 2.9], [0.1, -0.1, 0.2])[1]
        inf
    """
    pairs = np.stack([np.asarray(over, np.float64), np.asarray(under, np.float64)])
    count = pairs.shape[1]
    means = pairs.mean(axis=1)
    squared_t = scipy.stats.t.ppf((1 + confidence) / 2, count - 1) ** 2
    # a R² − 2 b R + c ≤ 0 for R in the interval.
    moments = np.outer(means, means) - squared_t * np.cov(pairs) / count
    c, b, a = float(moments[0, 0]), float(moments[0, 1]), float(moments[1, 1])
    discriminant = b * b - a * c
    if a > 0:
        root = math.sqrt(max(0.0, discriminant))
        return max(0.0, (b - root) / a), max(0.0, (b + root) / a)
    if discriminant <= 0 or a == 0:
        return 0.0, math.inf
    lower, upper = sorted(((b - math.sqrt(discriminant)) / a, (b + math.sqrt(discriminant)) / a))
    return (upper if lower <= 0 < upper else 0.0), math.inf


def model_interval(
    hits: Sequence[bool] | np.ndarray,
    models: Sequence[tuple[object, object]],
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Compute an interval for a rate over pairs of models, resampling models with replacement.

    Pairs that share a model are not independent trials: the models are what was sampled. Each resample draws as
    many models as there are and weighs every pair by how often both of its models were drawn. Where all pairs
    agree resampling shows no variation; then only disjoint pairs count as trials, which is conservative.

    Args:
        hits: one for each pair.
        models: the two models of each pair, by any name.
        confidence: of the interval (percentiles).

    Raises:
        ValueError: no pairs, unequal lengths, or a pair of a model with itself.

    Example:
        >>> pairs = [(i, j) for i in range(8) for j in range(i)]
        >>> low, high = model_interval([False] * 28, pairs)
        >>> low, round(high, 2)  # four disjoint pairs, none of them hit
        (0.0, 0.6)
        >>> low, high = model_interval([False] * 20, [("base", suspect) for suspect in range(20)])
        >>> low, round(high, 3)  # no two of these pairs are disjoint
        (0.0, 0.975)
    """
    hits_P = np.asarray(hits, bool)
    if not len(hits_P) or len(hits_P) != len(models):
        raise ValueError(f"{len(hits_P)} outcomes of {len(models)} pairs: give one for each, and at least one")
    names: dict[object, int] = {}
    pairs_P2 = np.array([[names.setdefault(name, len(names)) for name in pair] for pair in models])
    if (pairs_P2[:, 0] == pairs_P2[:, 1]).any():
        raise ValueError("a pair of a model with itself is no pair")
    if hits_P.all() or not hits_P.any():
        trials = len(disjoint_pairs(models))
        return binomial_interval(trials if hits_P.any() else 0, trials, confidence)
    rng = np.random.default_rng(0)
    drawn_RM = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=RESAMPLES)
    weights_RP = (drawn_RM[:, pairs_P2[:, 0]] * drawn_RM[:, pairs_P2[:, 1]]).astype(np.float64)
    totals_R = weights_RP.sum(axis=1)
    rates_R = (weights_RP @ hits_P)[totals_R > 0] / totals_R[totals_R > 0]
    low, high = np.quantile(rates_R, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def disjoint_pairs(models: Sequence[tuple[object, object]]) -> list[int]:
    """Return indices of pairs, taken in order, in which no model occurs twice.

    Example:
        >>> disjoint_pairs([("a", "b"), ("a", "c"), ("c", "d")])
        [0, 2]
    """
    used: set[object] = set()
    indices = []
    for index, pair in enumerate(models):
        if used.isdisjoint(pair):
            used.update(pair)
            indices.append(index)
    return indices
