"""Spectra of products inside attention, as GhostSpec (2511.06390) and SELF (2512.03620) take them.

Of each block the two products that no change of basis inside a head moves, W_Q W_Kᵀ and W_V W_O, heads summed and
grouped keys and values repeated. A rotation R of the residual stream makes Rᵀ M R of a product M, which keeps its
singular values (GhostSpec) and its eigenvalues (SELF adds them). Here two models are compared by the cosine of sorted
values, which orders pairs as the mean squared difference of spectra of unit norm does; blocks are assigned so that the
sum is largest, so that depths may differ.

Products are never larger than they must be: heads that share keys or values are summed first, so that a product has the
rank of its narrower factor, and its eigenvalues and singular values are those of a matrix of that size (of L R those of
R L, and of R₁ R₂ᵀ with the triangular factors of both). All is in float32, and singular values of large matrices are
the roots of the eigenvalues of a Gram matrix, in a third of the time. That moves the cosine of two spectra by less than
1e-5 where they are alike, and by up to 0.002 between a matrix of rank one and a flat spectrum.

Not run: GhostSpec's penalty for gaps in the alignment of blocks and its threshold, and SELF's network, which
was trained to tell fingerprints of related models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy
from scipy import linalg
from scipy.linalg import blas

MATRICES = ("query", "key", "value", "output")
"""What the products of a block are made of."""

SPECTRA = ("ghostspec", "self")
"""Methods that compare the sorted values of a product, by their keys in the sheet: singular values and eigenvalues."""

MatrixPair = tuple[np.ndarray, np.ndarray]


class Factors(NamedTuple):
    """A product of two matrices: ``left_DC`` [D, C] times ``right_CD`` [C, D]."""

    left_DC: np.ndarray
    right_CD: np.ndarray


# Up to this side singular values of a matrix are computed directly.
_DIRECT = 1024


def attention_factors(
    kernels: Mapping[str, np.ndarray], num_heads: int, num_kv_heads: int
) -> tuple[Factors, Factors] | None:
    """Return W_Q W_Kᵀ and W_V W_O of one block as products, summed over heads.

    Args:
        kernels: :data:`MATRICES` by name: [D, heads · width] of the first three, [heads · width, D] of the last.
        num_heads: of queries.
        num_kv_heads: of keys and values.

    Returns:
        float64. None where a matrix is missing or the widths of heads do not fit together.
    """
    if not kernels.keys() >= set(MATRICES) or num_heads % num_kv_heads:
        return None
    group = num_heads // num_kv_heads
    pairs = (kernels["query"], kernels["key"]), (kernels["output"].T, kernels["value"])
    factors = []
    for of_heads, of_groups in pairs:
        width, columns = of_groups.shape
        if columns % num_kv_heads or of_heads.shape != (width, columns * group):
            return None
        # Each key and value serves the heads of its group, which add up: a factor with the columns of the groups.
        heads_DGHK = of_heads.reshape(width, num_kv_heads, group, columns // num_kv_heads)
        factors.append((heads_DGHK.sum(axis=2, dtype=np.float64).reshape(width, columns), of_groups.astype(np.float64)))
    (query_DC, key_DC), (output_DC, value_DC) = factors
    return Factors(query_DC, key_DC.T), Factors(value_DC, output_DC.T)


def product_spectra(factors: Factors) -> dict[str, np.ndarray]:
    """Compute the values that each of :data:`SPECTRA` sorts, of a product in factors: [D] by key."""
    width, rank = factors.left_DC.shape
    left_DC, right_CD = (factor.astype(np.float32) for factor in factors)
    # The smaller of both products has all eigenvalues that are not zero.
    square_rr = right_CD @ left_DC if rank < width else left_DC @ right_CD
    eigenvalues_r = np.sort(np.abs(linalg.eigvals(square_rr, check_finite=False)))[::-1]
    if rank < width:
        # Orthogonal factors keep singular values: what is left of L R are the triangular ones.
        triangles = [linalg.qr(factor, mode="r", check_finite=False)[0][:rank] for factor in (left_DC, right_CD.T)]
        square_rr = triangles[0] @ triangles[1].T
    values = {"ghostspec": singular_values(square_rr), "self": eigenvalues_r}
    return {key: np.pad(values_r, (0, width - len(values_r))) for key, values_r in values.items()}


def singular_values(matrix: np.ndarray) -> np.ndarray:
    """Compute the singular values of a float32 matrix, largest first: [shorter side]."""
    values: np.ndarray
    if max(matrix.shape) <= _DIRECT:
        values = linalg.svdvals(matrix)
        return values
    short = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    # The lower half of the Gram matrix, without a copy of either layout.
    is_by_columns = short.flags.f_contiguous
    gram_nn = blas.ssyrk(1.0, short if is_by_columns else short.T, trans=0 if is_by_columns else 1, lower=1)
    squares_n = linalg.eigvalsh(gram_nn, lower=True, driver="evr", overwrite_a=True, check_finite=False)
    values = np.sqrt(np.maximum(squares_n[::-1], 0))
    return values


def assigned_cosine(base: Sequence[MatrixPair], suspect: Sequence[MatrixPair]) -> float:
    """Average the cosine of two kinds of spectra over blocks that are assigned to one another.

    Args:
        base: of each block the sorted values of both products, [D] each; at least one block.
        suspect: the same of the other model.
    """
    total_LL = np.zeros((len(base), len(suspect)))
    for kind in range(2):
        first, second = ([block[kind] for block in model] for model in (base, suspect))
        # The largest values of both, where widths differ.
        size = min(len(first[0]), len(second[0]))
        first_LD, second_LD = (_unit(np.stack([row[:size] for row in rows])) for rows in (first, second))
        total_LL += first_LD @ second_LD.T / 2
    return float(total_LL[scipy.optimize.linear_sum_assignment(total_LL, maximize=True)].mean())


def _unit(rows_LD: np.ndarray) -> np.ndarray:
    norms_L1 = np.linalg.norm(rows_LD, axis=1, keepdims=True)
    unit_LD: np.ndarray = rows_LD / np.where(norms_L1 > 0, norms_L1, 1)
    return unit_LD
