"""Sums over nested permutations: groups are permuted, and the members inside each paired group.

Query heads that share a key/value head are such labels: S(π, σ) = Σ_g Σ_i R[(g, i), (π(g), σ_g(i))], with π a
permutation of G groups and σ_g one of r members for each. The group has G!·(r!)^G elements. With a permanent for each
pair of groups the bound of :mod:`.bound` applies twice: E exp(λS) = E_π Π_g E_σ exp(λ Σ_i R[(g, i), (π(g), σ(i))]) is
a permanent over G! of permanents over r!, and Brègman and Minc bound either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy

from bornbiased_jax.stats.bound import increments
from bornbiased_jax.stats.permutations import moments, permutations
from bornbiased_jax.stats.tails import LN10

_EPS = float(np.finfo(np.float64).eps)


def log_order(num_groups: int, group_size: int) -> float:
    """Return ln(G!·(r!)^G), the logarithm of the number of nested permutations.

    Example:
        >>> round(math.exp(log_order(3, 2)))
        48
    """
    return math.lgamma(num_groups + 1) + num_groups * math.lgamma(group_size + 1)


def nested_moments(scores_HH: np.ndarray, num_groups: int) -> tuple[float, float]:
    """Compute mean and variance of the sum over all nested permutations, exactly.

    Args:
        scores_HH: [G·r, G·r]; label h is in group h // r.
        num_groups: G.
    """
    blocks_GGrr = _blocks(scores_HH, num_groups)
    size = blocks_GGrr.shape[-1]
    # Given π, every pair of groups has a mean and a variance of its own.
    mean_GG = blocks_GGrr.sum(axis=(-2, -1)) / size
    mean, variance = (float(moment) for moment in moments(mean_GG))
    inside_GG = moments(blocks_GGrr)[1]
    return mean, variance + float(inside_GG.sum()) / num_groups


def nested_sums(scores_HH: np.ndarray, num_groups: int, num_permutations: int, *, seed: int, group: int) -> np.ndarray:
    """Compute the sum under random nested permutations: [P] float64.

    Args:
        scores_HH: [G·r, G·r].
        num_groups: G.
        num_permutations: how many.
        seed: of the permutations.
        group: number of the group of labels; groups have independent streams.
    """
    blocks_GGrr = _blocks(scores_HH, num_groups)
    size = blocks_GGrr.shape[-1]
    # Streams: one for the groups, and one for the members of each.
    first = group * (num_groups + 1)
    outer_PG = _random_permutations(num_groups, num_permutations, seed, first)
    sums_P = np.zeros(num_permutations)
    rows_r = np.arange(size)
    for place in range(num_groups):
        inner_Pr = _random_permutations(size, num_permutations, seed, first + 1 + place)
        sums_P += blocks_GGrr[place, outer_PG[:, place, None], rows_r[None, :], inner_Pr].sum(axis=1)
    return sums_P


def nested_bound(matrices: Sequence[np.ndarray], num_groups: int) -> float:
    """Bound log₁₀ P(S ≥ observed) over nested permutations, independent for each matrix; at most 0.

    Args:
        matrices: [G·r, G·r] scores each.
        num_groups: G.
    """
    terms = []
    for scores_HH in matrices:
        centered_HH = np.asarray(scores_HH, np.float64)
        centered_HH = centered_HH - centered_HH.mean(axis=0) - centered_HH.mean(axis=1)[:, None] + centered_HH.mean()
        terms.append(_blocks(centered_HH, num_groups))
    statistic = math.fsum(float(np.einsum("ggii->", blocks_GGrr)) for blocks_GGrr in terms)
    scale = max(float(np.abs(blocks_GGrr).max()) for blocks_GGrr in terms)
    if not (statistic > 0 and scale > 0):
        return 0.0
    # Rounding: the statistic is taken less, every sum of exponentials more.
    count = sum(blocks_GGrr.shape[0] * blocks_GGrr.shape[-1] for blocks_GGrr in terms)
    statistic -= 16 * count * _EPS * scale

    def value(log_tilt: float) -> float:
        tilt = math.exp(log_tilt)
        rounding = 64 * count**2 * _EPS * (1 + tilt * scale)
        # ln E exp(S) of each term is bounded by permanents over groups of permanents over their members.
        log_means = [float(_log_permanents(_log_permanents(tilt * blocks_GGrr))) for blocks_GGrr in terms]
        return float(-tilt * statistic + sum(log_means) + rounding)

    # Any λ is valid: the search only has to come near the best.
    low, high = math.log(1e-3 / scale), math.log(1e3 / scale)
    best = scipy.optimize.minimize_scalar(value, bounds=(low, high), method="bounded", options={"xatol": 1e-3})
    return min(0.0, float(best.fun) / LN10)


def _log_permanents(blocks: np.ndarray) -> np.ndarray:
    """Bound ln(permanent of exp(block) / n!) of every block: [..., n, n] -> [...]."""
    size = blocks.shape[-1]
    weights_n = increments(size)

    def by_rows(oriented: np.ndarray) -> np.ndarray:
        sorted_rows = -np.sort(-oriented, axis=-1)
        first = sorted_rows[..., :1]
        logs = first[..., 0] + np.log((np.exp(sorted_rows - first) * weights_n).sum(axis=-1))
        return np.asarray(logs.sum(axis=-1))

    least: np.ndarray = np.minimum(by_rows(blocks), by_rows(np.swapaxes(blocks, -1, -2)))
    return least - math.lgamma(size + 1)


def _blocks(scores_HH: np.ndarray, num_groups: int) -> np.ndarray:
    """View scores of labels as scores of members by pair of groups: [G·r, G·r] -> [G, G, r, r]."""
    size = len(scores_HH) // num_groups
    return np.asarray(scores_HH, np.float64).reshape(num_groups, size, num_groups, size).transpose(0, 2, 1, 3)


def _random_permutations(size: int, count: int, seed: int, group: int) -> np.ndarray:
    return np.concatenate(list(permutations(size, count, seed=seed, group=group)))
