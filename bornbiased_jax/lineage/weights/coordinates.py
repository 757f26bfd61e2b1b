"""Labels that are residual coordinates: the cross-Gram of two models' matrices, and its trace."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.weights.tokens import SharedTokens
from bornbiased_jax.lineage.weights.view import VOCABULARY, Matrix, folded, matrices, rows_of, unit_rows

EMBEDDINGS, BLOCKS = "embeddings", "blocks"
"""The parts of a model: what lies outside the blocks (embeddings and head), and what lies inside."""
# Rows handled together.
_CHUNK = 512


class Module(NamedTuple):
    """One matrix of both models: its name, and how far its statistic lies from the mean over permutations."""

    name: str
    z: float


class Coordinates(NamedTuple):
    """Two models compared coordinate by coordinate.

    Attributes:
        scores_DD: of coordinate i of the base with j of the suspect, float64; their trace is the statistic.
        by_module: z of each matrix.
        by_part: z of all matrices outside the blocks (token and position embedding, head), and of all inside.
    """

    scores_DD: np.ndarray
    by_module: list[Module]
    by_part: list[Module]


def prepared_pairs(
    base: Checkpoint, suspect: Checkpoint, tokens: SharedTokens, left_out: Collection[Matrix] = ()
) -> Iterator[tuple[Matrix, np.ndarray, np.ndarray]]:
    """Yield every matrix that both models have in one size, prepared: (name, base [n, D], suspect [n, D]).

    Rows have unit norm: scales moved between matrices, or put on rows that nobody uses, cannot hide the rest. Two
    matrices are in memory at a time. Matrices of zeros are left out; blocks are compared by their numbers.
    """
    suspect_matrices = set(matrices(suspect.cfg))
    for matrix in matrices(base.cfg):
        if matrix not in suspect_matrices or matrix in left_out:
            continue
        base_nD = _prepared(base, matrix, tokens.base_I)
        suspect_nD = _prepared(suspect, matrix, tokens.suspect_I)
        if matrix.module == "positions":
            longest = min(len(base_nD), len(suspect_nD))
            base_nD, suspect_nD = base_nD[:longest], suspect_nD[:longest]
        if len(base_nD) and base_nD.shape == suspect_nD.shape and base_nD.any() and suspect_nD.any():
            yield matrix, base_nD, suspect_nD


def _prepared(reader: Checkpoint, matrix: Matrix, ids_I: np.ndarray) -> np.ndarray:
    rows_nD = folded(reader, matrix)
    if matrix.module in VOCABULARY:
        rows_nD = rows_of(rows_nD, ids_I)
    if matrix.module == "head" and len(rows_nD):
        rows_nD -= rows_nD.mean(axis=0, dtype=np.float64).astype(np.float32)
    return unit_rows(rows_nD)


def column_norms(rows_nD: np.ndarray) -> np.ndarray:
    """Compute the norms of the coordinates, one where there is nothing: [D] float32."""
    squares_D = np.zeros(rows_nD.shape[1], np.float32)
    for start in range(0, len(rows_nD), _CHUNK):
        squares_D += np.square(rows_nD[start : start + _CHUNK]).sum(axis=0)
    return np.where(squares_D > 0, np.sqrt(squares_D), np.float32(1.0))


def coordinate_scores(
    base: Checkpoint,
    suspect: Checkpoint,
    tokens: SharedTokens,
    *,
    signed: bool = False,
    left_out: Collection[Matrix] = (),
) -> Coordinates:
    """Compare the models' coordinates over all matrices that both have.

    C[i, j] is the sum over matrices of the cosine of coordinate i of the base with coordinate j of the suspect. The
    score is C[i, j]², invariant to negating a coordinate everywhere (free in models with RMSNorm) or the whole residual
    stream (free with LayerNorm); ``signed`` gives C itself. Matrices ``left_out`` do not enter.
    """
    change = None if signed else np.square
    embeddings_DD, blocks_DD = (np.zeros((base.cfg.d_model, suspect.cfg.d_model)) for _ in range(2))
    by_module = []
    for matrix, base_nD, suspect_nD in prepared_pairs(base, suspect, tokens, left_out):
        cross_DD = base_nD.T @ suspect_nD
        cross_DD /= column_norms(base_nD)[:, None]
        cross_DD /= column_norms(suspect_nD)
        part_DD = embeddings_DD if matrix.layer is None else blocks_DD
        part_DD += cross_DD
        by_module.append(Module(str(matrix), trace_z(cross_DD, change)))
    parts = [Module(EMBEDDINGS, trace_z(embeddings_DD, change)), Module(BLOCKS, trace_z(blocks_DD, change))]
    blocks_DD += embeddings_DD
    del embeddings_DD
    return Coordinates(blocks_DD if signed else np.square(blocks_DD, out=blocks_DD), by_module, parts)


def trace_z(scores_nn: np.ndarray, change: Callable[[np.ndarray], np.ndarray] | None = None) -> float:
    """Compute the trace's distance from its mean over permutations, in standard deviations; NaN where it cannot vary.

    Args:
        scores_nn: [n, n].
        change: applied to the scores first, some rows at a time; they are not copied.
    """
    size = len(scores_nn)
    rows_n, columns_n, diagonal_n, squares = np.zeros(size), np.zeros(size), np.zeros(size), 0.0
    for start in range(0, size, _CHUNK):
        chunk_rn = scores_nn[start : start + _CHUNK]
        if change is not None:
            chunk_rn = change(chunk_rn)
        chunk = slice(start, start + len(chunk_rn))
        rows_n[chunk] = chunk_rn.sum(axis=1, dtype=np.float64)
        columns_n += chunk_rn.sum(axis=0)
        diagonal_n[chunk] = np.diagonal(chunk_rn, offset=start)
        squares += float(np.vdot(chunk_rn, chunk_rn))
    total = float(rows_n.sum())
    centred = squares - float(rows_n @ rows_n + columns_n @ columns_n) / size + total**2 / size**2
    variance = centred / max(1, size - 1)
    # What remains of numbers that cancel is no variance.
    if not variance > 1e-6 * squares / size:
        return float("nan")
    return (float(diagonal_n.sum()) - total / size) / variance**0.5
