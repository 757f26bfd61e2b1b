"""Kendall's tau-b: of each column with its counterpart, and of all with all from sign differences."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy

from bornbiased_jax.errors import InputError
from bornbiased_jax.stats.ranks import matched


def tau_b(base_NM: np.ndarray, suspect_NM: np.ndarray) -> np.ndarray:
    """Compute Kendall's tau-b of column j of one matrix with column j of the other, ties included.

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
    if base_NM.shape != suspect_NM.shape:
        raise InputError(f"tau needs two matrices of one shape, not {base_NM.shape} and {suspect_NM.shape}")
    if len(base_NM) < 2:
        return np.full(base_NM.shape[1], np.nan)
    # In float64: SciPy answers in the precision of its arguments.
    columns = zip(base_NM.T.astype(np.float64), suspect_NM.T.astype(np.float64), strict=True)
    return np.array([scipy.stats.kendalltau(x_N, y_N).statistic for x_N, y_N in columns], np.float64)


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
    # In float64, in which differences of unsigned integers, and of numbers below float32's least, have a sign.
    base_ND, suspect_ND = (outputs.astype(np.float64) for outputs in matched(base_ND, suspect_ND))
    num_inputs = len(base_ND)
    product_DE = np.zeros((base_ND.shape[1], suspect_ND.shape[1]))
    untied_D, untied_E = np.zeros(base_ND.shape[1]), np.zeros(suspect_ND.shape[1])
    for first, second in _pair_chunks(num_inputs, num_pairs, seed):
        # float32 holds the integers of one chunk exactly; the running sums are float64.
        x, y = (np.sign(x_ND[first] - x_ND[second]).astype(np.float32) for x_ND in (base_ND, suspect_ND))
        product_DE += x.T @ y
        untied_D += np.count_nonzero(x, axis=0)
        untied_E += np.count_nonzero(y, axis=0)
    scale_DE = np.sqrt(untied_D)[:, None] * np.sqrt(untied_E)[None, :]
    np.divide(product_DE, scale_DE, out=product_DE, where=scale_DE > 0)
    return product_DE


def _pair_chunks(num_inputs: int, num_pairs: int | None, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
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
