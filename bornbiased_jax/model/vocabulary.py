"""Where tokens enter the residual stream and where logits leave it: the one place that knows embeddings and heads."""

from __future__ import annotations

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.layers import Norm
from bornbiased_jax.parameters import Params

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)


def enter(cfg: ModelConfig, rows_BTD: ArrayT, positions_TD: ArrayT | None) -> ArrayT:
    """Make the input of the first block from rows of the token table and of the table of positions.

    Args:
        cfg: the architecture.
        rows_BTD: rows of the token table, or vectors in their place.
        positions_TD: rows of the table of learned positions; None where there is none.
    """
    if cfg.embedding_scale != 1.0:
        rows_BTD = rows_BTD * rows_BTD.dtype.type(cfg.embedding_scale)
    return rows_BTD if positions_TD is None else rows_BTD + positions_TD[None]


def final_norm(cfg: ModelConfig, params: Params, stream: jax.Array) -> jax.Array:
    """Apply the final norm to the residual stream after the last block."""
    final: Any = Norm(cfg.norm, cfg.norm_eps).apply({"params": params.get("final_norm", {})}, stream)
    return final


def head_path(cfg: ModelConfig) -> str:
    """Return the path of the matrix that makes logits: [D, V], or the embedding [V, D] where the two are tied."""
    return "embed/embedding" if cfg.tie_embeddings else "head/kernel"


def head_table(cfg: ModelConfig, params: Params) -> tuple[jax.Array, int]:
    """Return the matrix that makes logits, and which of its axes is the width D: [D, V] untied, [V, D] tied."""
    module, leaf = head_path(cfg).split("/")
    return params[module][leaf], 1 if cfg.tie_embeddings else 0


def logits_of(cfg: ModelConfig, params: Params, final: jax.Array, *, precision: Any = "highest") -> jax.Array:
    """Project outputs of the final norm [..., D] on the vocabulary [..., V] (Equation 1), float32."""
    table, axis = head_table(cfg, params)
    dims = (((final.ndim - 1,), (axis,)), ((), ()))
    logits = jax.lax.dot_general(
        final, table.astype(final.dtype), dims, precision=precision, preferred_element_type=jnp.float32
    )
    return soft_cap(logits, cfg.logit_softcap)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Bound values smoothly to ±cap: cap · tanh(x / cap); None leaves them as they are."""
    return x if cap is None else cap * jnp.tanh(x / cap)
