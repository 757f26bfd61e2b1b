"""The reference-population null: the pair's score among scores with freshly initialized models.

If the base, which the references stand in for, is itself an untrained initialization of that architecture,
independent of the suspect, then it and the K references are exchangeable given the suspect, and
p = (1 + #{score of a reference ≥ score of the pair}) / (1 + K) is exact, with shared continuous inputs
too: the references leak them to the outputs just as much. If the base has been trained, the references
are only a stand-in for "an unrelated trained model", and p is approximate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.permutation import INVARIANT_TO, MIN_INPUTS, check_alpha
from bornbiased_jax.lineage.verdict import Verdict, decide, undefined, unfit
from bornbiased_jax.stats import tails
from bornbiased_jax.stats.ranks import unit_ranks


def population_test(
    base_ND: np.ndarray,
    suspect_ND: np.ndarray,
    references: Iterable[np.ndarray],
    *,
    alpha: float = 0.01,
) -> Verdict:
    """Score the pair among fresh seeds.

    Args:
        base_ND: [N, D] outputs of the final norm at the last position.
        suspect_ND: [N, D], for the same inputs in the same order.
        references: outputs [N, D] of independent fresh seeds of the base's architecture on the same inputs: an
            array [K, N, D] or any iterable of matrices. They stand in for the base; one is held at a time.
        alpha: level of the decision; at least 1/alpha references are needed.

    Returns:
        A verdict with the rank p and its logarithm; z is the score's distance from the references' mean in their
        standard deviations, and ``log10_p_moments`` the matching tail of Student's t with K − 1 degrees of freedom:
        both describe. Undefined as the permutation test is.

    Raises:
        InputError: unequal numbers of inputs, references of another shape, too few references.
    """
    name = "population"
    check_alpha(alpha)
    base_ND, suspect_ND = np.asarray(base_ND), np.asarray(suspect_ND)
    reason = unfit(base_ND, suspect_ND, min_inputs=MIN_INPUTS)
    num_inputs, width = base_ND.shape
    if reason is not None:
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, width=width)
    # The score sums the rank correlations of equal coordinates: of the pair, then of every reference as the base.
    suspect_ranks_DN = unit_ranks(suspect_ND)
    observed = float(np.einsum("dn,dn->", unit_ranks(base_ND), suspect_ranks_DN))
    # One reference is held at a time.
    scores = []
    for reference_ND in map(np.asarray, references):
        if reference_ND.shape != base_ND.shape:
            raise InputError(
                f"a reference has outputs of shape {reference_ND.shape}, the pair of {base_ND.shape}: "
                "use the same inputs and architecture"
            )
        scores.append(float(np.einsum("dn,dn->", suspect_ranks_DN, unit_ranks(reference_ND))))
    count = len(scores)
    check_references(count, alpha)
    # The null: scores of the references.
    null = np.array(scores)
    mean, std = float(null.mean()), float(null.std(ddof=1))
    if not std > 0:
        reason = "every reference has the same score"
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, width=width)
    # Rank p; float sums that differ by rounding count as ties.
    at_least = int((null >= observed - 1e-9 * std).sum())
    z = (observed - mean) / std
    p_value = (1 + at_least) / (1 + count)
    return decide(
        name,
        p_value=p_value,
        log10_p=math.log10(p_value),
        z=z,
        num_inputs=num_inputs,
        alpha=alpha,
        width=width,
        null="population",
        labels="coordinates",
        align="none",
        invariant_to=list(INVARIANT_TO),
        log10_p_moments=min(0.0, tails.log_t_sf(z / math.sqrt(1 + 1 / count), count - 1) / tails.LN10),
        statistic=observed,
        null_mean=mean,
        null_std=std,
        num_references=count,
        replaces="base",
        notes=[
            "p is exact if the base is an untrained model of the references' architecture, "
            "and approximate if it has been trained.",
        ],
    )


def check_references(count: int, alpha: float) -> None:
    """Refuse too few references to reach the level.

    Raises:
        InputError: they cannot.
    """
    if (count + 1) * alpha <= 1:
        raise InputError(f"{count} references cannot give p < {alpha:g}: use {math.floor(1 / alpha) + 1} or more")
