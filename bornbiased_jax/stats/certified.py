"""The p that a verdict uses: counted over permutations, and below their reach a proven bound.

Draw B permutations. If any reaches the observed sum, p = (1 + #)/(B + 1); if none does, p is the smaller of
1/(B + 1) and the bound of :mod:`.bound`. Valid: at levels of 1/(B + 1) and more it rejects exactly where the
count does, and below them only where the bound does. The normal tail of z is no p: it passes below 1/n!, and is
too small well above it where labels differ in scale.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np

from bornbiased_jax.stats import tails
from bornbiased_jax.stats.bound import checked_scores, joint_bound, sorted_rows
from bornbiased_jax.stats.permutations import (
    ENUMERATED_WIDTH,
    NUM_PERMUTATIONS,
    TIE,
    all_permutations,
    drawn_sums,
    histogram,
    moments,
    permuted_sums,
)


@dataclasses.dataclass(frozen=True)
class Certified:
    """A sum over labels against its permutations.

    Attributes:
        p_value: what a verdict uses; may round to 0 where ``log10_p`` is still finite. NaN, as all that follows
            from it, where every labeling gives the same sum.
        log10_p: base 10, of the same.
        log10_p_bound: the certified bound, at most 0.
        log10_p_moments: the normal tail of z, no less than log₁₀ Π 1/n!: a description, not a p.
        z: the statistic's distance from its mean in its standard deviations, over all permutations.
        statistic, mean, std: the observed sum and its exact moments over all permutations.
        num_permutations: drawn, or n! where all were enumerated.
        exceedances: how many of them reach the observed sum (the identity among them where enumerated).
        enumerated: whether every labeling was counted.
        histogram: of the permuted sums (:func:`.permutations.histogram`); None where they are all one.
    """

    p_value: float
    log10_p: float
    log10_p_bound: float
    log10_p_moments: float
    z: float
    statistic: float
    mean: float
    std: float
    num_permutations: int
    exceedances: int
    enumerated: bool
    histogram: Mapping[str, object] | None = None


def certify_sums(
    statistic: float,
    mean: float,
    std: float,
    sums_P: np.ndarray,
    log10_p_bound: float,
    *,
    log_order: float,
    enumerated: bool = False,
) -> Certified:
    """Certify the p of a sum from its permuted sums and, beyond their reach, a bound.

    Args:
        statistic: the observed sum.
        mean: of the sum over all permutations.
        std: of the sum over all permutations.
        sums_P: the sum under each permutation.
        log10_p_bound: the certified bound on the tail at the statistic.
        log_order: natural logarithm of the number of permutations.
        enumerated: whether ``sums_P`` holds every permutation once.
    """
    exceedances = int((sums_P >= statistic - TIE * std).sum())
    p_value = exceedances / len(sums_P) if enumerated else (1 + exceedances) / (1 + len(sums_P))
    log10_p = math.log10(p_value)
    if exceedances == 0 and log10_p_bound < log10_p:
        p_value, log10_p = 10.0**log10_p_bound, log10_p_bound
    z = (statistic - mean) / std
    # The identity is one of all permutations: no p lies below that, where the normal tail continues.
    log10_p_moments = min(0.0, max(-log_order, tails.log_normal_sf(z)) / tails.LN10)
    return Certified(
        p_value=p_value,
        log10_p=log10_p,
        log10_p_bound=log10_p_bound,
        log10_p_moments=log10_p_moments,
        z=z,
        statistic=statistic,
        mean=mean,
        std=std,
        num_permutations=len(sums_P),
        exceedances=exceedances,
        enumerated=enumerated,
        histogram=histogram(sums_P, mean, std),
    )


def constant_sum(statistic: float, mean: float, num_permutations: int, *, enumerated: bool = False) -> Certified:
    """Return the result of a sum that is the same under every permutation: no p."""
    nan = math.nan
    return Certified(*(nan, nan, nan, nan, nan, statistic, mean, 0.0, num_permutations, 0, enumerated))


def certified_p(scores_nn: np.ndarray, *, num_permutations: int = NUM_PERMUTATIONS, seed: int = 0) -> Certified:
    """Certify the p of the trace of a score matrix under permutations of the labels.

    One-sided: large sums speak against the null. Of n ≤ 8 labels all n! labelings are counted.

    Args:
        scores_nn: [n, n] score of label i of the base with label j of the suspect, centered or not.
        num_permutations: random permutations.
        seed: of the permutations.

    Raises:
        ValueError: not a square matrix of finite numbers with n ≥ 2.

    Example:
        >>> scores = np.random.default_rng(0).standard_normal((60, 60))
        >>> certified_p(scores, num_permutations=999).p_value
        0.389
        >>> certified = certified_p(scores + 3 * np.eye(60), num_permutations=999)
        >>> certified.exceedances, certified.p_value < 1e-30
        (0, True)
        >>> certified.log10_p_moments < certified.log10_p_bound == certified.log10_p
        True
    """
    scores_nn = checked_scores(scores_nn)
    statistic = float(np.diagonal(scores_nn).sum(dtype=np.float64))
    mean, variance = (float(moment) for moment in moments(scores_nn))
    enumerated = len(scores_nn) <= ENUMERATED_WIDTH
    sums_P = (
        permuted_sums(scores_nn, all_permutations(len(scores_nn)))
        if enumerated
        else drawn_sums(scores_nn, num_permutations, seed=seed)
    )
    # Where the count says enough nobody waits for a closer bound.
    is_reached = bool((sums_P >= statistic - TIE * math.sqrt(variance)).any())
    rows = sorted_rows(scores_nn, scale=not is_reached)
    # Rounding leaves a variance of about (eps · |R|)² n where there is none.
    largest = float(max(scores_nn.max(), -scores_nn.min()))
    if not variance > (1e-13 * rows.size * largest) ** 2:
        return constant_sum(statistic, mean, len(sums_P), enumerated=enumerated)
    log_order = math.lgamma(rows.size + 1)
    bound = joint_bound([rows])
    return certify_sums(statistic, mean, math.sqrt(variance), sums_P, bound, log_order=log_order, enumerated=enumerated)
