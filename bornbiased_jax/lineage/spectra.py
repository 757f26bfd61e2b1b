"""Spectra of products inside attention, as GhostSpec (2511.06390) and SELF (2512.03620) take them.

Of each block the two products that no change of basis inside a head moves, W_Q W_Kᵀ and W_V W_O, heads summed and
grouped keys and values repeated. A rotation R of the residual stream makes Rᵀ M R of a product M, which keeps its
singular values (GhostSpec) and its eigenvalues (SELF adds them). Here two models are compared by the cosine of sorted
values, which orders pairs as the mean squared difference of spectra of unit norm does; blocks are assigned so that the
sum is largest, so that depths may differ.

Not run: GhostSpec's penalty for gaps in the alignment of blocks and its threshold, and SELF's network, which
was trained to tell fingerprints of related models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import linalg
from scipy.optimize import linear_sum_assignment

MATRICES = ("query", "key", "value", "output")
"""What the products of a block are made of."""

SPECTRA: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "ghostspec": linalg.svdvals,
    "self": lambda product_DD: np.sort(np.abs(linalg.eigvals(product_DD)))[::-1],
}
"""By key in the sheet, the sorted values of a product that a method compares."""

Pair = tuple[np.ndarray, np.ndarray]


def attention_products(kernels: Mapping[str, np.ndarray], num_heads: int, num_kv_heads: int) -> Pair | None:
    """Return W_Q W_Kᵀ and W_V W_O of one block, [D, D] both, summed over heads.

    Args:
        kernels: :data:`MATRICES` by name: [D, heads · width] of the first three, [heads · width, D] of the last.
        num_heads, num_kv_heads: of queries, and of keys and values.

    Returns:
        None where a matrix is missing or the widths of heads do not fit together.
    """
    if not kernels.keys() >= set(MATRICES) or num_heads % num_kv_heads:
        return None
    full = {name: kernels[name].astype(np.float64) for name in MATRICES}
    # Each key and value serves the queries of its group.
    for name in ("key", "value"):
        width, columns = full[name].shape
        if columns % num_kv_heads:
            return None
        heads_DGK = full[name].reshape(width, num_kv_heads, columns // num_kv_heads)
        full[name] = heads_DGK.repeat(num_heads // num_kv_heads, axis=1).reshape(width, -1)
    if full["query"].shape != full["key"].shape or full["value"].shape[1] != full["output"].shape[0]:
        return None
    return full["query"] @ full["key"].T, full["value"] @ full["output"]


def assigned_cosine(base: Sequence[Pair], suspect: Sequence[Pair]) -> float:
    """Average the cosine of two kinds of spectra over blocks that are assigned to one another.

    Args:
        base, suspect: of each block the sorted values of both products, [D] each; at least one block.
    """
    total_LL = np.zeros((len(base), len(suspect)))
    for kind in range(2):
        first, second = ([block[kind] for block in model] for model in (base, suspect))
        # The largest values of both, where widths differ.
        size = min(len(first[0]), len(second[0]))
        first_LD, second_LD = (_unit(np.stack([row[:size] for row in rows])) for rows in (first, second))
        total_LL += first_LD @ second_LD.T / 2
    return float(total_LL[linear_sum_assignment(total_LL, maximize=True)].mean())


def _unit(rows_LD: np.ndarray) -> np.ndarray:
    unit_LD: np.ndarray = rows_LD / np.maximum(np.linalg.norm(rows_LD, axis=1, keepdims=True), 1e-300)
    return unit_LD
