"""The arithmetic of a forward pass, counted from the configuration."""

from __future__ import annotations

import math

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parameters import Parameter, parameter_table


def linear_shapes(cfg: ModelConfig) -> list[tuple[int, int]]:
    """Return the shape [in, out] of every linear map of one block."""
    D, F = cfg.d_model, cfg.d_ff
    query, shared = cfg.num_heads * cfg.key_dim, cfg.kv_heads * cfg.key_dim
    mlp = [(D, F)] * (2 if cfg.gated_mlp else 1) + [(F, D)]
    return [(D, query), (D, shared), (D, shared), (query, D), *mlp]


def needed_operations(cfg: ModelConfig, seq_len: int) -> float:
    """Count the operations needed for the last position's prediction of one sequence.

    Full blocks but for the last one, which needs keys and values of all positions and one query row, one
    output row and one MLP position; causal attention needs half of its square; the head needs one position.
    """
    T, D = seq_len, cfg.d_model
    position, shared, query, block = _of_a_block(cfg, T)
    last = position + T * 2 * D * shared + T * 2 * query
    return 2.0 * ((cfg.num_layers - 1) * block + last + D * cfg.vocab_size)


def loop_operations(cfg: ModelConfig, seq_len: int) -> float:
    """Count the operations of a plain forward pass: every block at all positions, the head at the last one."""
    *_, block = _of_a_block(cfg, seq_len)
    return 2.0 * (cfg.num_layers * block + cfg.d_model * cfg.vocab_size)


def _of_a_block(cfg: ModelConfig, T: int) -> tuple[int, int, int, int]:
    """Count multiplications of a position without keys and values, widths of keys and queries, those of a block."""
    query, shared = (heads * cfg.key_dim * cfg.attention for heads in (cfg.num_heads, cfg.kv_heads))
    rows = [row for row in parameter_table(cfg).values() if row.is_stacked and (row.reads_residual or row.is_writer)]
    position = sum(multiplications(cfg, row) for row in rows if row.group not in ("key", "value"))
    return position, shared, query, T * (position + 2 * cfg.d_model * shared) + T * (T + 1) // 2 * 2 * query


def multiplications(cfg: ModelConfig, matrix: Parameter) -> int:
    """Count the multiplications of one token with a matrix of one block; of experts with those that it chooses."""
    size = math.prod(matrix.block_shape)
    return size // cfg.num_experts * cfg.experts_per_token if cfg.num_experts and matrix.in_expert else size
