"""The float32 matmul rate of this machine at a model's own shapes."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.memory import kernels

CALLS, REPEATS = 4, 3
ProductShape = tuple[int, int, int]
"""(m, k, n) of a product [m, k] × [k, n]."""


def rate_of(
    products: Mapping[ProductShape, int], dtype: str = "float32", precision: jax.lax.PrecisionLike = "highest"
) -> float:
    """Measure floating-point operations per second of products (m, k, n), each as often as it counts, on one device."""
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, precision=precision))
    operations = seconds = 0.0
    for (m, k, n), count in products.items():
        a, b = (operand.astype(dtype) for operand in operands(m, k, n))
        multiply(a, b).block_until_ready()
        times = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            # Queued, so that a GPU's launches are hidden as they are within a program.
            jax.block_until_ready([multiply(a, b) for _ in range(CALLS)])
            times.append((time.perf_counter() - start) / CALLS)
        operations += 2.0 * m * k * n * count
        seconds += statistics.median(times) * count
    return operations / seconds


def linear_shapes(cfg: ModelConfig) -> list[tuple[int, int]]:
    """Return the shape [in, out] of every linear map of one block."""
    return [(row.block_shape[-2], row.block_shape[-1]) for row in kernels(cfg)]


def matmul_rate(cfg: ModelConfig, rows: int, precision: jax.lax.PrecisionLike = "highest") -> float:
    """Measure floating-point operations per second of the block's own products at ``rows`` rows, float32."""
    return rate_of(Counter((rows, *shape) for shape in linear_shapes(cfg)), precision=precision)


def product_error(cfg: ModelConfig, precision: jax.lax.PrecisionLike) -> float:
    """Return the largest ‖C − exact‖ / ‖exact‖ of the block's own products in float32, the exact ones in float64."""
    errors = []
    for fan_in, fan_out in linear_shapes(cfg):
        a, b = operands(64, fan_in, fan_out)
        exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
        product = np.asarray(jnp.matmul(a, b, precision=precision), np.float64)
        errors.append(float(np.linalg.norm(product - exact) / np.linalg.norm(exact)))
    return max(errors)


def operands(m: int, k: int, n: int) -> tuple[jax.Array, jax.Array]:
    """Draw normal matrices [m, k] and [k, n]."""
    rng = np.random.default_rng(0)
    return (
        jnp.asarray(rng.standard_normal((m, k), np.float32)),
        jnp.asarray(rng.standard_normal((k, n), np.float32)),
    )
