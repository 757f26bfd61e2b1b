"""What each test makes of each change: the numbers of the record."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import numpy as np
from scipy import stats

from bornbiased_jax.experiments.base import Entry
from bornbiased_jax.experiments.lineage.descendants_families import Recipe
from bornbiased_jax.experiments.lineage.descendants_readings import EXACT, SMALL, TESTS, Reads
from bornbiased_jax.stats.intervals import binomial_interval

Place = TypeVar("Place", int, np.ndarray)

FOLDS = 2
RESAMPLES = 1_000
CALIBRATED = 0.01
"""Fraction of unrelated pairs that a calibrated threshold may call the same."""
FALSE_POSITIVES = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Where ROC curves are kept."""


@dataclasses.dataclass(frozen=True)
class Rate:
    """A rate with its 95% interval; None where nothing was counted."""

    rate: float | None = None
    low: float | None = None
    high: float | None = None


class PairReadings(NamedTuple):
    """Readings of one test: the families of base and suspect, scores (−∞ where undefined) and decisions."""

    bases_N: np.ndarray
    suspects_N: np.ndarray
    scores_N: np.ndarray
    same_N: np.ndarray

    def __len__(self) -> int:
        return len(self.scores_N)

    def of(self, which_N: np.ndarray) -> PairReadings:
        """Select pairs by a mask or by indices."""
        return PairReadings(*(values[which_N] for values in self))


def pairs_of(rows: Sequence[Entry], name: str, test: Reads) -> PairReadings:
    """Collect the readings of one test in rows ``{"base", "suspect", "values": {test: [score, log10 p]}}``."""
    test_rows = [(row, row["values"][name]) for row in rows if name in row["values"]]
    scores = [-np.inf if value[0] is None else value[0] for _, value in test_rows]
    return PairReadings(
        np.array([row["base"] for row, _ in test_rows], int),
        np.array([row["suspect"] for row, _ in test_rows], int),
        np.array(scores, float),
        np.array([test.same((value[0], value[1])) for _, value in test_rows], bool),
    )


def fold_of(place: Place) -> Place:
    """Return the half of a family: its thresholds come from the other half."""
    return place % FOLDS


def thresholds(unrelated: PairReadings) -> list[float]:
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


def above(pairs: PairReadings, limits: Sequence[float]) -> np.ndarray:
    """Return whether each pair exceeds the threshold of its families."""
    return pairs.scores_N > np.asarray(limits)[fold_of(pairs.bases_N)]


@functools.lru_cache(maxsize=8)
def _resamples(count: int) -> np.ndarray:
    """Count how often each family is drawn: [R, S]."""
    return np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES).astype(float)


def rate(hits_N: np.ndarray, pairs: PairReadings, count: int) -> Rate:
    """Return a fraction of pairs with its 95% interval, families resampled; related pairs are of one family each.

    Where all agree, resampling shows no variation: then as many trials count as there are families among the bases,
    half of them where base and suspect are two.
    """
    if not len(hits_N):
        return Rate()
    if hits_N.all() or not hits_N.any():
        paired = bool((pairs.bases_N != pairs.suspects_N).any())
        trials = max(1, len(set(pairs.bases_N.tolist())) // (2 if paired else 1))
        return Rate(float(hits_N.mean()), *binomial_interval(trials if hits_N.any() else 0, trials))
    weights_RN = _weights(pairs, count)
    return _resampled(float(hits_N.mean()), weights_RN @ hits_N, weights_RN.sum(axis=1))


def _resampled(value: float, sums_R: np.ndarray, totals_R: np.ndarray) -> Rate:
    """Return a rate with the quantiles of its resamples, those that drew any pair."""
    low, high = np.quantile(sums_R[totals_R > 0] / totals_R[totals_R > 0], [0.025, 0.975])
    return Rate(value, float(low), float(high))


def _weights(pairs: PairReadings, count: int) -> np.ndarray:
    drawn_RS = _resamples(count)
    same_N = pairs.bases_N == pairs.suspects_N
    return np.where(same_N, drawn_RS[:, pairs.bases_N], drawn_RS[:, pairs.bases_N] * drawn_RS[:, pairs.suspects_N])


def area(related: PairReadings, unrelated: PairReadings, count: int) -> Rate:
    """Compute the area under the ROC curve, ties counted half, with its 95% interval, families resampled.

    Where every related pair is above every unrelated one, the lower end is what :func:`rate` gives for related pairs.
    """
    if not len(related) or not len(unrelated):
        return Rate()
    # What is undefined in both is a tie: −∞ minus −∞ is no number.
    related_P1, unrelated_N = related.scores_N[:, None], unrelated.scores_N
    wins_PN = (related_P1 > unrelated_N) + 0.5 * (related_P1 == unrelated_N)
    value = float(wins_PN.mean())
    if value in (0.0, 1.0):
        return rate(np.full(len(related), bool(value)), related, count)
    related_RP, unrelated_RN = _weights(related, count), _weights(unrelated, count)
    sums_R = np.einsum("rp,rp->r", related_RP, unrelated_RN @ wins_PN.T)
    return _resampled(value, sums_R, related_RP.sum(axis=1) * unrelated_RN.sum(axis=1))


def balanced(related_N: np.ndarray, unrelated_N: np.ndarray) -> float | None:
    """Compute the accuracy with related and unrelated pairs counted alike."""
    if not len(related_N) or not len(unrelated_N):
        return None
    return float(related_N.mean() + 1 - unrelated_N.mean()) / 2


def roc(related: PairReadings, unrelated: PairReadings) -> list[float]:
    """Compute the fraction of related pairs found where each of :data:`FALSE_POSITIVES` of the unrelated is."""
    ordered = np.sort(unrelated.scores_N)[::-1]
    powers = []
    for fraction in FALSE_POSITIVES:
        allowed = int(fraction * len(ordered))
        powers.append(1.0 if allowed >= len(ordered) else float((related.scores_N > ordered[allowed]).mean()))
    return powers


def distance(related: PairReadings, unrelated: PairReadings) -> float | None:
    """Compute Kolmogorov's and Smirnov's distance of the two distributions of scores."""
    if not len(related) or not len(unrelated):
        return None
    # Undefined scores as the least of all numbers.
    least = np.nan_to_num(np.concatenate([related.scores_N, unrelated.scores_N]), neginf=-1e300)
    return float(stats.ks_2samp(least[: len(related)], least[len(related) :]).statistic)


def most_allowed(count: int, level: float) -> int:
    """Compute the 99.9% quantile of a binomial count: what an exact test exceeds once in a thousand."""
    return int(stats.binom.ppf(0.999, count, level))


TRUSTED = 0.9
"""A trusted test finds at least this fraction of the related pairs at its own level."""
TOO_MANY = 0.05
"""A test without an exact p may call this fraction of unrelated pairs the same at its own threshold."""


def summarize(changes: Sequence[Recipe], rows_by_change: Sequence[Sequence[Entry]], count: int) -> Entry:
    """Compute the result of the benchmark.

    Args:
        changes: in order.
        rows_by_change: readings of each change's pairs: ``base``, ``suspect``, ``chosen`` (asked of every test) and
            ``values``.
        count: number of families.

    Returns:
        ``tests`` (over all changes), ``cells`` (change × test), ``accusations`` (kind × exact test) and ``small``
        (change × test in the weights), found by sketches of the default size.
    """
    # Trust needs the false positives of every kind of change.
    accusations = _accusations(changes, rows_by_change)
    cells, tests = [], []
    for name, test in TESTS.items():
        evaluated = [pairs_of([row for row in rows if row["chosen"]], name, test) for rows in rows_by_change]
        split = [_split(change, pairs) for change, pairs in zip(changes, evaluated, strict=True)]
        # A student's pair with its teacher is unrelated, but calibrates nothing: nobody has such pairs to calibrate by.
        apart = _joined([unrelated.of(unrelated.bases_N != unrelated.suspects_N) for _, unrelated in split])
        related = _joined([pairs for pairs, _ in split])
        if not len(apart):
            continue
        # Thresholds of one fold come from the other.
        limits = thresholds(apart)
        overall: dict[str, object] = {"test": name, "published": test.published, "by_p": test.by_p, "limit": test.limit}
        overall["calibrated"] = [limit if np.isfinite(limit) else None for limit in limits]
        overall["ks"] = distance(related, apart)
        tests.append(overall | _rates(related, apart, limits, count))
        for change, (related_pairs, unrelated_pairs) in zip(changes, split, strict=True):
            if len(unrelated_pairs):
                cell = {"change": change.name, "test": name, **_cell(related_pairs, unrelated_pairs, limits, count)}
                counted = [row for row in accusations if (row["test"], row["kind"]) == (name, change.kind)]
                cells.append(cell | {"trusted": _is_trusted(cell, counted)})
    return {
        "tests": tests,
        "cells": cells,
        "accusations": accusations,
        "small": _found_by_small(changes, rows_by_change, count),
    }


def _found_by_small(
    changes: Sequence[Recipe], rows_by_change: Sequence[Sequence[Entry]], count: int
) -> Sequence[Entry]:
    """Summarize what sketches of the default size find, at each test's own level or threshold."""
    entries = []
    for change, rows in zip(changes, rows_by_change, strict=True):
        evaluated = [row for row in rows if row["chosen"]]
        for name, small in SMALL.items():
            related, unrelated = _split(change, pairs_of(evaluated, small, TESTS[name]))
            found, called = (rate(pairs.same_N, pairs, count) for pairs in (related, unrelated))
            entries.append({"change": change.name, "test": name, "found": found, "accused": called})
    return entries


def _split(change: Recipe, pairs: PairReadings) -> tuple[PairReadings, PairReadings]:
    """Split related and unrelated pairs of one change."""
    related_N = (pairs.bases_N == pairs.suspects_N) & change.related
    return pairs.of(related_N), pairs.of(~related_N)


def _joined(parts: Sequence[PairReadings]) -> PairReadings:
    return PairReadings(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _rates(related: PairReadings, unrelated: PairReadings, limits: Sequence[float], count: int) -> dict[str, object]:
    """Summarize one test on pairs of one change, or of all: at its own level, and at calibrated thresholds."""
    related_N, unrelated_N = above(related, limits), above(unrelated, limits)
    return {
        "num_related": len(related),
        "num_unrelated": len(unrelated),
        "auc": area(related, unrelated, count),
        "found": rate(related.same_N, related, count),
        "accused": rate(unrelated.same_N, unrelated, count),
        "tpr": rate(related_N, related, count),
        "fpr": rate(unrelated_N, unrelated, count),
        "accuracy": balanced(related.same_N, unrelated.same_N),
        "accuracy_calibrated": balanced(related_N, unrelated_N),
    }


def _cell(related: PairReadings, unrelated: PairReadings, limits: Sequence[float], count: int) -> dict[str, object]:
    """Summarize one test after one change."""
    teacher_N = unrelated.bases_N == unrelated.suspects_N
    taught, apart = unrelated.of(teacher_N), unrelated.of(~teacher_N)
    cell = _rates(related, apart, limits, count)
    # Of distillation alone: students called descendants of their teachers.
    cell["teachers"] = rate(taught.same_N, taught, count)
    cell["teachers_calibrated"] = rate(above(taught, limits), taught, count)
    if not len(related):
        cell["auc"] = area(taught, apart, count)
    return cell


def _accusations(changes: Sequence[Recipe], rows_by_change: Sequence[Sequence[Entry]]) -> Sequence[Entry]:
    """Count the unrelated pairs of each kind of change that each exact test calls the same at its own level."""
    entries = []
    for name in EXACT:
        test = TESTS[name]
        # At the usual strength of each kind.
        for change, rows in zip(changes, rows_by_change, strict=True):
            if not change.usual:
                continue
            # Two families once, and the students' teachers.
            rows = [row for row in rows if row["base"] < row["suspect"] + (not change.related)]
            _, unrelated = _split(change, pairs_of(rows, name, test))
            log10_p = [row["values"][name][1] for row in rows if row["values"][name][1] is not None]
            entries.append(
                {
                    "test": name,
                    "kind": change.kind,
                    "change": change.name,
                    "num_pairs": len(unrelated),
                    "alpha": test.limit,
                    "accused": int(unrelated.same_N.sum()),
                    "most": most_allowed(len(unrelated), test.limit),
                    "below_0.01": int((np.array(log10_p) <= -2 + 1e-9).sum()),
                    "most_below_0.01": most_allowed(len(unrelated), 0.01),
                }
            )
    return entries


def _is_trusted(cell: Entry, accusations: Sequence[Entry]) -> bool | None:
    """Decide whether a test is to be trusted after a change; None where nothing is to be found."""
    if not cell["num_related"]:
        return None
    is_calibrated = cell["accused"].rate <= TOO_MANY
    if accusations:
        is_calibrated = all(entry["accused"] <= entry["most"] for entry in accusations)
    return bool(is_calibrated and cell["found"].rate >= TRUSTED)
