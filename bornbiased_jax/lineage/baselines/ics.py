"""HuRef ICS (Zeng et al., 2024): six products of weights that no rotation inside the model changes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.baselines.score import Score, pearson, score
from bornbiased_jax.parameters import Params

PUBLISHED_TOKENS = 4096
PUBLISHED_BLOCKS = 2


def rare_tokens(vocab_size: int) -> np.ndarray:
    """Return the 4096 largest ids: in vocabularies numbered by frequency or merge order, the rarest tokens.

    The published list is the rarest of a frequency list, which is not published; give your own ids
    where a vocabulary is numbered otherwise.
    """
    return np.arange(max(0, vocab_size - PUBLISHED_TOKENS), vocab_size)


def invariants(cfg: ModelConfig, params: Params, token_ids: np.ndarray) -> Iterator[np.ndarray]:
    """Yield M_a, M_b, M_f of the last two blocks, [X, X] each with X tokens, one at a time.

    M_a = X W_qᵀ W_k Xᵀ, M_b = X W_vᵀ W_oᵀ Xᵀ and M_f = X (W_gᵀ ∘ W_uᵀ) W_dᵀ Xᵀ (without a gate
    X W_uᵀ W_dᵀ Xᵀ) in [out, in] layout; X are the tokens' embeddings. Grouped key and value heads are
    repeated head by head for the queries of their group.
    """
    x_XD = np.asarray(params["embed"]["embedding"])[token_ids].astype(np.float32)
    for layer in range(cfg.num_layers - PUBLISHED_BLOCKS, cfg.num_layers):
        if cfg.attention:
            attention = params["blocks"]["attention"]
            query = x_XD @ np.asarray(attention["query"]["kernel"][layer], np.float32)
            yield query @ (x_XD @ _repeated(cfg, np.asarray(attention["key"]["kernel"][layer], np.float32))).T
            value = x_XD @ _repeated(cfg, np.asarray(attention["value"]["kernel"][layer], np.float32))
            yield value @ np.asarray(attention["output"]["kernel"][layer], np.float32) @ x_XD.T
        if cfg.mlp:
            mlp = params["blocks"]["mlp"]
            up_DF = np.asarray(mlp["up"]["kernel"][layer], np.float32)
            if cfg.gated_mlp:
                up_DF = up_DF * np.asarray(mlp["gate"]["kernel"][layer], np.float32)
            yield x_XD @ up_DF @ np.asarray(mlp["down"]["kernel"][layer], np.float32) @ x_XD.T


def _repeated(cfg: ModelConfig, kernel: np.ndarray) -> np.ndarray:
    """Repeat each key or value head next to itself for the queries of its group: [D, G·K] -> [D, H·K]."""
    heads_DGK = kernel.reshape(len(kernel), cfg.kv_heads, cfg.key_dim)
    return heads_DGK.repeat(cfg.num_heads // cfg.kv_heads, axis=1).reshape(len(kernel), -1)


def ics(
    base_cfg: ModelConfig,
    base: Params,
    suspect_cfg: ModelConfig,
    suspect: Params,
    *,
    token_ids: np.ndarray | None = None,
) -> Score:
    """Compute the cosine of the stacked, z-scored invariants of the last two blocks of both models.

    Each matrix being z-scored, the cosine of the stack is the mean of the matrices' correlations; one
    matrix of each model is held at a time.

    Args:
        base_cfg: the architecture of one model, of two blocks or more.
        base: its weights.
        suspect_cfg: the architecture of the other; width and depth may differ.
        suspect: its weights.
        token_ids: rows of the embedding; :func:`rare_tokens` of the smaller vocabulary by default.

    Raises:
        InputError: an id outside a vocabulary, or fewer than two ids.
    """
    smaller = min(base_cfg.vocab_size, suspect_cfg.vocab_size)
    token_ids = rare_tokens(smaller) if token_ids is None else np.asarray(token_ids)
    if len(token_ids) < 2 or token_ids.min() < 0 or token_ids.max() >= smaller:
        raise InputError(f"ICS needs two or more token ids from 0 to {smaller - 1}: change the list")
    # Undefined where the invariants of the two models do not correspond.
    if (base_cfg.attention, base_cfg.mlp) != (suspect_cfg.attention, suspect_cfg.mlp):
        return Score("ics", None, "the two models have different kinds of sublayers")
    if base_cfg.num_experts is not None or suspect_cfg.num_experts is not None:
        return Score("ics", None, "a mixture of experts has no one product of up and down")
    if min(base_cfg.num_layers, suspect_cfg.num_layers) < PUBLISHED_BLOCKS:
        return Score("ics", None, f"a model has fewer than {PUBLISHED_BLOCKS} blocks")
    # The cosine of the z-scored stack is the mean of the correlations of its matrices.
    correlations = [
        pearson(base_matrix, suspect_matrix)
        for base_matrix, suspect_matrix in zip(
            invariants(base_cfg, base, token_ids),
            invariants(suspect_cfg, suspect, token_ids),
            strict=True,
        )
    ]
    return score("ics", float(np.mean(correlations)), num_tokens=len(token_ids), num_matrices=len(correlations))
