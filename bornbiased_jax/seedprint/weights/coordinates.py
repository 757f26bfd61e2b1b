"""Labels that are residual coordinates: the cross-Gram of two models' matrices, and its trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.seedprint.weights.view import VOCABULARY, Matrix, folded, matrices, unit_rows
from bornbiased_jax.stats.permutations import moments


class Module(NamedTuple):
    """One matrix of both models: its name, and how far its statistic lies from the mean over permutations."""

    name: str
    z: float


def prepared_pairs(
    base: WeightsReader, suspect: WeightsReader, ids_I: np.ndarray
) -> Iterator[tuple[Matrix, np.ndarray, np.ndarray]]:
    """Every matrix that both models have in one size, prepared: (name, [n, D] of the base, [n, D] of the suspect).

    Rows have unit norm, then columns: scales moved between matrices, or put on rows that nobody uses, cannot hide the
    rest. Two matrices are in memory at a time. Matrices of zeros are left out; blocks are compared by their numbers.
    """
    theirs = set(matrices(suspect.cfg))
    for matrix in matrices(base.cfg):
        if matrix not in theirs:
            continue
        ours_nD, theirs_nD = (_prepared(reader, matrix, ids_I) for reader in (base, suspect))
        if matrix.module == "positions":
            longest = min(len(ours_nD), len(theirs_nD))
            ours_nD, theirs_nD = ours_nD[:longest], theirs_nD[:longest]
        if ours_nD.shape == theirs_nD.shape and ours_nD.any() and theirs_nD.any():
            yield matrix, ours_nD, theirs_nD


def _prepared(reader: WeightsReader, matrix: Matrix, ids_I: np.ndarray) -> np.ndarray:
    rows_nD = folded(reader, matrix)
    if matrix.module in VOCABULARY:
        rows_nD = rows_nD[ids_I]
    if matrix.module == "head":
        rows_nD -= rows_nD.mean(axis=0, dtype=np.float64).astype(np.float32)
    unit_rows(rows_nD)
    norms_D = np.sqrt(np.einsum("nd,nd->d", rows_nD, rows_nD, dtype=np.float32))
    rows_nD /= np.where(norms_D > 0, norms_D, 1.0)
    return rows_nD


def coordinate_scores(
    base: WeightsReader,
    suspect: WeightsReader,
    ids_I: np.ndarray,
    *,
    signed: bool = False,
    advance: Callable[[int], object] | None = None,
) -> tuple[np.ndarray, list[Module]]:
    """Scores of coordinate i of the base with coordinate j of the suspect, whose trace is the statistic.

    C[i, j] is the sum over matrices of the cosine of coordinate i of the base with coordinate j of the suspect. The
    score is C[i, j]², which negating a coordinate everywhere (free in models with
    RMSNorm) or the whole stream (free with LayerNorm) leaves alone; ``signed`` gives C itself.

    Returns:
        [D, D] float64, and z by matrix.
    """
    total_DD = np.zeros((base.cfg.d_model, suspect.cfg.d_model))
    by_module = []
    for matrix, ours_nD, theirs_nD in prepared_pairs(base, suspect, ids_I):
        cross_DD = ours_nD.T @ theirs_nD
        total_DD += cross_DD
        by_module.append(Module(str(matrix), trace_z(cross_DD if signed else np.square(cross_DD))))
        if advance is not None:
            advance(1)
    return (total_DD if signed else np.square(total_DD)), by_module


def trace_z(scores_nn: np.ndarray) -> float:
    """The trace's distance from its mean over permutations, in standard deviations; NaN where it cannot vary."""
    mean, variance = (float(moment) for moment in moments(scores_nn))
    statistic = float(np.diagonal(scores_nn).sum(dtype=np.float64))
    return (statistic - mean) / variance**0.5 if variance > 0 else float("nan")
