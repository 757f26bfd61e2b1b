"""The float32 matmul rate of this machine at a model's own shapes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models.operations import linear_shapes


def median_seconds(call: Callable[[], Any], repeats: int = 7) -> float:
    """Median wall time of a call that returns arrays, after one that is not counted."""
    jax.block_until_ready(call())
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(call())
        times.append(time.perf_counter() - start)
    return statistics.median(times)


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
