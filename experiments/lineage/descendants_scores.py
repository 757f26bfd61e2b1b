"""From readings to rates: thresholds from other births, areas under curves, intervals with families resampled."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import stats

from bornbiased_jax.stats.intervals import binomial_interval
from experiments.lineage.descendants_readings import Reading, Reads

Place = TypeVar("Place", int, np.ndarray)

FOLDS = 2
RESAMPLES = 1_000
CALIBRATED = 0.01
"""Fraction of unrelated pairs that a calibrated threshold may call the same."""
FALSE_POSITIVES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Where ROC curves are kept."""


class Pairs(NamedTuple):
    """Readings of one test: the families of base and suspect, scores (−∞ where undefined) and decisions."""

    bases_N: np.ndarray
    suspects_N: np.ndarray
    scores_N: np.ndarray
    same_N: np.ndarray

    def __len__(self) -> int:
        return len(self.scores_N)

    def of(self, which_N: np.ndarray) -> Pairs:
        """Select pairs by a mask or by indices."""
        return Pairs(*(values[which_N] for values in self))


def pairs_of(rows: Sequence[Mapping[str, Any]], name: str, test: Reads) -> Pairs:
    """Collect the readings of one test in rows ``{"base", "suspect", "values": {test: [score, log10 p]}}``."""
    test_rows = [(row, row["values"][name]) for row in rows if name in row["values"]]
    scores = [-np.inf if value[0] is None else value[0] for _, value in test_rows]
    return Pairs(
        np.array([row["base"] for row, _ in test_rows], int),
        np.array([row["suspect"] for row, _ in test_rows], int),
        np.array(scores, float),
        np.array([test.same(_reading(value)) for _, value in test_rows], bool),
    )


def _reading(value: Sequence[float | None]) -> Reading:
    return value[0], value[1]


def fold_of(place: Place) -> Place:
    """Return the half of a family: its thresholds come from the other half."""
    return place % FOLDS


def thresholds(unrelated: Pairs) -> list[float]:
    """Find by fold the smallest score that at most 1% of the *other* folds' unrelated pairs exceed.

    Args:
        unrelated: of all changes together, as nobody knows beforehand which one was made. Base and suspect of a pair
            are of one fold.
    """
    limits = []
    for fold in range(FOLDS):
        reference_N = unrelated.scores_N[fold_of(unrelated.bases_N) != fold]
        allowed = int(CALIBRATED * len(reference_N))
        limits.append(float(np.sort(reference_N)[len(reference_N) - 1 - allowed]) if len(reference_N) else float("inf"))
    return limits


def above(pairs: Pairs, limits: Sequence[float]) -> np.ndarray:
    """Return whether each pair exceeds the threshold of its families."""
    return pairs.scores_N > np.asarray(limits)[fold_of(pairs.bases_N)]


@functools.lru_cache(maxsize=8)
def _drawn(count: int) -> np.ndarray:
    """Count how often each family is drawn: [R, S]."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(float)


def rate(hits_N: np.ndarray, pairs: Pairs, count: int) -> dict[str, Any]:
    """Return a fraction of pairs with its 95% interval, families resampled; related pairs are of one family each.

    Where all agree, resampling shows no variation: then as many trials count as there are families among the bases,
    half of them where base and suspect are two.
    """
    if not len(hits_N):
        return {"rate": None, "low": None, "high": None}
    value = float(hits_N.mean())
    if hits_N.all() or not hits_N.any():
        paired = bool((pairs.bases_N != pairs.suspects_N).any())
        trials = max(1, len(set(pairs.bases_N.tolist())) // (2 if paired else 1))
        low, high = binomial_interval(trials if hits_N.any() else 0, trials)
        return {"rate": value, "low": low, "high": high}
    weights_RN = _weights(pairs, count)
    totals_R = weights_RN.sum(axis=1)
    rates_R = (weights_RN @ hits_N)[totals_R > 0] / totals_R[totals_R > 0]
    low, high = np.quantile(rates_R, [0.025, 0.975])
    return {"rate": value, "low": float(low), "high": float(high)}


def _weights(pairs: Pairs, count: int) -> np.ndarray:
    drawn_RS = _drawn(count)
    same_N = pairs.bases_N == pairs.suspects_N
    return np.where(same_N, drawn_RS[:, pairs.bases_N], drawn_RS[:, pairs.bases_N] * drawn_RS[:, pairs.suspects_N])


def area(related: Pairs, unrelated: Pairs, count: int) -> dict[str, Any]:
    """Compute the area under the ROC curve, ties counted half, with its 95% interval, families resampled.

    Where every related pair is above every unrelated one, the lower end is what :func:`rate` gives for related pairs.
    """
    if not len(related) or not len(unrelated):
        return {"rate": None, "low": None, "high": None}
    wins_PN = _wins(related.scores_N, unrelated.scores_N)
    value = float(wins_PN.mean())
    if value in (0.0, 1.0):
        return {**rate(np.full(len(related), bool(value)), related, count), "rate": value}
    related_RP, unrelated_RN = _weights(related, count), _weights(unrelated, count)
    totals_R = related_RP.sum(axis=1) * unrelated_RN.sum(axis=1)
    sums_R = np.einsum("rp,rp->r", related_RP, unrelated_RN @ wins_PN.T)
    low, high = np.quantile(sums_R[totals_R > 0] / totals_R[totals_R > 0], [0.025, 0.975])
    return {"rate": value, "low": float(low), "high": float(high)}


def _wins(related_P: np.ndarray, unrelated_N: np.ndarray) -> np.ndarray:
    # What is undefined in both is a tie: −∞ minus −∞ is no number.
    return (related_P[:, None] > unrelated_N) + 0.5 * (related_P[:, None] == unrelated_N)


def balanced(related_N: np.ndarray, unrelated_N: np.ndarray) -> float | None:
    """Compute the accuracy with related and unrelated pairs counted alike."""
    if not len(related_N) or not len(unrelated_N):
        return None
    return float(related_N.mean() + 1 - unrelated_N.mean()) / 2


def roc(related: Pairs, unrelated: Pairs) -> list[float]:
    """Compute the fraction of related pairs found where each of :data:`FALSE_POSITIVES` of the unrelated is."""
    ordered = np.sort(unrelated.scores_N)[::-1]
    powers = []
    for fraction in FALSE_POSITIVES:
        allowed = int(fraction * len(ordered))
        powers.append(1.0 if allowed >= len(ordered) else float((related.scores_N > ordered[allowed]).mean()))
    return powers


def distance(related: Pairs, unrelated: Pairs) -> float | None:
    """Compute Kolmogorov's and Smirnov's distance of the two distributions of scores."""
    if not len(related) or not len(unrelated):
        return None
    # Undefined scores as the least of all numbers.
    least = np.nan_to_num(np.concatenate([related.scores_N, unrelated.scores_N]), neginf=-1e300)
    return float(stats.ks_2samp(least[: len(related)], least[len(related) :]).statistic)


def most_allowed(count: int, level: float) -> int:
    """Compute the 99.9% quantile of a binomial count: what an exact test exceeds once in a thousand."""
    return int(stats.binom.ppf(0.999, count, level))
