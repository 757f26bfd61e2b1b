r"""A certified upper bound on the tail of a sum over random relabelings, however small.

With c the doubly centered n × n score matrix, S = Σ c_ii, γ_k = (k!)^{1/k}, γ_0 = 0, δ_k = γ_k − γ_{k−1}, and
a_{i(1)} ≥ a_{i(2)} ≥ … row i of λc_ij − v_j sorted, for every λ > 0 and every real v

    ln P(S(π) ≥ S) ≤ −λS + Σ_j v_j + Σ_i ln Σ_k δ_k exp(a_{i(k)}) − ln n!.

Proof. E exp(λS(π)) is the permanent of exp(λc) over n!, and Chernoff's inequality applies. Every row is a sum of
0/1 rows (its k largest places, weighted by the difference to the next), the permanent is linear in each row, and
Brègman and Minc bound the permanent of a 0/1 matrix with row sums r_i by Π γ_{r_i}.

Groups that are permuted independently (the hidden units of each layer) share λ, and their terms are added.
v = λw only moves the columns of c by w, so that one sort serves every λ; w comes from Sinkhorn's scaling, which
helps where tails are heavy. δ_k decreases, so the whole is convex in λ.

Wide groups keep the 64 largest of each row and a grid of about fifty further order statistics: between two of
them exp lies below its chord, so that the mass moves outwards to the two, its mean kept. That is an upper bound
again (the permanent is monotone), and close, which the largest number of each block alone would not be.

Rounding. Whatever constants are subtracted from rows and columns, S(π) − S moves by nothing but the rounding of
the subtractions, at most 4nε of the largest number involved: S is taken less by that. Wide groups are sorted in
float32, which moves every number by less than float32's ε of the largest: S is taken less by n of these. The terms that
follow have
relative errors below (4n + 16)ε(1 + λ max|a|) a row: they are added.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from operator import itemgetter
from typing import TypeVar

import numpy as np
from scipy import special

from bornbiased_jax.hardware import cores
from bornbiased_jax.stats.permutations import TIE
from bornbiased_jax.stats.tails import LN10

_Result = TypeVar("_Result")

FULL_WIDTH = 1024
"""Groups up to this size keep every number of every row."""
TOP = 64
# Groups from this size on are sorted on every core, and only the better of their rows and columns is scaled.
_WIDE = 1024
# Blocks of order statistics grow by this ratio from the top, and from the bottom, towards the median.
_RATIO = 1.25
# Numbers handled together: they stay in a core's cache.
_CHUNK = 1 << 16
# Iterations of Sinkhorn's scaling; any outcome is valid.
_SCALINGS = 10
_EPS = float(np.finfo(np.float64).eps)
_SINGLE_EPS, _SINGLE_TINY = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).tiny)
# Nats above the floor 1/n! from which on a bound is as good as any: of scaling, and of wide groups' columns too.
_AT_FLOOR, _AT_FLOOR_WIDE = 0.01, 0.05
# The search over λ stops where another step promises less than this many nats.
_ENOUGH = 1e-4
_MAX_STEPS = 40


@dataclasses.dataclass(frozen=True, eq=False)
class Rows:
    """One group as the bound needs it: sorted rows with their weights.

    Attributes:
        size: n.
        statistic: Σ c_ii of these rows, less what rounding may have added.
        atoms_nA: [n, A] numbers, largest first.
        weights_nA: [n, A] or [1, A]; those of a row add up to (n!)^{1/n}.
    """

    size: int
    statistic: float
    atoms_nA: np.ndarray
    weights_nA: np.ndarray


def tail_bound(scores: np.ndarray | Sequence[np.ndarray], *, top: int | None = None, scale: bool = True) -> float:
    """Bound log₁₀ P(S(π) ≥ S) over uniform permutations π, independent for each matrix; at most 0.

    Args:
        scores: [n, n] scores of label i of one model with label j of the other (centered here), or several.
        top: keep so many of each row exactly and a grid of the rest; all of them up to n = 1,024 by default,
            64 beyond.
        scale: try Sinkhorn's scaling too.

    Raises:
        ValueError: not square matrices of finite numbers with n ≥ 2.

    Example:
        >>> log10_p = tail_bound(np.eye(30))  # one labeling of 30! reaches the trace
        >>> round(log10_p, 2), round(-math.lgamma(31) / LN10, 2)
        (-32.42, -32.42)
    """
    matrices = [scores] if isinstance(scores, np.ndarray) else list(scores)
    return joint_bound([sorted_rows(scores_nn, top=top, scale=scale) for scores_nn in matrices])


def joint_bound(groups: Sequence[Rows]) -> float:
    """Bound log₁₀ p of the sum over groups that are permuted independently: λ by Newton's method, as it is convex."""
    return _minimized(groups)[0] / LN10 * (1 - 4 * _EPS)


def checked_scores(scores_nn: np.ndarray) -> np.ndarray:
    """Return scores as a square matrix of some float type.

    Raises:
        ValueError: not [n, n] with n ≥ 2.
    """
    scores_nn = np.asarray(scores_nn)
    if scores_nn.ndim != 2 or scores_nn.shape[0] != scores_nn.shape[1] or len(scores_nn) < 2:
        raise ValueError(f"scores of shape {scores_nn.shape}: give [n, n] with n of at least 2")
    return scores_nn if scores_nn.dtype.kind == "f" else scores_nn.astype(np.float64)


def sorted_rows(scores_nn: np.ndarray, *, top: int | None = None, scale: bool = True, columns: bool = True) -> Rows:
    """Sort one group's rows for the bound: by rows or by columns, scaled or not, whichever gives the least bound.

    A group's own best choice is made at its own λ; in a sum it is valid at any. No bound is below 1/n!, so that of wide
    groups no more is tried where one is within a twentieth of a nat of it: log₁₀ p of copies, −13,020 at n = 4,096, is
    larger by up to 0.02 for a third of the time. Of wide groups the better of rows and columns alone is scaled, too.

    Args:
        scores_nn: [n, n], of any float type; centered here, in float64, a few rows at a time.
        top: as in :func:`tail_bound`.
        scale: try Sinkhorn's scaling too (a float32 copy of the scores is held).
        columns: try columns too.

    Returns:
        Its statistic is already less by what ties and rounding could add.

    Raises:
        ValueError: not a square matrix of finite numbers with n ≥ 2.
    """
    scores_nn = checked_scores(scores_nn)
    size = len(scores_nn)
    if top is None:
        top = size if size <= FULL_WIDTH else TOP
    if not (scale or columns):
        return _sort(_Centered(scores_nn), None, min(top, size))
    is_wide = size >= _WIDE
    floor = -math.lgamma(size + 1)
    plain: list[tuple[float, float, Rows, _Centered]] = []
    for oriented_nn in (scores_nn, scores_nn.T) if columns else (scores_nn,):
        centered = _Centered(oriented_nn)
        rows = _sort(centered, None, min(top, size))
        log_p, tilt = _minimized([rows])
        if is_wide and log_p <= floor + _AT_FLOOR_WIDE:
            return rows
        plain.append((log_p, tilt, rows, centered))
    tried = [(log_p, rows) for log_p, _, rows, _ in plain]
    for log_p, tilt, _, centered in [min(plain, key=itemgetter(0))] if is_wide else plain:
        # Below the floor 1/n! nothing is to be won, and without a λ there is nothing to scale by.
        if scale and tilt > 0 and log_p > floor + _AT_FLOOR:
            rows = _sort(centered, _scaling(centered, tilt), min(top, size))
            tried.append((_minimized([rows])[0], rows))
    return min(tried, key=itemgetter(0))[1]


class _Centered:
    """A doubly centered matrix, made a few rows at a time."""

    def __init__(self, scores_nn: np.ndarray) -> None:
        self.scores_nn, self.size = scores_nn, len(scores_nn)
        self.row_n = scores_nn.mean(axis=1, dtype=np.float64)
        self.column_n = scores_nn.mean(axis=0, dtype=np.float64) - self.row_n.mean()
        if not (np.isfinite(self.row_n).all() and np.isfinite(self.column_n).all()):
            raise ValueError("the scores hold NaN or infinite numbers")

    def strip(self, span: slice, moved_n: np.ndarray) -> np.ndarray:
        """Make some rows of c less ``moved``: [rows, n] float64, the caller's to change."""
        # Columns are copied as they lie first: gathered one after the other they would share few sets of the cache.
        rows_rn = self.scores_nn[span]
        rows_rn = rows_rn if rows_rn.flags.c_contiguous else np.ascontiguousarray(rows_rn.T).T
        strip_rn = rows_rn.astype(np.float64, order="C")
        strip_rn -= self.row_n[span, None]
        strip_rn -= (self.column_n + moved_n)[None, :]
        return strip_rn

    def map(self, function: Callable[[slice], _Result]) -> list[_Result]:
        """Call a function with every strip of rows, which fit a core's cache; wide groups on every core."""
        rows = max(1, _CHUNK // self.size)
        spans = [slice(start, min(self.size, start + rows)) for start in range(0, self.size, rows)]
        if self.size < _WIDE or cores() == 1:
            return [function(span) for span in spans]
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(function, spans))


def _sort(centered: _Centered, moved_n: np.ndarray | None, top: int) -> Rows:
    """Sort the rows of c less ``moved``."""
    size = centered.size
    moved_n = np.zeros(size) if moved_n is None else moved_n
    increments_n = increments(size)
    grid_A = _grid(size, top)
    full = len(grid_A) == size
    atoms_nA = np.empty((size, len(grid_A)))
    weights_nA = increments_n[None, :] if full else np.empty_like(atoms_nA)

    def sort_strip(span: slice) -> tuple[float, float]:
        strip_rn = centered.strip(span, moved_n)
        squares = float(np.square(strip_rn).sum())
        # Smallest first, then read backwards; wide rows in float32, which takes half the time.
        ascending_rn = strip_rn if full else strip_rn.astype(np.float32)
        ascending_rn.sort(axis=1)
        sorted_rn = ascending_rn[:, ::-1].astype(np.float64, order="C")
        if full:
            atoms_nA[span] = sorted_rn
        else:
            atoms_nA[span], weights_nA[span] = _gridded(sorted_rn, increments_n, grid_A)
        return float(np.abs(sorted_rn[:, [0, -1]]).max()), squares

    largest_of, squares_of = zip(*centered.map(sort_strip), strict=True)
    # The statistic is taken less by what ties and rounding could add.
    largest = max(largest_of) * (1.0 if full else 1 + _SINGLE_EPS)
    offsets = float(np.abs(centered.row_n).max() + np.abs(centered.column_n).max() + np.abs(moved_n).max())
    rounding = 4 * size * _EPS * (largest + 2 * offsets)
    if not full:
        rounding += size * (_SINGLE_EPS * largest + _SINGLE_TINY)
    ties = TIE * math.sqrt(sum(squares_of) / (size - 1))
    diagonal_n = np.diagonal(centered.scores_nn) - centered.row_n - (centered.column_n + moved_n)
    statistic = math.fsum(diagonal_n) - rounding - ties
    return Rows(size, statistic, atoms_nA, weights_nA)


@functools.lru_cache(maxsize=16)
def increments(size: int) -> np.ndarray:
    """Return δ_1 … δ_n, rounded up: [n] float64, read-only."""
    k = np.arange(1, size + 1, dtype=np.float64)
    roots_n = np.exp(special.gammaln(k + 1) / k)
    increments_n: np.ndarray = np.diff(roots_n, prepend=0.0) + 16 * _EPS * k * (1 + np.log(k))
    increments_n.setflags(write=False)
    return increments_n


@functools.lru_cache(maxsize=16)
def _grid(size: int, top: int) -> np.ndarray:
    """Return the places of the order statistics kept: the first ``top``, then ever wider to the median and back."""
    if top >= size:
        return np.arange(size)
    places = list(range(max(1, top)))
    step = float(max(1, top))
    while step * _RATIO < size / 2:
        step *= _RATIO
        places.append(int(step))
    step = 1.0
    while step < size / 2:
        places.append(size - int(step))
        step = max(step + 1, step * _RATIO)
    return np.unique([place for place in places if place < size])


def _gridded(sorted_rn: np.ndarray, increments_n: np.ndarray, grid_A: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Put the rows' atoms on a grid: the mass between two order statistics moves to both, its mean kept."""
    # Mass and mean of each block of order statistics.
    atoms_rA = sorted_rn[:, grid_A]
    mass_A = np.add.reduceat(increments_n, grid_A)
    mean_rA = np.add.reduceat(sorted_rn * increments_n[None, :], grid_A, axis=1) / mass_A[None, :]
    upper_rA, lower_rA = atoms_rA[:, :-1], atoms_rA[:, 1:]
    # The part of a block's mass that goes to its upper end, so that the mean is kept.
    width_rA = upper_rA - lower_rA
    up_rA = np.divide(mean_rA[:, :-1] - lower_rA, width_rA, out=np.ones_like(width_rA), where=width_rA > 0)
    up_rA = np.clip(up_rA, 0.0, 1.0) * mass_A[None, :-1]
    weights_rA = np.zeros_like(atoms_rA)
    weights_rA[:, :-1] = up_rA
    weights_rA[:, 1:] += mass_A[None, :-1] - up_rA
    weights_rA[:, -1] += mass_A[-1]  # the last place is the smallest number itself
    return atoms_rA, weights_rA


def _scaling(centered: _Centered, tilt: float) -> np.ndarray:
    """Return w with λw = v: Sinkhorn's column scaling of exp(λc), roughly. Any numbers would be valid."""
    size = centered.size
    kernel_nn = np.empty((size, size), np.float32)

    def exponentiate(span: slice) -> None:
        strip_rn = centered.strip(span, np.zeros(size))
        strip_rn *= tilt
        strip_rn -= strip_rn.max(axis=1, keepdims=True)
        # Wide ones in float32, which is many times as fast.
        strip_rn = strip_rn if size < _WIDE else strip_rn.astype(np.float32)
        kernel_nn[span] = np.exp(np.maximum(strip_rn, -80.0, out=strip_rn), out=strip_rn)

    centered.map(exponentiate)
    column_n: np.ndarray = np.ones(size, np.float32)
    for _ in range(_SCALINGS):
        row_n = 1.0 / (kernel_nn @ column_n)
        column_n = 1.0 / (row_n @ kernel_nn)
        column_n /= np.exp(np.log(column_n).mean())
    moved_n = -np.log(column_n.astype(np.float64)) / tilt
    return np.where(np.isfinite(moved_n), moved_n, 0.0)


def _minimized(groups: Sequence[Rows]) -> tuple[float, float]:
    """Minimize the bound over λ; return it in nats, and its λ: (0, 0) where the statistic is not above its mean."""
    statistic = math.fsum(rows.statistic for rows in groups)
    scale = max(float(np.abs(rows.atoms_nA[:, [0, -1]]).max()) for rows in groups)
    if not (statistic > 0 and scale > 0):
        return 0.0, 0.0
    # Start where the minimum of a normal sum lies.
    variance = sum(float(np.square(rows.atoms_nA).mean()) * rows.size for rows in groups)
    tilt = min(statistic / variance, 100.0 / scale) if variance > 0 else 1.0 / scale
    best, best_tilt = 0.0, 0.0
    value, slope, curvature = _chernoff(groups, statistic, tilt)
    for _ in range(_MAX_STEPS):
        if value < best:
            best, best_tilt = value, tilt
        if curvature <= 0 or not slope * slope > 2 * _ENOUGH * curvature:
            break
        # A Newton step, halved until the bound is no larger than before.
        step = -slope / curvature
        following = max(tilt + step, tilt / 8)
        for _ in range(8):
            after = _chernoff(groups, statistic, following)
            if after[0] <= value:
                break
            following = (tilt + following) / 2
        else:
            break
        tilt, (value, slope, curvature) = following, after
    return best, best_tilt


def _chernoff(groups: Sequence[Rows], statistic: float, tilt: float) -> tuple[float, float, float]:
    """Compute the bound in nats at one λ, rounded up, with its first and second derivative."""
    value, slope, curvature = -tilt * statistic, -statistic, 0.0
    for rows in groups:
        total = largest = 0.0
        step = max(1, _CHUNK // rows.atoms_nA.shape[1])
        for start in range(0, rows.size, step):
            atoms_rA = rows.atoms_nA[start : start + step]
            weights_rA = rows.weights_nA[start : start + step] if len(rows.weights_nA) > 1 else rows.weights_nA
            first_r = atoms_rA[:, 0]
            mass_rA = tilt * (atoms_rA - first_r[:, None])
            np.exp(mass_rA, out=mass_rA)
            mass_rA *= weights_rA
            mass_r = mass_rA.sum(axis=1)
            mean_r = np.einsum("ra,ra->r", mass_rA, atoms_rA) / mass_r
            mass_rA *= atoms_rA
            square_r = np.einsum("ra,ra->r", mass_rA, atoms_rA) / mass_r
            total += float((tilt * first_r + np.log(mass_r)).sum())
            slope += float(mean_r.sum())
            curvature += float(np.maximum(square_r - mean_r**2, 0.0).sum())
            largest = max(largest, float(np.abs(atoms_rA[:, [0, -1]]).max()))
        arrangements = math.lgamma(rows.size + 1)
        rounding = rows.size * (4 * rows.size + 16) * _EPS * (1 + tilt * largest)
        value += total - arrangements + rounding + 16 * _EPS * (abs(total) + arrangements)
    return value + 16 * _EPS * abs(tilt * statistic), slope, curvature
