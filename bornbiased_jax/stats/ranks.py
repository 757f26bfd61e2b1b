"""Ranks of outputs over the inputs, and the cross rank-correlation matrix as one product."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.errors import InputError

T = TypeVar("T")

# Numbers below which starting threads costs more than it saves.
_WORTH_A_THREAD = 1 << 18
# Columns handled together: sixteen float32 fill a cache line of a row-major matrix, and their work
# arrays stay in a core's cache at N = 10,000.
CHUNK = 16


def matched(base_ND: np.ndarray, suspect_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two matrices of outputs as arrays, if they are finite and have as many rows.

    Raises:
        InputError: they are not matrices, have unequal numbers of inputs, or hold NaN or infinities.
    """
    base_ND, suspect_ND = np.asarray(base_ND), np.asarray(suspect_ND)
    for name, outputs in (("base", base_ND), ("suspect", suspect_ND)):
        if outputs.ndim != 2:
            raise InputError(f"the {name} outputs have shape {outputs.shape}: give [inputs, coordinates]")
        if not np.isfinite(outputs).all():
            raise InputError(f"the {name} outputs hold NaN or infinite numbers: check the model's weights")
    if len(base_ND) != len(suspect_ND):
        raise InputError(f"{len(base_ND)} base outputs against {len(suspect_ND)} of the suspect: use the same inputs")
    return base_ND, suspect_ND


def sortable(x_MN: np.ndarray) -> np.ndarray:
    """Return uint32 codes that sort as the numbers do along the last axis, equal exactly where they are equal.

    float32 and narrower floats are re-read bit by bit; anything else is replaced by its dense ranks.
    """
    x_MN = np.asarray(x_MN)
    if x_MN.dtype.kind == "f" and x_MN.dtype.itemsize <= 4:
        # Adding 0 turns −0 into 0. Positive floats sort as their bits do, negative ones backwards:
        # the arithmetic shift spreads the sign over a mask that flips every bit of a negative one.
        bits_MN = np.add(x_MN, np.float32(0), dtype=np.float32, order="C").view(np.int32)
        mask_MN = bits_MN >> np.int32(31)
        mask_MN |= np.int32(-(1 << 31))
        bits_MN ^= mask_MN
        return bits_MN.view(np.uint32)
    order_MN = np.argsort(x_MN, axis=-1, kind="stable")
    sorted_MN = np.take_along_axis(x_MN, order_MN, axis=-1)
    rank_MN = np.zeros(x_MN.shape, np.uint32)
    np.cumsum(sorted_MN[..., 1:] != sorted_MN[..., :-1], axis=-1, dtype=np.uint32, out=rank_MN[..., 1:])
    codes_MN = np.empty_like(rank_MN)
    np.put_along_axis(codes_MN, order_MN, rank_MN, axis=-1)
    return codes_MN


def packed(high_MN: np.ndarray, low_MN: np.ndarray) -> np.ndarray:
    """Pack two halves into uint64, ``high`` in the upper 32 bits and ``low`` in the lower: one sort orders by both."""
    packed_MN = high_MN.astype(np.uint64)
    packed_MN <<= np.uint64(32)
    packed_MN |= low_MN
    return packed_MN


def high_half(packed_MN: np.ndarray) -> np.ndarray:
    """Return the upper 32 bits."""
    return (packed_MN >> np.uint64(32)).astype(np.uint32)


def low_half(packed_MN: np.ndarray) -> np.ndarray:
    """Return the lower 32 bits."""
    return packed_MN.astype(np.uint32)


def tied_runs(sorted_MN: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Find runs of two or more equal entries in sorted rows: the row, first place and length of each."""
    num_inputs = sorted_MN.shape[1]
    equal_MN = np.zeros(sorted_MN.shape, bool)  # whether an entry equals the one before it in its row
    np.equal(sorted_MN[:, 1:], sorted_MN[:, :-1], out=equal_MN[:, 1:])
    repeats = np.flatnonzero(equal_MN)
    if not len(repeats):
        return repeats, repeats, repeats
    edges = np.flatnonzero(np.diff(repeats) != 1) + 1
    firsts = repeats[np.concatenate([[0], edges])] - 1
    lengths = np.diff(np.concatenate([[0], edges, [len(repeats)]])) + 1
    return firsts // num_inputs, firsts % num_inputs, lengths


def tied_pairs(sorted_MN: np.ndarray) -> np.ndarray:
    """Count pairs of equal entries in each sorted row: [M] int64."""
    rows, _, lengths = tied_runs(sorted_MN)
    pairs_M = np.zeros(len(sorted_MN), np.int64)
    np.add.at(pairs_M, rows, lengths * (lengths - 1) // 2)
    return pairs_M


def in_chunks(work: Callable[[slice], T], num_inputs: int, num_columns: int) -> list[T]:
    """Run ``work`` on every chunk of columns, on up to 8 cores; results come in the order of the chunks.

    NumPy's sorts release the interpreter lock, so that threads are enough. Little work is done in this one.

    Args:
        work: of a slice of columns.
        num_inputs: rows of the whole.
        num_columns: columns of the whole.
    """
    chunks = [slice(start, start + CHUNK) for start in range(0, num_columns, CHUNK)]
    workers = min(8, hardware.cores())
    if workers == 1 or len(chunks) == 1 or num_inputs * num_columns < _WORTH_A_THREAD:
        return [work(chunk) for chunk in chunks]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, chunks))


def _centred_ranks(x_MN: np.ndarray, out_MN: np.ndarray) -> None:
    num_inputs = x_MN.shape[1]
    places_N = np.arange(num_inputs, dtype=np.uint32)
    order_MN = packed(sortable(x_MN), places_N[None, :])
    order_MN.sort(axis=1)
    index_MN = low_half(order_MN)
    middle = (num_inputs - 1) / 2
    centred_N = places_N - middle
    for row, index_N in enumerate(index_MN):
        out_MN[row, index_N] = centred_N
    rows, firsts, lengths = tied_runs(high_half(order_MN))
    if len(rows):
        within = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        tied_rows = np.repeat(rows, lengths)
        out_MN[tied_rows, index_MN[tied_rows, np.repeat(firsts, lengths) + within]] = np.repeat(
            firsts + (lengths - 1) / 2 - middle, lengths
        )


def rank_correlation(base_ND: np.ndarray, suspect_ND: np.ndarray) -> np.ndarray:
    """Compute Spearman's correlation of all base coordinates with all suspect coordinates, as one product.

    Args:
        base_ND: [N, D] finite numbers.
        suspect_ND: [N, E], the same inputs in the same order.

    Returns:
        [D, E] float64 in [-1, 1]; zero in the row or column of a constant coordinate (which treats all
        coordinates alike, so the permutation test stays exact).

    Raises:
        InputError: unequal numbers of inputs, or numbers that are not finite.

    Example:
        >>> base_ND = np.array([[1.0, 5.0], [2.0, 5.0], [9.0, 5.0]])
        >>> suspect_ND = np.array([[10.0, 3.0], [20.0, 1.0], [30.0, 2.0]])
        >>> rank_correlation(base_ND, suspect_ND).round(3).tolist()
        [[1.0, -0.5], [0.0, 0.0]]
    """
    base_ND, suspect_ND = matched(base_ND, suspect_ND)
    return unit_ranks(base_ND) @ unit_ranks(suspect_ND).T


def unit_ranks(x_ND: np.ndarray) -> np.ndarray:
    """Return centred ranks scaled to length 1 (a constant coordinate stays zero): [N, D] -> [D, N] float64."""
    x_ND = np.asarray(x_ND)
    ranks_DN = np.empty(x_ND.shape[::-1])

    def fill(columns: slice) -> None:
        part_MN = ranks_DN[columns]
        _centred_ranks(x_ND[:, columns].T, part_MN)
        length_M = np.sqrt(np.einsum("mn,mn->m", part_MN, part_MN))
        part_MN /= np.where(length_M > 0, length_M, 1.0)[:, None]

    in_chunks(fill, *x_ND.shape)
    return ranks_DN
