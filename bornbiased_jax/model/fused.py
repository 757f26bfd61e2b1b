"""Causal attention as one kernel of the GPU, which never holds a [T, T] array."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

# cuDNN's flash attention needs tensor cores for bfloat16; JAX itself asks for no capability below 9.0.
MIN_CAPABILITY = (8, 0)
HALF = (jnp.bfloat16, jnp.float16)
KERNEL = "dot_product_attention_fwd_wrapper"
"""What JAX calls the kernel's primitive: for rematerialisation policies that keep its result."""


def fused_attention(
    q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, window: int | None = None
) -> jax.Array | None:
    """Compute softmax(Q Kᵀ/√K) V over causal positions by cuDNN; None where its kernel cannot take these arrays.

    It takes bfloat16 and float16 on NVIDIA GPUs of compute capability 8.0 or more, an even number of positions, and
    heads of widths divisible by 8, up to 128 or, from 9.0 on, 256. Everything else belongs to the plain formula.

    Args:
        q_BTHK: queries.
        k_BTGK: keys of the same positions, H divisible by G.
        v_BTGK: values.
        window: how many last positions a query sees; None for all.
    """
    if jax.default_backend() != "gpu" or _capability() < MIN_CAPABILITY:
        return None
    if q_BTHK.dtype not in HALF:
        return None

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        left = None if window is None else (window - 1, 0)
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=left, implementation="cudnn")

    def summed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attend(q, k, v))

    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (q_BTHK, k_BTGK, v_BTGK)]
    try:
        # JAX knows which shapes its kernels take, forward and backward, and says so by raising.
        jax.eval_shape(jax.grad(summed, argnums=(0, 1, 2)), *shapes)
    except (NotImplementedError, RuntimeError, ValueError):
        return None
    return attend(q_BTHK, k_BTGK, v_BTGK)


def keep_products_and_attention(primitive: Any, *arguments: Any, **parameters: Any) -> bool:
    """Store products with weights and fused attention, recompute all else: a rematerialization policy."""
    if primitive.name == KERNEL:
        return True
    return bool(jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *arguments, **parameters))


def _capability() -> tuple[int, ...]:
    """Return the device's compute capability; (0,) where it has none, as on AMD's."""
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    parts = capability.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else (0,)
