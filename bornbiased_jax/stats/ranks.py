"""Ranks of outputs over the inputs, and the cross rank-correlation matrix as one product."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import scipy

from bornbiased_jax import hardware
from bornbiased_jax.errors import InputError

# Numbers below which starting threads costs more than it saves.
_WORTH_A_THREAD = 1 << 18
# Columns ranked together: their work arrays stay in a core's cache at N = 10,000.
_COLUMNS = 16


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
    correlation_DE: np.ndarray = unit_ranks(base_ND) @ unit_ranks(suspect_ND).T
    return correlation_DE


def unit_ranks(x_ND: np.ndarray) -> np.ndarray:
    """Return centered ranks scaled to length 1 (a constant coordinate stays zero): [N, D] -> [D, N] float64.

    Columns are ranked on up to 8 cores: NumPy's sorts release the interpreter lock.
    """
    x_ND = np.asarray(x_ND)
    num_inputs, num_columns = x_ND.shape
    ranks_DN = np.empty((num_columns, num_inputs))

    def fill(start: int) -> None:
        # Average ranks of a few columns, about their mean, then scaled; of float64, as SciPy answers in that type.
        columns = slice(start, start + _COLUMNS)
        centered_MN = scipy.stats.rankdata(x_ND[:, columns].T.astype(np.float64), axis=-1) - (num_inputs + 1) / 2
        length_M = np.sqrt(np.einsum("mn,mn->m", centered_MN, centered_MN))
        ranks_DN[columns] = centered_MN / np.where(length_M > 0, length_M, 1.0)[:, None]

    workers = min(8, hardware.cores()) if x_ND.size >= _WORTH_A_THREAD else 1
    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(fill, range(0, num_columns, _COLUMNS)))
    return ranks_DN
