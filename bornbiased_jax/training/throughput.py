"""Count the arithmetic of a trained token, and measure how fast this machine trains and multiplies matrices."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.memory import kernels, multiplications, seen_keys

# Of so many laps, or in so many seconds, the fastest is known: a small model's products need no more time.
_LAPS, _SECONDS = 100, 0.15


def flops_per_token(cfg: ModelConfig, context: int) -> float:
    """Count the floating-point operations of one trained token, forward and backward.

    Six for every weight of a matrix that multiplies (not the embedding, which is looked up; the head once),
    and for attention 12·L·H·K·(T + 1)/2: each query meets (T + 1)/2 keys on average
    (fewer in layers with a window). Norms, activations,
    softmax and recomputation are not counted.
    """
    # Matrices of all blocks, of a mixture of experts those that a token meets.
    blocks = cfg.num_layers * sum(multiplications(cfg, row) for row in kernels(cfg))
    head = cfg.d_model * cfg.vocab_size
    attention = 12 * cfg.num_heads * cfg.key_dim * sum(seen_keys(cfg, context)) / context if cfg.attention else 0.0
    return 6.0 * (blocks + head) + attention


def matmul_peak(cfg: ModelConfig, rows: int, dtype: DTypeLike) -> float:
    """Measure the operations a second of the fastest of the model's own matrix products on one device.

    Products are [rows, D] × [D, F] and [rows, D] × [D, V], at the precision of training.
    """
    # The products of an MLP and of the head, in the types of training.
    dtype = jnp.dtype(dtype)
    precision = "highest" if dtype == jnp.float32 else "default"
    multiply = jax.jit(lambda a, b: jnp.dot(a, b, precision=precision))
    rows = min(rows, 8192)
    best = 0.0
    for width in {cfg.d_ff, min(cfg.vocab_size, 8192)}:
        left, right = jnp.ones((rows, cfg.d_model), dtype), jnp.ones((cfg.d_model, width), dtype)
        multiply(left, right).block_until_ready()
        start, fastest, laps = time.perf_counter(), math.inf, 0
        while laps < _LAPS and time.perf_counter() - start < _SECONDS:
            # Four products in flight, so that dispatch is not what is measured.
            before = time.perf_counter()
            for _ in range(4):
                out = multiply(left, right)
            out.block_until_ready()
            fastest = min(fastest, (time.perf_counter() - before) / 4)
            laps += 1
        best = max(best, 2.0 * rows * cfg.d_model * width / fastest)
    return best


class TrainingClock:
    """The rate of training: tokens over the time in which their steps ran.

    Times run from :meth:`start`, or from the step before, to :meth:`count_step`; what happens in :meth:`paused`
    (evaluation, a checkpoint) is left out.

    Args:
        tokens_per_step: of all seeds.
        flops_per_token: operations that a token needs.
        peak: operations a second of all devices, as products alone reach them; 0 where it was not measured.
    """

    def __init__(self, tokens_per_step: int, flops_per_token: float = 0.0, peak: float = 0.0) -> None:
        self._per_step, self._flops_per_token, self._peak = tokens_per_step, flops_per_token, peak
        self._mark = time.perf_counter()
        self._steps, self._seconds = 0, 0.0
        self._lap = (0, 0.0)

    def start(self) -> None:
        """Begin to train."""
        self._mark = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of other work than training."""
        begin = time.perf_counter()
        yield
        self._mark += time.perf_counter() - begin

    def count_step(self) -> None:
        """Count a step whose numbers are on the host, and the time since the one before or the start."""
        now = time.perf_counter()
        self._seconds += now - self._mark
        self._steps += 1
        self._mark = now

    @property
    def rate(self) -> float | None:
        """Tokens a second over all steps; None before the first."""
        return self._rate(self._steps, self._seconds) if self._steps else None

    def lap(self) -> float:
        """Return tokens a second over the steps since the last call; at least one was counted."""
        steps, seconds = self._lap
        self._lap = (self._steps, self._seconds)
        return self._rate(self._steps - steps, self._seconds - seconds)

    @property
    def peak_fraction(self) -> float | None:
        """Needed operations a second over the measured peak; None before the first step.

        At most 1: what training reaches, products reach too, and a lower peak was measured in a busy moment.
        """
        if self.rate is None or not self._peak:
            return None
        return min(1.0, self.rate * self._flops_per_token / self._peak)

    def _rate(self, steps: int, seconds: float) -> float:
        return steps * self._per_step / max(seconds, 1e-9)
