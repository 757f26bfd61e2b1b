"""Where a block's time goes: each piece alone, beside the time of its products at the measured rate.

Pieces run alone and one at a time; in a sweep, what does not fill all cores overlaps with another shard's
products, so the pieces add up to more than the sweep takes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.matmul import matmul_rate, median_seconds
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models import init_seed
from bornbiased_jax.models.attention import Attention, visible
from bornbiased_jax.models.mlp import MLP
from bornbiased_jax.models.norm import Norm
from bornbiased_jax.models.rope import rotate


def pieces(cfg: ModelConfig, batch_size: int, seq_len: int) -> dict[str, dict[str, float]]:
    """Milliseconds of each piece of the first block, and of its products alone at the matmul rate."""
    B, T, D, H, K = batch_size, seq_len, cfg.d_model, cfg.num_heads, cfg.key_dim
    first = jax.tree.map(lambda leaf: leaf[0], init_seed(cfg, 0)["blocks"])
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    rate = matmul_rate(cfg, B * T)
    seen = sum((rows.stop - rows.start) * (cols.stop - cols.start) for rows, cols in visible(T, T, cfg.window))
    attention = 2.0 * B * (T * 2 * D * (H + cfg.kv_heads) * K + 2 * seen * H * K)
    mlp = 2.0 * B * T * D * cfg.d_ff * (3 if cfg.gated_mlp else 2)
    positions_T = jnp.arange(T)
    calls: dict[str, tuple[Callable[..., Any], tuple[jax.Array, ...], float]] = {
        "attention": (
            lambda x: Attention(cfg).apply({"params": first["attention"]}, x, positions_T)[0],  # type: ignore[index]
            (normal(B, T, D),),
            attention,
        ),
        "of it, softmax of the square": (jax.nn.softmax, (normal(B, H, T, T),), 0.0),
        "of it, rotation of queries": (lambda q: rotate(q, positions_T, cfg), (normal(B, T, H, K),), 0.0),
        "MLP": (
            lambda x: MLP(cfg).apply({"params": first["mlp"]}, x)[0],  # type: ignore[index]
            (normal(B, T, D),),
            mlp,
        ),
        "of it, activation": (lambda g, u: jax.nn.silu(g) * u, (normal(B, T, cfg.d_ff), normal(B, T, cfg.d_ff)), 0.0),
        "a norm": (
            lambda x: Norm(cfg.norm, cfg.norm_eps).apply({"params": first["mlp_norm"]}, x),
            (normal(B, T, D),),
            0.0,
        ),
    }
    found = {}
    for name, (call, arguments, operations) in calls.items():
        compiled = jax.jit(call)
        seconds = median_seconds(lambda compiled=compiled, arguments=arguments: compiled(*arguments))
        found[name] = {"milliseconds": 1e3 * seconds, "products_alone": 1e3 * operations / rate}
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the pieces at the sizes of the sweep benchmark."""
    from benchmarks.sweep_vs_torch import LENGTH, model

    print(json.dumps(pieces(model(), 8, LENGTH), indent=2))


if __name__ == "__main__":
    main()
