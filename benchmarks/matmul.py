"""The float32 matmul rate of this machine at a model's own shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.memory import linear_shapes


def median_seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    """Return the median wall time of a call that returns arrays, after one that is not counted."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def matmul_rate(cfg: ModelConfig, rows: int, precision: jax.lax.PrecisionLike = "highest") -> float:
    """Measure floating-point operations per second of the block's own products at ``rows`` rows, float32."""
    product = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    operations = seconds = 0.0
    for a, b in operands(cfg, rows):
        seconds += median_seconds(lambda a=a, b=b: product(a, b))
        operations += 2.0 * a.size * b.shape[1]
    return operations / seconds


def product_error(cfg: ModelConfig, precision: jax.lax.PrecisionLike, rows: int = 64) -> float:
    """Return the largest ‖C − exact‖ / ‖exact‖ of the block's own products in float32, the exact ones in float64."""
    errors = []
    for a, b in operands(cfg, rows):
        exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
        product = np.asarray(jnp.matmul(a, b, precision=precision), np.float64)
        errors.append(float(np.linalg.norm(product - exact) / np.linalg.norm(exact)))
    return max(errors)


def operands(cfg: ModelConfig, rows: int) -> Iterator[tuple[jax.Array, jax.Array]]:
    """Draw normal matrices of the shapes that a block multiplies at ``rows`` rows."""
    rng = np.random.default_rng(0)
    for fan_in, fan_out in linear_shapes(cfg):
        a = jnp.asarray(rng.standard_normal((rows, fan_in), np.float32))
        yield a, jnp.asarray(rng.standard_normal((fan_in, fan_out), np.float32))
