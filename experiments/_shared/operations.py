"""What forward passes cost."""

from __future__ import annotations

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.training.throughput import flops_per_token


def of_sequence(cfg: ModelConfig, seq_len: int, *, head: bool) -> float:
    """Count operations of one sequence through all blocks, and the head at its last position where asked."""
    of_head = 2.0 * cfg.d_model * cfg.vocab_size
    # A trained token needs three times its forward pass, with the head at every position.
    position = flops_per_token(cfg, seq_len) / 3 - of_head
    return seq_len * position + (of_head if head else 0.0)
