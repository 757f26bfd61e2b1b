"""Scores of GhostSpec and SELF for the dispute benchmark: spectra of products inside attention."""

from __future__ import annotations

from collections.abc import Iterator

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage import spectra
from bornbiased_jax.lineage.baselines import Score
from bornbiased_jax.lineage.sheet import STATISTICS
from bornbiased_jax.lineage.spectra import MATRICES, Pair

SPECTRA = {STATISTICS[key].title: values for key, values in spectra.SPECTRA.items()}
"""Scores by name, each with the sorted values of a product that it compares."""


def spectra_scores(base: Checkpoint, suspect: Checkpoint) -> list[Score]:
    """Compare spectra of attention's products: one score for each of :data:`SPECTRA`, undefined without attention."""
    if not (base.config.attention and suspect.config.attention):
        return [Score(name, None, "a model without attention has no products") for name in SPECTRA]
    products = [list(attention_products(model)) for model in (base, suspect)]
    scores = []
    for name, values in SPECTRA.items():
        sorted_values = [
            [(values(query_key), values(value_output)) for query_key, value_output in model] for model in products
        ]
        scores.append(Score(name, spectra.assigned_cosine(*sorted_values)))
    return scores


def attention_products(model: Checkpoint) -> Iterator[Pair]:
    """Yield W_Q W_Kᵀ and W_V W_O of each block, [D, D] both, summed over heads."""
    cfg = model.config
    for block in range(cfg.num_layers):
        kernels = {name: model.read(f"blocks/attention/{name}/kernel", block) for name in MATRICES}
        products = spectra.attention_products(kernels, cfg.num_heads, cfg.kv_heads)
        assert products is not None  # the table of parameters has all four, in widths that fit
        yield products
