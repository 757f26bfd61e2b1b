"""Probed models: untrained ones, many seeds of one configuration, or one model with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parallel import on_host
from bornbiased_jax.parameters import Params

EMBEDDING_SEED = 0


class ProbedModel(NamedTuple):
    """Untrained models of a configuration, or one model with its weights."""

    cfg: ModelConfig
    fixed_embedding_seed: int | None
    weights: Params | None
    embedding_mean: float
    embedding_std: float
    description: Mapping[str, object]
    reference: str | None = None
    """Under which other processes open the same weights, where they can."""


def untrained(cfg: ModelConfig, *, fixed_embedding_seed: int | None = EMBEDDING_SEED) -> ProbedModel:
    """Return untrained models. With ``fixed_embedding_seed`` all share embeddings and head (Appendix B.2).

    Example:
        >>> from bornbiased_jax.config import preset
        >>> untrained(preset("gpt2-tiny")).embedding_std
        0.02
    """
    about = {"model": cfg.to_dict(), "fixed_embedding_seed": fixed_embedding_seed}
    return ProbedModel(cfg, fixed_embedding_seed, None, 0.0, cfg.embedding_std, about)


def from_weights(cfg: ModelConfig, params: Params, digest: str, reference: str | None = None) -> ProbedModel:
    """Return one model with its weights; the seed is ignored. Other processes need its ``reference``."""
    table = np.asarray(on_host(params["embed"]["embedding"]), np.float32)
    about = {"model": cfg.to_dict(), "weights": digest}
    return ProbedModel(cfg, None, params, float(table.mean()), float(table.std()), about, reference)
