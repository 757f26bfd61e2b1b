"""The arithmetic of a forward pass, counted from the configuration."""

from __future__ import annotations

from bornbiased_jax.config import ModelConfig


def linear_shapes(cfg: ModelConfig) -> list[tuple[int, int]]:
    """[in, out] of every linear map of one block."""
    D, F = cfg.d_model, cfg.d_ff
    query, shared = cfg.num_heads * cfg.key_dim, cfg.kv_heads * cfg.key_dim
    mlp = [(D, F)] * (2 if cfg.gated_mlp else 1) + [(F, D)]
    return [(D, query), (D, shared), (D, shared), (query, D), *mlp]


def needed_operations(cfg: ModelConfig, seq_len: int) -> float:
    """Operations that the last position's prediction of one sequence cannot do without.

    Full blocks but for the last one, which needs keys and values of all positions and one query row, one
    output row and one MLP position; causal attention needs half of its square; the head needs one position.
    """
    T, D = seq_len, cfg.d_model
    position, shared, query, every = _of_a_block(cfg, T)
    last = position + T * 2 * D * shared + T * 2 * query
    return 2.0 * ((cfg.num_layers - 1) * every + last + D * cfg.vocab_size)


def loop_operations(cfg: ModelConfig, seq_len: int) -> float:
    """Operations of a plain forward pass of one sequence: every block at all positions, the head at the last one."""
    *_, every = _of_a_block(cfg, seq_len)
    return 2.0 * (cfg.num_layers * every + cfg.d_model * cfg.vocab_size)


def _of_a_block(cfg: ModelConfig, T: int) -> tuple[int, int, int, int]:
    """Multiplications: of one position without keys and values; widths of keys and of queries; of a whole block."""
    D, F = cfg.d_model, cfg.d_ff if cfg.mlp else 0
    query, shared = (heads * cfg.key_dim * cfg.attention for heads in (cfg.num_heads, cfg.kv_heads))
    position = 2 * D * query + (3 if cfg.gated_mlp else 2) * D * F
    return position, shared, query, T * (position + 2 * D * shared) + T * (T + 1) // 2 * 2 * query
