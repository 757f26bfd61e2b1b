"""Kendall's tau-b, exact, for all columns at once; and its cross matrix from sign differences.

Counting discordant pairs is counting inversions. One column at a time in a compiled loop
(``scipy.stats.kendalltau``) leaves wide vector units idle, so here the inversions of many columns
are counted together: short blocks by comparing every pair, then blocks of doubling size by one sort
each. Everything counted is an integer, so the result is exact.
"""

from __future__ import annotations

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.stats.ranks import high_half, in_chunks, low_half, matched, packed, sortable, tied_pairs

# 231 = 22 · 21 / 2 comparisons of a block of 22 still fit a byte-wide counter.
_MAX_BLOCK = 22


def tau_b(base_NM: np.ndarray, suspect_NM: np.ndarray) -> np.ndarray:
    """Compute Kendall's tau-b of column j of one matrix with column j of the other, exactly.

    Equals ``scipy.stats.kendalltau(base[:, j], suspect[:, j]).statistic`` to rounding of the last
    division, ties included.

    Args:
        base_NM: [N, M] finite numbers; N inputs, M columns.
        suspect_NM: [N, M], the same inputs in the same order.

    Returns:
        [M] float64 in [-1, 1]; NaN where one of the two columns is constant or N < 2.

    Raises:
        InputError: the shapes differ, or a number is not finite.

    Example:
        >>> base_NM = np.array([[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]])
        >>> suspect_NM = np.array([[1.0, 9.0], [2.0, 8.0], [4.0, 7.0], [3.0, 6.0]])
        >>> tau_b(base_NM, suspect_NM).round(3).tolist()
        [0.667, -1.0]
    """
    base_NM, suspect_NM = matched(base_NM, suspect_NM)
    num_inputs, num_columns = base_NM.shape
    if base_NM.shape != suspect_NM.shape:
        raise InputError(f"tau needs two matrices of one shape, not {base_NM.shape} and {suspect_NM.shape}")
    if num_inputs < 2 or num_columns == 0:
        return np.full(num_columns, np.nan)
    score = lambda columns: _tau_rows(base_NM[:, columns].T, suspect_NM[:, columns].T)  # noqa: E731
    return np.concatenate(in_chunks(score, num_inputs, num_columns))


def _tau_rows(x_MN: np.ndarray, y_MN: np.ndarray) -> np.ndarray:
    """Compute tau-b row by row. Rows are contiguous here because sorts run along them."""
    num_inputs = x_MN.shape[1]
    # Sorting (x, y) leaves y in the order of x, with ties in x ordered by y, so that pairs tied in x
    # are never counted as discordant (Knight, 1966).
    by_x_MN = packed(sortable(x_MN), sortable(y_MN))
    by_x_MN.sort(axis=1)
    # Sorting (y, place) leaves a permutation of the places whose inversions are the discordant pairs;
    # ties in y keep the order of their places, so they add none.
    by_y_MN = packed(low_half(by_x_MN), np.arange(num_inputs, dtype=np.uint32)[None, :])
    by_y_MN.sort(axis=1)
    ties_x_M, ties_y_M = tied_pairs(high_half(by_x_MN)), tied_pairs(high_half(by_y_MN))
    either = ties_x_M.any() and ties_y_M.any()
    ties_xy_M = tied_pairs(by_x_MN) if either else np.zeros_like(ties_x_M)
    discordant_M = inversions(low_half(by_y_MN))
    total = num_inputs * (num_inputs - 1) // 2
    excess_M = total - ties_x_M - ties_y_M + ties_xy_M - 2 * discordant_M
    scale_M = np.sqrt((total - ties_x_M).astype(np.float64)) * np.sqrt((total - ties_y_M).astype(np.float64))
    return np.divide(excess_M, scale_M, out=np.full(len(scale_M), np.nan), where=scale_M > 0)


def inversions(order_MN: np.ndarray) -> np.ndarray:
    """Count pairs i < k with order[i] > order[k], row by row.

    Args:
        order_MN: [M, N] integers; each row a permutation of 0 … N−1.

    Returns:
        [M] int64.
    """
    # Cut rows into 2^levels blocks of equal length.
    num_rows, num_inputs = order_MN.shape
    levels = max(0, int(np.ceil(np.log2(num_inputs / _MAX_BLOCK)))) if num_inputs > 1 else 0
    num_blocks = 1 << levels
    block = -(-num_inputs // num_blocks)
    padded = block * num_blocks
    wide = padded.bit_length() + levels > 32
    order = np.empty((num_rows, padded), np.uint64 if wide else np.uint32)
    order[:, :num_inputs] = order_MN
    # The padding is largest and last: it adds no inversion.
    order[:, num_inputs:] = np.arange(num_inputs, padded, dtype=order.dtype)[None, :]
    count_M = _within_blocks(order.reshape(num_rows, num_blocks, block))
    # The low bits hold the block an entry began in; sorting by rank merges two neighbouring blocks.
    blocks = np.repeat(np.arange(num_blocks, dtype=order.dtype), block)
    keys = (order << order.dtype.type(levels)) | blocks[None, :]
    for level in range(levels):
        half = block << level
        keys = keys.reshape(-1, 2 * half)
        keys.sort(axis=1)
        came_from_right = (keys & keys.dtype.type(1 << level)) != 0
        # If the r-th entry of the right half is merged to place t, half − (t − r) entries of the left
        # half exceed it; summed over r that needs only the sum of t. float64 is exact far beyond it.
        places = came_from_right.astype(np.float64) @ np.arange(2 * half, dtype=np.float64)
        crossed = half * half + half * (half - 1) // 2 - places.astype(np.int64)
        count_M += crossed.reshape(num_rows, -1).sum(axis=1)
    return count_M


def _within_blocks(order_MGb: np.ndarray) -> np.ndarray:
    """Count inversions inside short blocks, every pair compared: [M, blocks, at most 22] -> [M] int64."""
    block = order_MGb.shape[-1]
    narrow = np.uint16 if order_MGb.shape[1] * block <= 1 << 16 else np.uint32
    order_bMG = np.ascontiguousarray(order_MGb.transpose(2, 0, 1).astype(narrow))
    count_MG = np.zeros(order_bMG.shape[1:], np.uint8)
    for shift in range(1, block):
        greater = order_bMG[:-shift] > order_bMG[shift:]
        count_MG += greater.view(np.uint8).sum(axis=0, dtype=np.uint8)
    return count_MG.sum(axis=1, dtype=np.int64)


def cross_kendall(
    base_ND: np.ndarray, suspect_ND: np.ndarray, *, num_pairs: int | None = None, seed: int = 0
) -> np.ndarray:
    """Compute Kendall's tau-b of all base columns with all suspect columns: one product of sign differences.

    With all pairs of inputs it is tau-b; with a random subset of pairs it is the incomplete
    U-statistic for it, and its error falls as one over the root of the number of pairs.

    Args:
        base_ND: [N, D] finite numbers.
        suspect_ND: [N, E], the same inputs in the same order.
        num_pairs: how many pairs of inputs, drawn without replacement from rounds in which every
            input meets one other at most; ``None`` takes all N(N−1)/2.
        seed: of the drawing of pairs.

    Returns:
        [D, E] float64; zero in the row or column of a constant coordinate.

    Raises:
        InputError: unequal numbers of inputs, numbers that are not finite, or ``num_pairs`` < 1.
    """
    base_ND, suspect_ND = matched(base_ND, suspect_ND)
    num_inputs = len(base_ND)
    product_DE = np.zeros((base_ND.shape[1], suspect_ND.shape[1]))
    untied_D, untied_E = np.zeros(base_ND.shape[1]), np.zeros(suspect_ND.shape[1])
    for first, second in _pair_chunks(num_inputs, num_pairs, seed):
        # float32 holds the integers of one chunk exactly; the running sums are float64.
        x = np.sign(base_ND[first] - base_ND[second], dtype=np.float32)
        y = np.sign(suspect_ND[first] - suspect_ND[second], dtype=np.float32)
        product_DE += x.T @ y
        untied_D += np.count_nonzero(x, axis=0)
        untied_E += np.count_nonzero(y, axis=0)
    scale_DE = np.sqrt(untied_D)[:, None] * np.sqrt(untied_E)[None, :]
    return np.divide(product_DE, scale_DE, out=product_DE, where=scale_DE > 0)


def _pair_chunks(num_inputs: int, num_pairs: int | None, seed: int):
    """Yield index arrays (first, second) of pairs of inputs, at most 65,536 pairs at a time."""
    total = num_inputs * (num_inputs - 1) // 2
    if num_pairs is not None and num_pairs < 1:
        raise InputError(f"num_pairs={num_pairs} is not a number of pairs of at least 1")
    if num_pairs is None or num_pairs >= total:
        first, second = np.triu_indices(num_inputs, 1)
        for start in range(0, total, 1 << 16):
            yield first[start : start + (1 << 16)], second[start : start + (1 << 16)]
        return
    # Pairs at distance s on a shuffled circle: distinct rounds s share no pair, so none repeats.
    rng = np.random.default_rng(seed)
    shuffled = rng.permutation(num_inputs)
    left = num_pairs
    for distance in rng.permutation(np.arange(1, num_inputs // 2 + 1)):
        partner = np.roll(shuffled, -int(distance))
        count = num_inputs // 2 if 2 * distance == num_inputs else num_inputs
        count = min(count, left)
        for start in range(0, count, 1 << 16):
            stop = min(count, start + (1 << 16))
            yield shuffled[start:stop], partner[start:stop]
        left -= count
        if left == 0:
            return
