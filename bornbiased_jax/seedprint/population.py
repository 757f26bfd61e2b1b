"""The reference-population null: the pair's score among scores with freshly initialised models.

If the model that the references stand in for is itself an untrained birth of that architecture,
independent of the other model, then it and the K references are exchangeable given the other model, and
p = (1 + #{score of a reference ≥ score of the pair}) / (1 + K) is exact, with shared continuous inputs
too: the references leak them to the outputs just as much. If that model has been trained, the references
are only a stand-in for "an unrelated trained model", and p is approximate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.seedprint.permutation import INVARIANT_TO, MIN_INPUTS, check_alpha
from bornbiased_jax.seedprint.verdict import Verdict, decide, undefined, unfit
from bornbiased_jax.stats import tails
from bornbiased_jax.stats.ranks import unit_ranks

References = Iterable[np.ndarray] | Callable[[int], np.ndarray]


def matched_score(base_ND: np.ndarray, suspect_ND: np.ndarray) -> float:
    """Σ_j of the rank correlation of base coordinate j with suspect coordinate j."""
    return float(np.einsum("dn,dn->", unit_ranks(base_ND), unit_ranks(suspect_ND)))


def population_test(
    base_ND: np.ndarray,
    suspect_ND: np.ndarray,
    references: References,
    *,
    alpha: float = 0.01,
    num_references: int | None = None,
    replaces: Literal["base", "suspect"] = "base",
) -> Verdict:
    """Score the pair among fresh seeds.

    Args:
        base_ND: [N, D] outputs of the final norm at the last position.
        suspect_ND: [N, D], for the same inputs in the same order.
        references: outputs [N, D] of independent fresh seeds on the same inputs: an array [K, N, D], any
            iterable of matrices, or a function of k = 0 … K−1 (then ``num_references`` is K). One is
            held at a time.
        alpha: level of the decision; at least 1/alpha references are needed.
        num_references: how many to use; all by default.
        replaces: the model that the references stand in for. Exact if that one is untrained.

    Returns:
        A verdict with the rank p and its logarithm; z is the score's distance from the references' mean in their
        standard deviations, and ``log10_p_moments`` the matching tail of Student's t with K − 1 degrees of freedom:
        both describe. Undefined as the permutation test is.

    Raises:
        InputError: unequal numbers of inputs, references of another shape, too few references.
    """
    name = "population"
    check_alpha(alpha)
    if replaces not in ("base", "suspect"):
        raise InputError(f"replaces={replaces!r} is not one of base, suspect")
    base_ND, suspect_ND = np.asarray(base_ND), np.asarray(suspect_ND)
    reason = unfit(base_ND, suspect_ND, min_inputs=MIN_INPUTS)
    num_inputs, width = base_ND.shape
    if reason is not None:
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, width=width)
    kept_DN = unit_ranks(suspect_ND if replaces == "base" else base_ND)
    observed = matched_score(base_ND, suspect_ND)
    scores = []
    for reference_ND in _each(references, num_references):
        if reference_ND.shape != base_ND.shape:
            raise InputError(
                f"a reference has outputs of shape {reference_ND.shape}, the pair of {base_ND.shape}: "
                "use the same inputs and architecture"
            )
        scores.append(float(np.einsum("dn,dn->", kept_DN, unit_ranks(reference_ND))))
    count = len(scores)
    check_references(count, alpha)
    null = np.array(scores)
    mean, std = float(null.mean()), float(null.std(ddof=1))
    if not std > 0:
        reason = "every reference has the same score"
        return undefined(name, reason, num_inputs=num_inputs, alpha=alpha, width=width)
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
        replaces=replaces,
        notes=[
            f"p is exact if the {replaces} is an untrained model of the references' architecture, "
            "and approximate if it has been trained.",
        ],
    )


def check_references(count: int, alpha: float) -> None:
    """Whether so many can reach the level.

    Raises:
        InputError: they cannot.
    """
    if (count + 1) * alpha <= 1:
        raise InputError(f"{count} references cannot give p < {alpha:g}: use {math.floor(1 / alpha) + 1} or more")


def _each(references: References, num_references: int | None) -> Iterable[np.ndarray]:
    if callable(references):
        if num_references is None:
            raise InputError("references given as a function need num_references")
        for index in range(num_references):
            yield np.asarray(references(index))
        return
    for index, reference_ND in enumerate(references):
        if num_references is not None and index >= num_references:
            return
        yield np.asarray(reference_ND)
