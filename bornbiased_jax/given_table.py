"""The top-1 token's fraction over seeds that share one embedding table, one head and one table of positions.

What theory says of a given head (``theory.given_head``), for the tables of a configuration: what all inputs of every
seed have in common is the last position's row and the mean of the token table.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import numpy as np

from bornbiased_jax import hardware, keys
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import FIXABLE, distribution, draw
from bornbiased_jax.model.limits import check_length
from bornbiased_jax.model.model import head_path
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.prediction import check_room, one_blas_thread, stack_of
from bornbiased_jax.theory.given_head import NODES, Direction, fractions_given_head
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import contraction, independent_inputs, last_token_fraction, scatter
from bornbiased_jax.theory.stack import Stack


class Given(NamedTuple):
    """Of seeds that share their tables, JSON-ready: the mean fraction, and the band that holds 80% of them."""

    mean: float
    p10: float
    p90: float


def fixed_tables(cfg: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Return the tables that initializations with ``fixed_embedding_seed=seed`` share, by path, bit by bit.

    Example:
        >>> from bornbiased_jax.config import preset
        >>> sorted(fixed_tables(preset("gpt2-tiny", vocab_size=8, d_model=16, num_heads=2), 0))
        ['embed/embedding']
    """
    source = keys.stream_key(seed, "embedding")
    return {
        path: np.asarray(draw(keys.leaf_key(source, path), row.shape, distribution(cfg, row)))
        for path, row in parameter_table(cfg).items()
        if path.startswith(FIXABLE)
    }


def top1_given_table(cfg: ModelConfig, seq_len: int, num_inputs: int, seed: int, *, tokens: bool = True) -> Given:
    """Predict the fraction's mean and 80% band over seeds whose initial weights share the tables of one seed.

    Args:
        cfg: the architecture.
        seq_len: T.
        num_inputs: N, inputs a seed.
        seed: of the shared tables (``--embedding-seed``).
        tokens: inputs are uniform random tokens; else Gaussian vectors.

    Raises:
        InputError: what theory refuses, sequences that are too long, or tables that do not fit.
    """
    cells = cfg.vocab_size * (2 * cfg.d_model + 6 * NODES)
    hardware.check_memory(8.0 * cells, f"a table of {cfg.vocab_size:,} tokens", "leave --theory out", on_host=True)
    stack = stack_of(cfg, tokens=tokens)
    check_length(cfg, seq_len)
    check_room(cfg, seq_len)
    try:
        with one_blas_thread():
            return _top1(cfg, stack, seq_len, num_inputs, seed, tokens)
    except ValueError as error:
        raise InputError(f"theory cannot predict this: {error}") from error


def _top1(cfg: ModelConfig, stack: Stack, seq_len: int, num_inputs: int, seed: int, tokens: bool) -> Given:
    with jax.default_matmul_precision("highest"):
        tables = fixed_tables(cfg, seed)
    mean_field = profile(stack, seq_len)
    cosine = contraction(mean_field)
    # Head rows of unit variance.
    head = tables[head_path(cfg)]
    variance = float(mean_field.variance[-1, -1])
    if not head.any() or variance == 0:
        # Of equal logits the first token's is taken, for every input.
        return Given(1.0, 1.0, 1.0)
    head_VD = head if cfg.tie_embeddings else head.T
    head_VD = head_VD / head_VD.std()
    rho, rho_std = float(np.clip(cosine.mean[-1], 0.0, 1.0)), float(cosine.seed_std[-1])
    # The part of the last state that all inputs share.
    common_D = np.zeros(cfg.d_model)
    if tokens:
        common_D = cfg.embedding_scale * tables["embed/embedding"].mean(axis=0, dtype=np.float64)
    if cfg.positions == "learned":
        common_D = common_D + tables["positions/embedding"][seq_len - 1]
    part = 0.0
    if cfg.residual and rho > 0:
        part = min(1.0, math.sqrt(float(common_D @ common_D) / cfg.d_model / (rho * variance)))
    # With tied embeddings the last token raises its own logit.
    is_tied = cfg.tie_embeddings and tokens
    own_fraction = last_token_fraction(mean_field, rho, cfg.vocab_size) if is_tied else 0.0
    counted = independent_inputs(mean_field, rho, num_inputs, own_fraction) or num_inputs
    fractions = fractions_given_head(
        head_VD, Direction(common_D, part), rho, rho_std, scatter(mean_field), counted, own_fraction=own_fraction
    )
    # Quantiles of a count of inputs are such counts.
    low, high = np.round(np.quantile(fractions, [0.1, 0.9], method="inverted_cdf") * num_inputs) / num_inputs
    return Given(float(fractions.mean()), float(low), float(high))
