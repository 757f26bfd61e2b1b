"""Sums over random relabelings: Σ_j R[j, π(j)], its exact moments and its permutations.

Every exact test of lineage has this form: R holds the agreement of label i of one model with label j of the
other, the statistic is the trace, and under the null the true labeling is a uniform draw among all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bornbiased_jax import progress

# Up to 8! = 40,320 labelings are enumerated, not drawn.
ENUMERATED_WIDTH = 8
# Sums that differ by rounding only, this part of a standard deviation, are ties, and a tie counts against rejection.
TIE = 1e-9
_CHUNK = 1 << 16
# Of the histogram: its ends in standard deviations, and its number of bins.
_FARTHEST, _BINS = 8.0, 64
NUM_PERMUTATIONS = 9_999
"""Permutations that a verdict draws unless more are asked for."""
SHOWN = 100_000
"""Permutations from which on their drawing is shown: a small alpha asks for many."""


def moments(cross_DD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute mean and variance of Σ_j R[j, π(j)] over all permutations π, exactly.

    The mean is ΣR/D; the variance is Σr²/(D−1) with r the doubly centered R (Hoeffding, 1951).

    Args:
        cross_DD: [..., D, D].

    Returns:
        Two arrays [...].

    Example:
        >>> mean, variance = moments(np.eye(4))
        >>> float(mean), float(variance)
        (1.0, 1.0)
    """
    width = cross_DD.shape[-1]
    by_row_D1 = cross_DD.mean(axis=-1, keepdims=True, dtype=np.float64)
    by_column_1D = cross_DD.mean(axis=-2, keepdims=True, dtype=np.float64)
    overall_11 = by_row_D1.mean(axis=-2, keepdims=True)
    squares = np.zeros(cross_DD.shape[:-2])
    # Some rows at a time: a wide layer's matrix is never copied whole.
    step = max(1, _CHUNK // width)
    for start in range(0, width, step):
        rows = slice(start, start + step)
        centered_rD = cross_DD[..., rows, :] - by_row_D1[..., rows, :] - (by_column_1D - overall_11)
        squares += np.square(centered_rD).sum(axis=(-2, -1))
    return overall_11[..., 0, 0] * width, squares / max(1, width - 1)


def permutations(width: int, count: int, *, seed: int, group: int = 0) -> Iterator[np.ndarray]:
    """Draw uniform random permutations in batches: arrays [≤ 2048, D] of integers, fewer at a time where they are wide.

    Each row is the order of D independent random numbers, sorted together with their index in one
    64-bit word (a tie among the random bits has probability below D²/2^(64 − log2 D)). Only the raw
    stream of the generator is used, which NumPy promises never to change.

    Args:
        width: D.
        count: how many.
        seed: of the stream.
        group: number of the group of labels; groups have independent streams.
    """
    bits = max(1, (width - 1).bit_length())
    mask = np.uint64((1 << bits) - 1)
    stream = np.random.PCG64DXSM(np.random.SeedSequence([0x5EED, seed, group] if group else [0x5EED, seed]))
    batch = max(1, min(2048, (1 << 22) // width))
    for start in range(0, count, batch):
        rows = min(batch, count - start)
        words = stream.random_raw(rows * width).reshape(rows, width)
        words &= ~mask
        words |= np.arange(width, dtype=np.uint64)[None, :]
        words.sort(axis=1)
        words &= mask
        yield words.view(np.int64)


def all_permutations(width: int) -> np.ndarray:
    """Return every permutation of 0 … D−1: [D!, D]."""
    return np.array(list(itertools.permutations(range(width))), np.int64).reshape(-1, width)


def permuted_sums(cross_DD: np.ndarray, permutations_PD: np.ndarray) -> np.ndarray:
    """Compute Σ_j R[j, π(j)] for each permutation: [..., D, D] and [P, D] -> [..., P] float64.

    Gathers run within a few rows of R at a time, which fit a near cache at any width.
    """
    width = cross_DD.shape[-1]
    sums_P = np.zeros((*cross_DD.shape[:-2], len(permutations_PD)))
    step = max(1, _CHUNK // width)
    for start in range(0, width, step):
        rows_rD = cross_DD[..., start : start + step, :]
        places_Pr = permutations_PD[:, start : start + step] + width * np.arange(rows_rD.shape[-2])
        scores_Pr = np.take(rows_rD.reshape(*cross_DD.shape[:-2], -1), places_Pr, axis=-1)
        sums_P += scores_Pr.sum(axis=-1, dtype=np.float64)
    return sums_P


def drawn_sums(cross_DD: np.ndarray, num_permutations: int, *, seed: int, group: int = 0) -> np.ndarray:
    """Compute Σ_j R[j, π(j)] of random permutations: [..., D, D] -> [..., P] float64."""
    sums = [np.zeros((*cross_DD.shape[:-2], 0))]
    few = num_permutations < SHOWN
    batches = permutations(cross_DD.shape[-1], num_permutations, seed=seed, group=group)
    with (
        progress.bar(num_permutations, "permutations", unit="permutations", quiet=few) as advance,
        ThreadPoolExecutor(1) as pool,
    ):
        # One batch is summed while the next one is drawn.
        following = pool.submit(next, batches, None)
        while (permutations_PD := following.result()) is not None:
            following = pool.submit(next, batches, None)
            sums.append(permuted_sums(cross_DD, permutations_PD))
            advance(len(permutations_PD))
    return np.concatenate(sums, axis=-1)


def histogram(sums_P: np.ndarray, mean: float, std: float) -> dict[str, object]:
    """Count permuted sums in standard deviations from their mean, for a figure: 64 bins from −8 to 8.

    What lies outside is counted in the outermost bins.

    Returns:
        ``low``, ``high`` and ``counts``, JSON-ready.
    """
    standard_P = np.clip((sums_P - mean) / std, -_FARTHEST, _FARTHEST)
    counts = np.histogram(standard_P, bins=_BINS, range=(-_FARTHEST, _FARTHEST))[0]
    return {"low": -_FARTHEST, "high": _FARTHEST, "counts": counts.tolist()}
