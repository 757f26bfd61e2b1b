"""The certified bound on permutation sums: its figures at given z and width, and what it takes.

    python -m benchmarks bound --json benchmarks/results/bound.json

Scores are Gaussian noise with as much of the identity as puts their trace z standard deviations out. Next to the bound
stand the normal tail, which is no p, and the floor 1/D!. Seconds are those of the processor.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from benchmarks.recorded import Findings, command, timed
from benchmarks.tables import entries
from bornbiased_jax.stats.bound import tail_bound
from bornbiased_jax.stats.permutations import moments
from bornbiased_jax.stats.tails import LN10, log_normal_sf

WIDTHS, DISTANCES = (96, 768, 4096), (10.0, 30.0, 87.0)


def at_distance(noise_nn: np.ndarray, z: float) -> np.ndarray:
    """Add a multiple of the identity to the noise, so that its trace lies z standard deviations from its mean.

    With t of the identity the trace exceeds its mean by a + t(n − 1), and its variance is v + 2tb + t²: a the excess of
    the noise, b its doubly centered trace over n − 1. The t asked for solves a quadratic equation.
    """
    size = len(noise_nn)
    mean, variance = (float(moment) for moment in moments(noise_nn))
    excess = float(np.trace(noise_nn)) - mean
    # Var of the trace is ‖centered‖² / (n − 1); the centered identity has norm² n − 1 and inner product ``excess``.
    slope, cross = size - 1.0, excess / (size - 1.0)
    a, b, c = slope**2 - z**2, excess * slope - z**2 * cross, excess**2 - z**2 * variance
    if not a > 0:
        raise ValueError(f"{size} labels cannot lie {z} standard deviations out")
    t = (-b + math.sqrt(b * b - a * c)) / a
    return noise_nn + np.diag(np.full(size, t, noise_nn.dtype))


def measure(widths: tuple[int, ...] = WIDTHS) -> Findings:
    """Measure the certified bound on permutation sums at every width and distance.

    Args:
        widths: Numbers of labels, separated by commas.
    """
    rows = []
    for size in widths:
        noise_nn = np.random.default_rng(0).standard_normal((size, size))
        for z in DISTANCES:
            scores_nn = at_distance(noise_nn, z)
            scaled = timed(functools.partial(tail_bound, scores_nn))
            rows.append(
                {
                    "width": size,
                    "z": z,
                    "log10_p_bound_scaled": scaled.result,
                    "log10_p_normal": log_normal_sf(z) / LN10,
                    "log10_floor": -math.lgamma(size + 1) / LN10,
                    "cpu_s_scaled": scaled.cpu_s,
                }
            )
    return {"rows": rows}


tables = functools.partial(
    entries,
    title="log10 p of a sum over permutations of D labels",
    each="rows",
    columns={
        "D": "{width:integer}",
        "z": "{z:fixed:0}",
        "certified": "{log10_p_bound_scaled:fixed:1}",
        "normal tail (no p)": "{log10_p_normal:fixed:1}",
        "1/D!": "{log10_floor:fixed:1}",
        "seconds of processor time": "{cpu_s_scaled:fixed:2}",
    },
)

main = functools.partial(command, measure, precision="float64")
