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

from collections.abc import Callable, Iterator

import numpy as np
from scipy import linalg
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.baselines import Score

SPECTRA: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "GhostSpec (spectra of products)": linalg.svdvals,
    "SELF (eigenvalues of products)": lambda product_DD: np.sort(np.abs(linalg.eigvals(product_DD)))[::-1],
}
"""Scores by name, each with the sorted values of a product that it compares."""


def spectra_scores(base: Checkpoint, suspect: Checkpoint) -> list[Score]:
    """Compare spectra of attention's products: one score for each of :data:`SPECTRA`, undefined without attention."""
    if not (base.config.attention and suspect.config.attention):
        return [Score(name, None, "a model without attention has no products") for name in SPECTRA]
    products = [list(attention_products(model)) for model in (base, suspect)]
    return [_score(name, values, *products) for name, values in SPECTRA.items()]


def attention_products(model: Checkpoint) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield W_Q W_Kᵀ and W_V W_O of each block, [D, D] both, summed over heads."""
    cfg = model.config
    repeats = cfg.num_heads // cfg.kv_heads
    for block in range(cfg.num_layers):
        kernels = {
            name: model.read(f"blocks/attention/{name}/kernel", block).astype(np.float64)
            for name in ("query", "key", "value", "output")
        }
        # Each key and value serves the queries of its group.
        for name in ("key", "value"):
            heads_DGK = kernels[name].reshape(cfg.d_model, cfg.kv_heads, cfg.key_dim)
            kernels[name] = heads_DGK.repeat(repeats, axis=1).reshape(cfg.d_model, -1)
        yield kernels["query"] @ kernels["key"].T, kernels["value"] @ kernels["output"]


def _score(
    name: str,
    values: Callable[[np.ndarray], np.ndarray],
    base: list[tuple[np.ndarray, np.ndarray]],
    suspect: list[tuple[np.ndarray, np.ndarray]],
) -> Score:
    """Average the cosine of two kinds of spectra over blocks that are assigned to one another."""
    total_LL = np.zeros((len(base), len(suspect)))
    for kind in range(2):
        first, second = ([values(products[kind]) for products in model] for model in (base, suspect))
        # The largest values of both, where widths differ.
        size = min(len(first[0]), len(second[0]))
        first_LD, second_LD = (_unit(np.stack([row[:size] for row in rows])) for rows in (first, second))
        total_LL += first_LD @ second_LD.T / 2
    return Score(name, float(total_LL[linear_sum_assignment(total_LL, maximize=True)].mean()))


def _unit(rows_LD: np.ndarray) -> np.ndarray:
    unit_LD: np.ndarray = rows_LD / np.maximum(np.linalg.norm(rows_LD, axis=1, keepdims=True), 1e-300)
    return unit_LD
