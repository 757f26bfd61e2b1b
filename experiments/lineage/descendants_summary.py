"""What each test makes of each change: the numbers of the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from experiments.lineage.descendants_changes import Change
from experiments.lineage.descendants_readings import EXACT, TESTS, Reads
from experiments.lineage.descendants_scores import (
    FALSE_POSITIVES,
    Pairs,
    above,
    area,
    balanced,
    distance,
    most_allowed,
    pairs_of,
    rate,
    roc,
    thresholds,
)

TRUSTED = 0.9
"""A trusted test finds at least this fraction of the related pairs at its own level."""
TOO_MANY = 0.05
"""A test without an exact p may call this fraction of unrelated pairs the same at its own threshold."""

Rows = Sequence[Mapping[str, Any]]


def summarise(changes: Sequence[Change], rows_by_change: Sequence[Rows], count: int) -> dict[str, Any]:
    """Compute the result of the benchmark.

    Args:
        changes: in order.
        rows_by_change: readings of each change's pairs: ``base``, ``suspect``, ``chosen`` (asked of every test) and
            ``values``.
        count: number of families.

    Returns:
        ``tests`` (over all changes), ``cells`` (change × test), ``accusations`` (kind × exact test), ``roc`` and its
        ``false_positives``.
    """
    cells: list[dict[str, Any]] = []
    tests = []
    curves = []
    for name, test in TESTS.items():
        chosen = [pairs_of([row for row in rows if row["chosen"]], name, test) for rows in rows_by_change]
        split = [_split(change, pairs) for change, pairs in zip(changes, chosen, strict=True)]
        # A student's pair with its teacher is unrelated, but calibrates nothing: nobody has such pairs to calibrate by.
        apart = _joined([unrelated.of(unrelated.bases_N != unrelated.suspects_N) for _, unrelated in split])
        related = _joined([pairs for pairs, _ in split])
        if not len(apart):
            continue
        # Thresholds of one fold come from the other.
        limits = thresholds(apart)
        tests.append(_overall(name, test, related, apart, limits, count))
        curves.append({"test": name, "found": roc(related, apart)})
        for change, (related_pairs, unrelated_pairs) in zip(changes, split, strict=True):
            if len(unrelated_pairs):
                cells.append(
                    {"change": change.name, "test": name, **_cell(related_pairs, unrelated_pairs, limits, count)}
                )
    # Trust needs the false positives of every kind of change.
    accusations = _accusations(changes, rows_by_change)
    for cell in cells:
        cell["trusted"] = _trusted(cell, changes, accusations)
    return {
        "tests": tests,
        "cells": cells,
        "accusations": accusations,
        "false_positives": list(FALSE_POSITIVES),
        "roc": curves,
    }


def _split(change: Change, pairs: Pairs) -> tuple[Pairs, Pairs]:
    """Split related and unrelated pairs of one change."""
    related_N = (pairs.bases_N == pairs.suspects_N) & change.related
    return pairs.of(related_N), pairs.of(~related_N)


def _joined(parts: Sequence[Pairs]) -> Pairs:
    return Pairs(*(np.concatenate(values) for values in zip(*parts, strict=True)))


def _overall(
    name: str, test: Reads, related: Pairs, unrelated: Pairs, limits: Sequence[float], count: int
) -> dict[str, Any]:
    """Summarize one test over all changes together."""
    return {
        "test": name,
        "published": test.published,
        "by_p": test.by_p,
        "limit": test.limit,
        "calibrated": [limit if np.isfinite(limit) else None for limit in limits],
        "num_related": len(related),
        "num_unrelated": len(unrelated),
        "auc": area(related, unrelated, count),
        "ks": distance(related, unrelated),
        "found": rate(related.same_N, related, count),
        "accused": rate(unrelated.same_N, unrelated, count),
        "tpr": rate(above(related, limits), related, count),
        "fpr": rate(above(unrelated, limits), unrelated, count),
        "accuracy": balanced(related.same_N, unrelated.same_N),
        "accuracy_calibrated": balanced(above(related, limits), above(unrelated, limits)),
    }


def _cell(related: Pairs, unrelated: Pairs, limits: Sequence[float], count: int) -> dict[str, Any]:
    """Summarize one test after one change."""
    teacher_N = unrelated.bases_N == unrelated.suspects_N
    taught, apart = unrelated.of(teacher_N), unrelated.of(~teacher_N)
    return {
        "num_related": len(related),
        "num_unrelated": len(apart),
        "num_undefined": int(np.isneginf(related.scores_N).sum() + np.isneginf(unrelated.scores_N).sum()),
        "auc": area(related if len(related) else taught, apart, count),
        "found": rate(related.same_N, related, count),
        "tpr": rate(above(related, limits), related, count),
        "accused": rate(apart.same_N, apart, count),
        "fpr": rate(above(apart, limits), apart, count),
        # Of distillation alone: students called descendants of their teachers.
        "teachers": rate(taught.same_N, taught, count),
        "teachers_calibrated": rate(above(taught, limits), taught, count),
        "accuracy": balanced(related.same_N, apart.same_N),
        "accuracy_calibrated": balanced(above(related, limits), above(apart, limits)),
    }


def _accusations(changes: Sequence[Change], rows_by_change: Sequence[Rows]) -> list[dict[str, Any]]:
    """Count the unrelated pairs of each kind of change that each exact test calls the same at its own level."""
    entries = []
    for name in EXACT:
        test = TESTS[name]
        for kind in dict.fromkeys(change.kind for change in changes):
            # At the usual strength.
            [(change, rows)] = [
                (change, rows)
                for change, rows in zip(changes, rows_by_change, strict=True)
                if change.kind == kind and change.usual
            ]
            # Two families once, and the students' teachers.
            rows = [row for row in rows if row["base"] < row["suspect"] + (not change.related)]
            _, unrelated = _split(change, pairs_of(rows, name, test))
            log10_p = [row["values"][name][1] for row in rows if row["values"][name][1] is not None]
            entry: dict[str, Any] = {"test": name, "kind": kind, "change": change.name, "num_pairs": len(unrelated)}
            entry |= {"alpha": test.limit, "accused": int(unrelated.same_N.sum())}
            entry["most"] = most_allowed(len(unrelated), test.limit)
            entry["below_0.01"] = int((np.array(log10_p) <= -2 + 1e-9).sum())
            entry["most_below_0.01"] = most_allowed(len(unrelated), 0.01)
            entries.append(entry)
    return entries


def _trusted(
    cell: Mapping[str, Any], changes: Sequence[Change], accusations: Sequence[Mapping[str, Any]]
) -> bool | None:
    """Decide whether a test is to be trusted after a change; None where nothing is to be found."""
    if not cell["num_related"]:
        return None
    kind = next(change.kind for change in changes if change.name == cell["change"])
    counted = [entry for entry in accusations if (entry["test"], entry["kind"]) == (cell["test"], kind)]
    if counted:
        is_calibrated = all(entry["accused"] <= entry["most"] for entry in counted)
    else:
        is_calibrated = cell["accused"]["rate"] <= TOO_MANY
    return bool(is_calibrated and cell["found"]["rate"] >= TRUSTED)
