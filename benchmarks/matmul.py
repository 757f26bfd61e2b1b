"""The float32 matmul rate of this machine at a model's own shapes, and the operations a probe needs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig


def median_seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    """Median wall time of a call that returns arrays, after one that is not counted."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def linear_shapes(cfg: ModelConfig) -> list[tuple[int, int]]:
    """[in, out] of every linear map of one block."""
    D, F = cfg.d_model, cfg.d_ff
    query, shared = cfg.num_heads * cfg.key_dim, cfg.kv_heads * cfg.key_dim
    mlp = [(D, F)] * (2 if cfg.gated_mlp else 1) + [(F, D)]
    return [(D, query), (D, shared), (D, shared), (query, D), *mlp]


def matmul_rate(cfg: ModelConfig, rows: int) -> float:
    """Floating-point operations per second of the block's own products at ``rows`` rows, float32."""
    rng = np.random.default_rng(0)
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision="highest"))
    operations = seconds = 0.0
    for fan_in, fan_out in linear_shapes(cfg):
        a = jnp.asarray(rng.standard_normal((rows, fan_in), np.float32))
        b = jnp.asarray(rng.standard_normal((fan_in, fan_out), np.float32))
        seconds += median_seconds(lambda a=a, b=b: product(a, b))
        operations += 2.0 * rows * fan_in * fan_out
    return operations / seconds


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
    D, F = cfg.d_model, cfg.d_ff
    query, shared = cfg.num_heads * cfg.key_dim, cfg.kv_heads * cfg.key_dim
    position = 2 * D * query + (3 if cfg.gated_mlp else 2) * D * F
    return position, shared, query, T * (position + 2 * D * shared) + T * (T + 1) // 2 * 2 * query
