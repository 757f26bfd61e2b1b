"""The exact test: the statistic under permutations of the suspect's coordinates (methods, section 1).

**What is exact.** A model is coordinate-exchangeable when relabeling its residual coordinates gives a
model that was just as likely. Independent identically distributed initialization gives that, and
training keeps it: LayerNorm, RMSNorm, RoPE, tied embeddings, muP, Adam with its epsilon, per-tensor
decay masks and outlier dimensions at random places are equivariant. If one of two models is
exchangeable and independent of the other, the identity labeling is a uniform draw among all
labelings, and p is valid at every number of inputs, width, architecture, data set and training.

**What is approximate.** Quantization in contiguous blocks, blocked or 8-bit optimizers, sinusoidal
positions added to the stream and identity-like initialization are not equivariant. Inputs given as
shared continuous vectors are labeled by coordinate themselves: use tokens, each model with its own
embedding. The z and the normal tail from the moments are approximate, poor when a few coordinates
dominate; the verdict uses the permutations and, beyond their reach, a proven bound (:mod:`.stats.bound`).

**What it does not cover.** Coordinates shared without shared initialization answer "same": transplanted or fixed
embeddings, distillation of hidden states, one framework seed used twice.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.verdict import Detail, Verdict, certified_keys, decide, undefined, unfit
from bornbiased_jax.stats.certified import certified_p
from bornbiased_jax.stats.kendall import cross_kendall
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS
from bornbiased_jax.stats.ranks import rank_correlation

Correlation = Literal["spearman", "kendall"]
Signs = Literal["kept", "free"]

MIN_INPUTS = 3
COVERED = (
    "p holds at every number of inputs, width and training if one of the two models was initialized and "
    "trained without regard to the numbering of its coordinates, independently of the other; "
    "it is approximate after quantization in contiguous blocks, blocked or 8-bit optimizers, "
    "sinusoidal positions added to the stream, or identity-like initialization."
)
MOMENTS = (
    "log10_p_bound is proven: the p of a verdict counts permutations, and where none reaches the pair's sum it may "
    "use the bound. z and log10_p_moments come from the mean and variance over all relabelings; they describe, and "
    "the normal tail is no p (too small where a few coordinates dominate)."
)


# The least level that permutations are counted for.
_COUNTED = 1e-4
# What may be done to the suspect without moving its outputs' ranks.
EVADED_BY = "negating, rotating or permuting the residual coordinates"
INVARIANT_TO = ("permuted hidden units", "permuted heads", "scales moved between matrices", "monotone coordinates")


def enough_permutations(alpha: float) -> int:
    """Return permutations that put twenty draws at or above a p of ``alpha``: 9,999 at least, 199,999 at most.

    Levels below 1e−4 are left to the proven bound.
    """
    return max(NUM_PERMUTATIONS, math.ceil(20.0 / max(alpha, _COUNTED)) - 1)


def check_permutations(num_permutations: int, alpha: float) -> None:
    """Refuse too few permutations to reach the level by counting, if it is one that is counted (1e−4 or above).

    Raises:
        InputError: they cannot.
    """
    if alpha >= _COUNTED and (num_permutations + 1) * alpha <= 1:
        enough = enough_permutations(alpha)
        raise InputError(
            f"{num_permutations} permutations leave p < {alpha:g} to the bound: ask for {enough}, or leave them out"
        )


def permutation_test(
    base_ND: np.ndarray,
    suspect_ND: np.ndarray,
    *,
    alpha: float = 0.01,
    num_permutations: int | None = None,
    seed: int = 0,
    correlation: Correlation = "spearman",
    signs: Signs = "kept",
) -> Verdict:
    """Test whether two models share coordinates; the module's text says what is covered and what is not.

    The statistic is the sum over j of the rank correlation, over the inputs, of base coordinate j with
    suspect coordinate j. One-sided: large sums speak for a shared initialization. The p counts permutations and, where
    none reaches the sum, may be the proven bound (:func:`.stats.certified.certified_p`).

    Args:
        base_ND: [N, D] outputs of the final norm at the last position (any layer will do).
        suspect_ND: [N, D], for the same inputs in the same order.
        alpha: the false-positive rate asked for.
        num_permutations: at least 1/alpha; by default enough for ``alpha`` (:func:`enough_permutations`).
        seed: of the permutations and of the pairs.
        correlation: "spearman" (ranks) or "kendall" (signs of differences of N·50 pairs of inputs, or of all of them if
            there are fewer).
        signs: "kept", or "free" to sum the sizes of the correlations: blind to negated coordinates, which cost
            nothing under RMSNorm, but weaker where correlations are small (0.6 of their standard errors in each of
            96 coordinates: z = 6 with signs, 2.4 without). Name it beforehand.

    Returns:
        A verdict; undefined for unequal widths, fewer than 3 inputs or varying coordinates, or so few
        coordinates that no labeling can reach alpha.

    Raises:
        InputError: unequal numbers of inputs, numbers that are not finite, alpha outside 0 to 1, or
            too few permutations for alpha.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> base_ND = rng.standard_normal((400, 64))
        >>> permutation_test(base_ND, base_ND + 3 * rng.standard_normal((400, 64))).verdict
        'same-lineage'
        >>> permutation_test(base_ND, rng.standard_normal((400, 64))).verdict
        'unrelated'
    """
    name = "permutation"
    check_alpha(alpha)
    if num_permutations is None:
        num_permutations = enough_permutations(alpha)
    else:
        check_permutations(num_permutations, alpha)
    base_ND, suspect_ND = np.asarray(base_ND), np.asarray(suspect_ND)
    reason = unfit(base_ND, suspect_ND, min_inputs=MIN_INPUTS)
    num_inputs, width = base_ND.shape
    if signs not in ("kept", "free"):
        raise InputError(f"signs={signs!r} is not one of kept, free")
    invariant_to = [*INVARIANT_TO, *(["signs of coordinates"] if signs == "free" else [])]
    # Facts that every verdict of this test has, defined or not.
    facts: Detail = {
        "null": "exact",
        "labels": "coordinates",
        "align": "none",
        "invariant_to": invariant_to,
        "evaded_by": EVADED_BY if signs == "kept" else EVADED_BY.removeprefix("negating, "),
        "width": width,
        "correlation": correlation,
        "signs": signs,
    }
    # Too few labelings cannot reach alpha.
    if reason is None and math.lgamma(width + 1) <= -math.log(alpha):
        labelings = math.factorial(width)
        reason = f"{width} coordinates have {labelings} labelings, too few for a p below {alpha:g}"
    if reason is not None:
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, **facts)
    # Rank correlations of every base coordinate with every suspect coordinate.
    if correlation == "spearman":
        cross_DD = rank_correlation(base_ND, suspect_ND)
    elif correlation == "kendall":
        cross_DD = cross_kendall(base_ND, suspect_ND, num_pairs=50 * num_inputs, seed=seed)
    else:
        raise InputError(f"correlation={correlation!r} is not one of spearman, kendall")
    # Sizes of correlations, where signs are free.
    if signs == "free":
        cross_DD = np.abs(cross_DD)
    # The trace under permutations, with the certified bound.
    certified = certified_p(cross_DD, num_permutations=num_permutations, seed=seed)
    if not math.isfinite(certified.p_value):
        reason = "every labeling of the coordinates gives the same statistic"
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, **facts)
    return decide(
        name,
        p_value=certified.p_value,
        log10_p=certified.log10_p,
        z=certified.z,
        num_inputs=num_inputs,
        alpha=alpha,
        **facts,
        **certified_keys(certified),
        mean_correlation=certified.statistic / width,
        exceedances=certified.exceedances,
        notes=[COVERED, MOMENTS],
    )


def check_alpha(alpha: float) -> float:
    """Return the level, if it lies strictly between 0 and 1.

    Raises:
        InputError: it does not.
    """
    if not isinstance(alpha, int | float | np.number) or not 0.0 < alpha < 1.0:
        raise InputError(f"alpha={alpha} is not between 0 and 1")
    return alpha
