"""What is the same in two models bit for bit, or but for its order: facts that outrank any test.

A test that compares coordinate j with coordinate j sees nothing where one model's numbers were put in another
order: weights written in another layout, or coordinates given other numbers. Both leave traces that chance
does not make, and a verdict must not pass over them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np

from bornbiased_jax.lineage.output_fingerprint import OutputFingerprint
from bornbiased_jax.lineage.verdict import Decision, Verdict
from bornbiased_jax.stats.ranks import rank_correlation

# A coordinate counts as found again above the first number, and as found nowhere else below the second.
# With fewer inputs than the third, such rank correlations come about by chance.
FOUND, NOT_FOUND, MIN_INPUTS = 0.99, 0.9, 50


def relabelled(base_ND: np.ndarray, suspect_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Find each base coordinate again in the suspect, and with which sign; None if they are not all found.

    Every coordinate must have exactly one partner with a rank correlation of at least 0.99 over at least 50
    inputs, no two the same one, and below 0.9 in size with every other: unrelated coordinates come nowhere
    near, and coordinates that follow one another do not count.

    Returns:
        The suspect's coordinates, [D] integers, the identity where nothing was relabelled; and whether each is
        negated, [D].

    Example:
        >>> outputs_ND = np.random.default_rng(0).standard_normal((100, 4))
        >>> partner_D, negated_D = relabelled(outputs_ND, outputs_ND[:, [2, 0, 1, 3]] * [1, 1, -1, 1])
        >>> partner_D.tolist(), negated_D.tolist()
        ([1, 2, 0, 3], [False, True, False, False])
    """
    if base_ND.shape != suspect_ND.shape or len(base_ND) < MIN_INPUTS:
        return None
    signed_DD = rank_correlation(base_ND, suspect_ND)
    cross_DD = np.abs(signed_DD)
    partner_D = cross_DD.argmax(axis=1)
    if not (cross_DD.max(axis=1) >= FOUND).all() or len(np.unique(partner_D)) < len(partner_D):
        return None
    negated_D = np.take_along_axis(signed_DD, partner_D[:, None], axis=1)[:, 0] < 0
    np.put_along_axis(cross_DD, partner_D[:, None], 0.0, axis=1)
    return (partner_D, negated_D) if (cross_DD < NOT_FOUND).all() else None


def identity(base: OutputFingerprint, suspect: OutputFingerprint) -> dict[str, Any]:
    """List what two models have in common without any test, JSON-ready.

    Returns:
        ``identical_weights``, ``identical_outputs``; ``identical_tensors`` (same name, same bytes) and
        ``reordered_tensors`` (the same numbers in another order or under another name) of ``num_tensors``
        (tensors of one repeated number aside: all births share norm scales of 1); ``relabelled_coordinates``,
        how many coordinates of the base are found again under another number, and ``negated_coordinates``, how
        many with the other sign, None if not all are found or the outputs are identical.
        ``reordered_tensors`` is None for fingerprints stored without digests of values.
    """
    same_names = {name for name, value in base.tensor_digests.items() if suspect.tensor_digests.get(name) == value}
    # Tensors with the same numbers in another order, as multisets.
    reordered = None
    if base.value_digests and suspect.value_digests:
        base_values, suspect_values = (
            Counter(value for name, value in model.value_digests.items() if name not in same_names)
            for model in (base, suspect)
        )
        reordered = (base_values & suspect_values).total()
    same_outputs = base.outputs_ND.shape == suspect.outputs_ND.shape and bool(
        np.array_equal(base.outputs_ND, suspect.outputs_ND)
    )
    # Coordinates found again under other numbers or signs.
    moved = negated = None
    if not same_outputs:
        matching = relabelled(base.outputs_ND, suspect.outputs_ND)
        if matching is not None:
            partner_D, negated_D = matching
            moved, negated = int((partner_D != np.arange(len(partner_D))).sum()), int(negated_D.sum())
    return {
        "identical_weights": base.weights_digest == suspect.weights_digest,
        "identical_outputs": same_outputs,
        "identical_tensors": len(same_names),
        "reordered_tensors": reordered,
        "num_tensors": len(base.tensor_digests),
        "relabelled_coordinates": moved,
        "negated_coordinates": negated,
    }


def with_identity(verdict: Verdict, base: OutputFingerprint, suspect: OutputFingerprint) -> Verdict:
    """Add the facts of :func:`identity` to a verdict, and what they imply.

    Same lineage, whatever the test says: identical weights; identical outputs on every input; weights that
    hold the same numbers in another order; coordinates that are all found again under other numbers or signs.
    Some identical tensors forbid "unrelated": the verdict is then undefined, because a copy of them is a
    fact and the rest is not.
    """
    facts = identity(base, suspect)
    same, moved, total = facts["identical_tensors"], facts["reordered_tensors"] or 0, facts["num_tensors"]
    detail = {**verdict.detail, **facts, "base": base.source, "suspect": suspect.source, "inputs": base.inputs}
    notes = list(detail.get("notes", ()))
    # The plainest fact first; partial identity only withholds "unrelated".
    decision: Decision = "same-lineage"
    reason, same_as = "", None
    if facts["identical_weights"]:
        same_as = "tensors"
        reason = "the two models have identical weights, bit for bit"
    elif facts["identical_outputs"]:
        same_as = "outputs"
        reason = "the weights differ, yet the outputs are identical on every input, bit for bit"
    elif moved and same + moved == total:
        same_as = "up to the order of numbers"
        reason = (
            f"the weights hold the same numbers in another order: of {total} tensors {moved} are rearranged and "
            f"{same} identical, bit for bit"
        )
        notes.insert(0, _what_became_of_the_function(facts, verdict))
    elif facts["relabelled_coordinates"] or facts["negated_coordinates"]:
        changes = {
            "under another number": facts["relabelled_coordinates"],
            "with the other sign": facts["negated_coordinates"],
        }
        relabelling = " and ".join(f"{count} of them {change}" for change, count in changes.items() if count)
        same_as = "up to coordinate permutation" if facts["relabelled_coordinates"] else "up to signs"
        names = {"relabelled": facts["relabelled_coordinates"], "negated": facts["negated_coordinates"]}
        reason = (
            f"all {base.outputs_ND.shape[1]} coordinates of the base are found again in the suspect, {relabelling}: "
            f"the same function with its coordinates {' and '.join(name for name, count in names.items() if count)}"
        )
    elif same or moved:
        described = f"{same} of {total} tensors are identical, bit for bit"
        if moved:
            described += f", and {moved} hold the same numbers in another order"
        notes.insert(0, f"{described}.")
        if verdict.verdict == "unrelated":
            decision = "undefined"
            reason = (
                f"{described}: those weights were copied or come from one seed, while the outputs agree no more "
                "than chance allows"
            )
    detail |= {"identity": same_as, "notes": notes}
    if not reason:
        return dataclasses.replace(verdict, detail=detail)
    return dataclasses.replace(verdict, verdict=decision, reason=reason, detail=detail)


def _what_became_of_the_function(facts: dict[str, Any], verdict: Verdict) -> str:
    if facts["relabelled_coordinates"]:
        return f"The function is the same with {facts['relabelled_coordinates']} coordinates relabelled."
    if facts["negated_coordinates"]:
        return f"The function is the same with {facts['negated_coordinates']} coordinates negated."
    p = "undefined" if verdict.p_value is None else f"p = {verdict.p_value:.4g}"
    return (
        "Read as its format says, the rearranged model computes another function: it is a file for a program that "
        f"expects another layout. The test of the outputs ({p}) says nothing about where these weights come from."
    )
