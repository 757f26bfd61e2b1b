"""The exact test: the statistic under permutations of the suspect's coordinates (methods, section 1).

**What is exact.** A model is coordinate-exchangeable when relabelling its residual coordinates gives a
model that was just as likely. Independent identically distributed initialisation gives that, and
training keeps it: LayerNorm, RMSNorm, RoPE, tied embeddings, muP, Adam with its epsilon, per-tensor
decay masks and outlier dimensions at random places are equivariant. If one of two models is
exchangeable and independent of the other, the identity labelling is a uniform draw among all
labellings, and p is valid at every number of inputs, width, architecture, data set and training.

**What is approximate.** Quantisation in contiguous blocks, blocked or 8-bit optimisers, sinusoidal
positions added to the stream and identity-like initialisation are not equivariant. Inputs given as
shared continuous vectors are labelled by coordinate themselves: use tokens, each model with its own
embedding. The z and log10 p from the moments are approximate, poor when a few coordinates dominate;
the verdict uses the permutations.

**What it does not cover.** Coordinates shared without shared birth answer "same": transplanted or fixed
embeddings, distillation of hidden states, one framework seed used twice.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.seedprint.verdict import Verdict, decide, undefined, unfit
from bornbiased_jax.stats import tails
from bornbiased_jax.stats.kendall import cross_kendall
from bornbiased_jax.stats.ranks import rank_correlation

Correlation = Literal["spearman", "kendall"]
Rule = Callable[[np.ndarray], np.ndarray]

MIN_INPUTS = 3
COVERED = (
    "p holds at every number of inputs, width and training if one of the two models was initialised and "
    "trained without regard to the numbering of its coordinates, independently of the other; "
    "it is approximate after quantisation in contiguous blocks, blocked or 8-bit optimisers, "
    "sinusoidal positions added to the stream, or identity-like initialisation."
)
MOMENTS = (
    "z and log10 p come from the mean and variance over all relabellings and are approximate, "
    "poor when a few coordinates dominate; the verdict uses p."
)
# Up to 8! = 40,320 labellings are enumerated, not drawn.
_ENUMERATED_WIDTH = 8
# Sums that differ by rounding only are ties, and a tie counts against the null being rejected.
_TIE = 1e-9


@dataclasses.dataclass(frozen=True)
class Permuted:
    """The statistic of one pair against its permutations.

    ``mean`` and ``std`` are the exact moments over all permutations; ``log10_p`` (base 10, at most 0) is
    the normal approximation from them, no less than log₁₀ 1/D!; ``p_value`` comes from the permutations.
    """

    statistic: float
    mean: float
    std: float
    z: float
    log10_p: float
    p_value: float
    num_permutations: int
    enumerated: bool


def top_mean(num_dims: int) -> Rule:
    """The rule "the ``num_dims`` coordinates with the largest mean output" (M_g of Section 6.1.1)."""
    return lambda outputs_ND: _extreme(-outputs_ND.mean(axis=0, dtype=np.float64), num_dims)


def bottom_mean(num_dims: int) -> Rule:
    """The rule "the ``num_dims`` coordinates with the smallest mean output"."""
    return lambda outputs_ND: _extreme(outputs_ND.mean(axis=0, dtype=np.float64), num_dims)


def _extreme(values_D: np.ndarray, num_dims: int) -> np.ndarray:
    if num_dims < 1:
        raise InputError(f"{num_dims} coordinates cannot be chosen: give a number of at least 1")
    return np.sort(np.argsort(values_D, kind="stable")[:num_dims])


def moments(cross_DD: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of Σ_j R[j, π(j)] over all permutations π, exactly.

    The mean is ΣR/D; the variance is Σr²/(D−1) with r the doubly centred R (Hoeffding, 1951).

    Args:
        cross_DD: [..., D, D].

    Returns:
        Two arrays [...].
    """
    width = cross_DD.shape[-1]
    mean = cross_DD.sum(axis=(-2, -1)) / width
    centred_DD = (
        cross_DD
        - cross_DD.mean(axis=-1, keepdims=True)
        - cross_DD.mean(axis=-2, keepdims=True)
        + cross_DD.mean(axis=(-2, -1), keepdims=True)
    )
    return mean, np.square(centred_DD).sum(axis=(-2, -1)) / max(1, width - 1)


def permutations(width: int, count: int, *, seed: int, batch: int = 2048) -> Iterator[np.ndarray]:
    """Uniform random permutations in batches: arrays [≤ batch, D] of integers.

    Each row is the order of D independent random numbers, sorted together with their index in one
    64-bit word (a tie among the random bits has probability below D²/2^(64 − log2 D)). Only the raw
    stream of the generator is used, which NumPy promises never to change.
    """
    bits = max(1, (width - 1).bit_length())
    mask = np.uint64((1 << bits) - 1)
    stream = np.random.PCG64DXSM(np.random.SeedSequence([0x5EED, seed]))
    batch = max(1, min(batch, (1 << 22) // width))
    for start in range(0, count, batch):
        rows = min(batch, count - start)
        words = stream.random_raw(rows * width).reshape(rows, width)
        words = (words & ~mask) | np.arange(width, dtype=np.uint64)[None, :]
        words.sort(axis=1)
        yield (words & mask).astype(np.int64)


def permuted_sums(cross_DD: np.ndarray, permutations_PD: np.ndarray) -> np.ndarray:
    """Σ_j R[j, π(j)] for each permutation: [..., D, D] and [P, D] -> [..., P].

    Gathers run within one row of R at a time, which fits the nearest cache at any width.
    """
    by_row_DP = np.ascontiguousarray(permutations_PD.T)
    if cross_DD.ndim == 2:
        return np.take_along_axis(cross_DD, by_row_DP, axis=1).sum(axis=0)
    sums_P = np.zeros((*cross_DD.shape[:-2], len(permutations_PD)))
    for row, places_P in enumerate(by_row_DP):
        sums_P += np.take(cross_DD[..., row, :], places_P, axis=-1)
    return sums_P


def exceedances(cross_DD: np.ndarray, *, num_permutations: int, seed: int) -> np.ndarray:
    """How many random permutations reach the identity's sum: [..., D, D] -> [...] integers."""
    diagonal_D = np.diagonal(cross_DD, axis1=-2, axis2=-1)
    observed = np.ascontiguousarray(diagonal_D).sum(axis=-1)
    least = observed - _TIE * np.sqrt(moments(cross_DD)[1])
    count = np.zeros(observed.shape, np.int64)
    for permutations_PD in permutations(cross_DD.shape[-1], num_permutations, seed=seed):
        count += (permuted_sums(cross_DD, permutations_PD) >= least[..., None]).sum(axis=-1)
    return count


def permutation_p(cross_DD: np.ndarray, *, num_permutations: int, seed: int = 0) -> Permuted:
    """p = (1 + #{S(π) ≥ S(id)}) / (1 + #π), with z and log10 p from the moments.

    With D ≤ 8 every labelling is enumerated instead, and p = #{S(π) ≥ S(id)} / D!.

    Args:
        cross_DD: [D, D] correlation of base coordinate i with suspect coordinate j.
        num_permutations: random permutations drawn when D > 8.
        seed: of the permutations.

    Returns:
        The result; ``p_value`` and ``z`` are NaN when no labelling differs from another (zero variance).
    """
    width = cross_DD.shape[0]
    statistic = float(np.trace(cross_DD))
    mean, variance = (float(moment) for moment in moments(cross_DD))
    enumerated = width <= _ENUMERATED_WIDTH
    drawn = math.factorial(width) if enumerated else num_permutations
    # Rounding leaves a variance of about (eps · |R|)² D where there is none.
    if not variance > (1e-13 * width) ** 2 * float(np.square(cross_DD).max(initial=0.0)):
        return Permuted(statistic, mean, 0.0, math.nan, math.nan, math.nan, drawn, enumerated)
    std = math.sqrt(variance)
    if enumerated:
        every_PD = np.array(list(itertools.permutations(range(width))), np.int64)
        p_value = float((permuted_sums(cross_DD, every_PD) >= statistic - _TIE * std).mean())
    else:
        p_value = (1 + int(exceedances(cross_DD, num_permutations=drawn, seed=seed))) / (1 + drawn)
    z = (statistic - mean) / std
    # The identity is one of D! labellings: no p lies below that, where the normal tail goes on.
    least = -math.lgamma(width + 1) / tails.LN10
    log10_p = min(0.0, max(least, tails.log_normal_sf(z) / tails.LN10))
    return Permuted(statistic, mean, std, z, log10_p, p_value, drawn, enumerated)


def enough_permutations(alpha: float) -> int:
    """Permutations that put twenty draws at or above a p of ``alpha``, and 9,999 at the least."""
    return max(9_999, math.ceil(20.0 / alpha) - 1)


def check_permutations(num_permutations: int, alpha: float) -> None:
    """Whether so many can reach the level.

    Raises:
        InputError: they cannot.
    """
    if (num_permutations + 1) * alpha <= 1:
        enough = enough_permutations(alpha)
        raise InputError(
            f"{num_permutations} permutations cannot give p < {alpha:g}: ask for {enough}, or leave them out"
        )


def permutation_test(
    base_ND: np.ndarray,
    suspect_ND: np.ndarray,
    *,
    alpha: float = 0.01,
    num_permutations: int | None = None,
    seed: int = 0,
    correlation: Correlation = "spearman",
    num_pairs: int | None = None,
    rule: Rule | None = None,
) -> Verdict:
    """Test whether two models share coordinates; the module's text says what is covered and what is not.

    The statistic is the sum over j of the rank correlation, over the inputs, of base coordinate j with
    suspect coordinate j. One-sided: large sums speak for a shared birth.

    Args:
        base_ND: [N, D] outputs of the final norm at the last position (any layer will do).
        suspect_ND: [N, D], for the same inputs in the same order.
        alpha: the rate of false accusation asked for.
        num_permutations: at least 1/alpha; by default enough for ``alpha`` (:func:`enough_permutations`).
        seed: of the permutations and of the pairs.
        correlation: "spearman" (ranks) or "kendall" (signs of differences of pairs of inputs).
        num_pairs: pairs of inputs for "kendall"; N·50 by default, all of them if there are fewer.
        rule: chooses coordinates from one model's own outputs, returning their indices
            (:func:`top_mean`, :func:`bottom_mean`). The sum then runs over the intersection of the two
            models' choices, recomputed under each permutation. It never sees the pairing, by its type.

    Returns:
        A verdict; undefined for unequal widths, fewer than 3 inputs or varying or chosen coordinates, or
        so few coordinates that no labelling can reach alpha.

    Raises:
        InputError: unequal numbers of inputs, numbers that are not finite, alpha outside 0 to 1, or
            too few permutations for alpha.
    """
    name = "permutation"
    check_alpha(alpha)
    if num_permutations is None:
        num_permutations = enough_permutations(alpha)
    check_permutations(num_permutations, alpha)
    base_ND, suspect_ND = np.asarray(base_ND), np.asarray(suspect_ND)
    reason = unfit(base_ND, suspect_ND, min_inputs=MIN_INPUTS)
    num_inputs, width = base_ND.shape
    facts: dict[str, Any] = {"width": width, "correlation": correlation}
    if reason is None and math.factorial(min(width, 20)) * alpha <= 1:
        labellings = math.factorial(width)
        reason = f"{width} coordinates have {labellings} labellings, too few for a p below {alpha:g}"
    if reason is not None:
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, **facts)
    if correlation == "spearman":
        cross_DD = rank_correlation(base_ND, suspect_ND)
    elif correlation == "kendall":
        cross_DD = cross_kendall(base_ND, suspect_ND, num_pairs=num_pairs or 50 * num_inputs, seed=seed)
    else:
        raise InputError(f"correlation={correlation!r} is not one of spearman, kendall")
    num_summed = width
    if rule is not None:
        base_only_D, suspect_only_D = _mask(rule(base_ND), width), _mask(rule(suspect_ND), width)
        shared = int((base_only_D & suspect_only_D).sum())
        facts["num_dims"] = num_summed = shared
        if shared < 3:
            reason = f"only {shared} coordinates are chosen in both models: choose more"
            return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, **facts)
        # Under a permutation π coordinate j counts if the base chose j and the suspect chose π(j): that
        # is the same trace of R with all other entries set to zero.
        cross_DD = cross_DD * (base_only_D[:, None] & suspect_only_D[None, :])
    result = permutation_p(cross_DD, num_permutations=num_permutations, seed=seed)
    if not math.isfinite(result.p_value):
        reason = "every labelling of the coordinates gives the same statistic"
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, **facts)
    return decide(
        name,
        p_value=result.p_value,
        log10_p=result.log10_p,
        z=result.z,
        num_inputs=num_inputs,
        alpha=alpha,
        **facts,
        statistic=result.statistic,
        null_mean=result.mean,
        null_std=result.std,
        mean_correlation=result.statistic / num_summed,
        num_permutations=result.num_permutations,
        enumerated=result.enumerated,
        notes=[COVERED, MOMENTS],
    )


def check_alpha(alpha: float) -> float:
    """The level, if it lies strictly between 0 and 1.

    Raises:
        InputError: it does not.
    """
    if not 0.0 < alpha < 1.0:
        raise InputError(f"alpha={alpha} is not between 0 and 1")
    return alpha


def _mask(chosen: np.ndarray, width: int) -> np.ndarray:
    mask_D = np.zeros(width, bool)
    mask_D[chosen] = True
    return mask_D
