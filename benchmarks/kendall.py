"""Exact tau-b of all columns against a loop over SciPy's, and the whole rank-correlation matrix against that loop.

Same machine, one process, taken in turn; the figure is the median of the ratios pair by pair.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.recorded import run
from bornbiased_jax.stats.kendall import tau_b
from bornbiased_jax.stats.ranks import rank_correlation

NUM_INPUTS, COLUMNS = 10_000, 400
# SciPy's loop is timed over this many columns and scaled: its columns cost the same.
TIMED_COLUMNS = 80
TAU_GOAL, MATRIX_GOAL = 3.0, 20.0


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(pairs: int) -> dict[str, Any]:
    """Seconds and ratios, taken in turn so many times."""
    from scipy.stats import kendalltau

    rng = np.random.default_rng(0)
    x, y = (rng.standard_normal((NUM_INPUTS, COLUMNS)).astype(np.float32) for _ in range(2))
    expected = [kendalltau(x[:, j].astype(float), y[:, j].astype(float)).statistic for j in range(8)]
    np.testing.assert_allclose(tau_b(x[:, :8], y[:, :8]), expected, rtol=0, atol=1e-12)
    rank_correlation(x, y)
    loop, ours, matrix = [], [], []
    for _ in range(pairs):
        timed = seconds(lambda: [kendalltau(x[:, j], y[:, j]) for j in range(TIMED_COLUMNS)])
        loop.append(timed * COLUMNS / TIMED_COLUMNS)
        ours.append(seconds(lambda: tau_b(x, y)))
        matrix.append(seconds(lambda: rank_correlation(x, y)))
    tau_ratios = [a / b for a, b in zip(loop, ours, strict=True)]
    # The loop over columns gives 400 numbers; the matrix holds 160,000. Both readings of "faster" are given.
    matrix_ratios = [a / b for a, b in zip(loop, matrix, strict=True)]
    return {
        "num_inputs": NUM_INPUTS,
        "columns": COLUMNS,
        "seconds_scipy_loop": statistics.median(loop),
        "seconds_tau_b": statistics.median(ours),
        "seconds_rank_matrix": statistics.median(matrix),
        "tau_b_speedup_median": statistics.median(tau_ratios),
        "tau_b_speedup_range": [min(tau_ratios), max(tau_ratios)],
        "rank_matrix_speedup_over_columns_median": statistics.median(matrix_ratios),
        "rank_matrix_speedup_over_columns_range": [min(matrix_ratios), max(matrix_ratios)],
        "rank_matrix_speedup_over_entries_median": COLUMNS * statistics.median(matrix_ratios),
        "tau_b_goal": TAU_GOAL,
        "rank_matrix_goal": MATRIX_GOAL,
    }


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    return run(lambda: measure(options.pairs), options.json)


if __name__ == "__main__":
    main()
