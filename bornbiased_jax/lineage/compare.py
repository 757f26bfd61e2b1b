"""Compare two fingerprints of outputs: one test, and the facts that outrank it.

A test that compares coordinate j with coordinate j sees nothing where one model's numbers were put in another order:
weights written in another layout, or permuted coordinates. Both leave traces that chance does not make, and a verdict
must not pass over them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.lineage_tests import lineage_test
from bornbiased_jax.lineage.output_fingerprint import OutputFingerprint, check_comparable
from bornbiased_jax.lineage.permutation import EVADED_BY, INVARIANT_TO
from bornbiased_jax.lineage.verdict import Decision, Detail, Verdict, rests_on, varying
from bornbiased_jax.probes.inputs import KINDS
from bornbiased_jax.stats.ranks import rank_correlation

# A coordinate matches from the first number on, and resembles no other one below the second.
# With fewer inputs than the third that outputs tell apart, such rank correlations come about by chance.
_MATCHED, _DISTINCT, _MIN_INPUTS = 0.99, 0.9, 50
_SHARED_VECTORS = (
    "the inputs are continuous vectors that both models shared; their own coordinates reach the outputs, so "
    "agreement is no evidence of lineage here: use token inputs (--inputs tokens) or fresh seeds as the null "
    "(--test population)"
)


def compare(
    base: OutputFingerprint,
    suspect: OutputFingerprint,
    *,
    test: str = "permutation",
    alpha: float | None = None,
    num_permutations: int | None = None,
    signs: str | None = None,
    references: Iterable[np.ndarray] | None = None,
) -> Verdict:
    """Decide whether two models share initial weights, from their outputs.

    Identity, bit for bit or up to an order of numbers, outranks the test (:func:`with_identity`). On shared
    vectors the permutation test's p is too small, so that its rejection is undefined there; it may still be unrelated.

    Example:
        >>> from bornbiased_jax.checkpoints import open_checkpoint
        >>> from bornbiased_jax.probes.inputs import random_tokens
        >>> from bornbiased_jax.lineage.output_fingerprint import fingerprint_outputs
        >>> models = [open_checkpoint(f"seed:{seed}@llama-tiny,num_layers=1,vocab_size=64") for seed in (1, 2)]
        >>> base, suspect = (fingerprint_outputs(model, random_tokens(60, 8, 64)) for model in models)
        >>> compare(base, suspect).verdict, compare(base, base).verdict
        ('unrelated', 'same-lineage')

    Args:
        base: of the model known to be older or owned.
        suspect: of the other model, on the same inputs.
        test: a key of :data:`.lineage_tests.TESTS`; one that needs outputs alone.
        alpha: level of the decision; the test's own by default.
        num_permutations: as of :func:`.permutation.permutation_test`; the other tests do not have it.
        signs: as there.
        references: outputs of fresh seeds of the base's architecture, for the population test.

    Raises:
        InputError: fingerprints of different inputs or layers, an unknown test, or a bad option.
    """
    entry = lineage_test(test)
    if entry.needs != "outputs":
        raise InputError(f"the test {test!r} reads weights: name two checkpoints, not stored fingerprints")
    check_comparable(base, suspect)
    if entry.references and references is None:
        raise InputError(f"the test {test!r} needs references: outputs of fresh seeds on these inputs")
    choices = {"num_permutations": num_permutations, "signs": signs, "references": references}
    options = {name: value for name, value in choices.items() if value is not None}
    for name in options:
        if name not in (*entry.options, *(["references"] if entry.references else [])):
            raise InputError(f"the test {test!r} has no option {name}: leave it out")
    # Run the test, then note what its inputs and the stored types imply.
    alpha = entry.alpha if alpha is None else alpha
    verdict = entry.load()(base.outputs_ND, suspect.outputs_ND, alpha=alpha, **options)
    has_vectors = KINDS[base.inputs["kind"]].vectors
    about = entry.about_vectors if has_vectors else entry.about_tokens
    notes = [*verdict.notes, *([about] if about else []), *_notes_of_storage(base, suspect)]
    # Say what the null permutes and what evades it.
    defaults: Detail = {"permuted": entry.permuted, "invariant_to": list(INVARIANT_TO), "evaded_by": EVADED_BY}
    detail = {**defaults, **verdict.detail}
    unchanged = cast(Sequence[str], detail["invariant_to"])
    detail["notes"] = [rests_on(entry.permuted, unchanged, str(detail["evaded_by"])), *notes]
    decision, reason = verdict.verdict, verdict.reason
    if test == "permutation" and has_vectors:
        # The inputs themselves are labeled by coordinate.
        detail["null"] = "approximate"
        if decision == "same-lineage":
            decision, reason = "undefined", _SHARED_VECTORS
    verdict = dataclasses.replace(verdict, verdict=decision, reason=reason, detail=detail)
    return with_identity(verdict, base, suspect)


def match_coordinates(base_ND: np.ndarray, suspect_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Match each base coordinate with one of the suspect, up to sign; None if they do not all match.

    Every coordinate must have exactly one partner with a rank correlation of at least 0.99 over at least 50
    inputs with different outputs, no two the same one, and below 0.9 in size with every other: unrelated coordinates
    come nowhere near, and coordinates that follow one another do not count.

    Returns:
        The suspect's coordinates, [D] integers, the identity where nothing was permuted; and whether each is
        negated, [D].

    Example:
        >>> outputs_ND = np.random.default_rng(0).standard_normal((100, 4))
        >>> partner_D, is_negated_D = match_coordinates(outputs_ND, outputs_ND[:, [2, 0, 1, 3]] * [1, 1, -1, 1])
        >>> partner_D.tolist(), is_negated_D.tolist()
        ([1, 2, 0, 3], [False, True, False, False])
    """
    # Short inputs from a small vocabulary are few, however often they are drawn.
    if base_ND.shape != suspect_ND.shape or len(np.unique(base_ND[:, 0])) < _MIN_INPUTS:
        return None
    # The best partner of each coordinate, one to one.
    signed_DD = rank_correlation(base_ND, suspect_ND)
    cross_DD = np.abs(signed_DD)
    partner_D = cross_DD.argmax(axis=1)
    if not (cross_DD.max(axis=1) >= _MATCHED).all() or len(np.unique(partner_D)) < len(partner_D):
        return None
    is_negated_D = np.take_along_axis(signed_DD, partner_D[:, None], axis=1)[:, 0] < 0
    # Every other coordinate is far from it.
    np.put_along_axis(cross_DD, partner_D[:, None], 0.0, axis=1)
    return (partner_D, is_negated_D) if (cross_DD < _DISTINCT).all() else None


def with_identity(verdict: Verdict, base: OutputFingerprint, suspect: OutputFingerprint) -> Verdict:
    """Add to a verdict what two models have in common without any test, and what that implies.

    Same lineage, whatever the test says: identical weights; identical outputs on every input of tokens; weights that
    hold the same numbers in another order; coordinates that all match under other numbers or signs.
    Some identical tensors forbid "unrelated": the verdict is then undefined, because a copy of them is a
    fact and the rest is not. Tensors of one repeated number do not count: all initial norm scales are 1.
    """
    same_names = {name for name, value in base.tensor_digests.items() if suspect.tensor_digests.get(name) == value}
    # Tensors with the same numbers in another order or under another name, as multisets.
    reordered_or_none = None
    if base.value_digests and suspect.value_digests:
        base_values, suspect_values = (
            Counter(value for name, value in model.value_digests.items() if name not in same_names)
            for model in (base, suspect)
        )
        reordered_or_none = (base_values & suspect_values).total()
    # Coordinates that match under other numbers or signs.
    has_same_outputs = bool(np.array_equal(base.outputs_ND, suspect.outputs_ND))
    matching = None if has_same_outputs else match_coordinates(base.outputs_ND, suspect.outputs_ND)
    permuted = negated = 0
    if matching is not None:
        partner_D, is_negated_D = matching
        permuted, negated = int((partner_D != np.arange(len(partner_D))).sum()), int(is_negated_D.sum())
    # Facts for the verdict's JSON.
    equal, reordered, total = len(same_names), reordered_or_none or 0, len(base.tensor_digests)
    facts = {
        "identical_weights": base.weights_digest == suspect.weights_digest,
        "identical_outputs": has_same_outputs,
        "identical_tensors": equal,
        "reordered_tensors": reordered_or_none,
        "num_tensors": total,
        "relabelled_coordinates": None if matching is None else permuted,
        "negated_coordinates": None if matching is None else negated,
    }
    # Notes of the test are about chance, which is in no identity.
    notes = _notes_of_storage(base, suspect)
    decision: Decision = "same-lineage"
    identity: str | None = None
    # The plainest fact first; partial identity only withholds "unrelated".
    if facts["identical_weights"]:
        identity = "tensors"
        reason = "the two models have identical weights, bit for bit"
    elif has_same_outputs and _tells_functions_apart(base):
        identity = "outputs"
        reason = "the weights differ, yet the outputs are identical on every input, bit for bit"
    elif reordered and equal + reordered == total:
        identity = "up to the order of numbers"
        reason = (
            f"the weights hold the same numbers in another order: of {total} tensors {reordered} are rearranged and "
            f"{equal} identical, bit for bit"
        )
        notes.insert(0, _changed_function(permuted, negated, verdict))
    elif permuted or negated:
        identity = "up to coordinate permutation" if permuted else "up to signs"
        changes = {"under another number": permuted, "with the other sign": negated}
        counts = " and ".join(f"{count} of them {change}" for change, count in changes.items() if count)
        names = " and ".join(name for name, count in (("relabeled", permuted), ("negated", negated)) if count)
        reason = (
            f"all {base.outputs_ND.shape[1]} coordinates of the base are found again in the suspect, {counts}: the "
            f"same function with its coordinates {names}"
        )
    else:
        decision, reason, notes = verdict.verdict, verdict.reason, verdict.notes
        if equal or reordered:
            tensors = f"{equal} of {total} tensors are identical, bit for bit"
            if reordered:
                tensors += f", and {reordered} hold the same numbers in another order"
            notes.insert(0, f"{tensors}.")
            if decision == "unrelated":
                decision = "undefined"
                reason = (
                    f"{tensors}: those weights were copied, or come from one seed or formula, while the outputs agree "
                    "no more than chance allows"
                )
    detail = {**verdict.detail, **facts, "identity": identity, "notes": notes}
    detail |= {"base": base.source, "suspect": suspect.source, "inputs": base.inputs}
    return dataclasses.replace(verdict, verdict=decision, reason=reason, detail=detail)


def _tells_functions_apart(outputs: OutputFingerprint) -> bool:
    """Return whether equal outputs speak for one function: not vectors that blocks without writers pass on as they are.

    Neither do outputs that no input changes, as behind a final norm of zeros, or that are one of two numbers, as of a
    model with one coordinate, which its norm leaves nothing but the sign.
    """
    columns = varying(outputs.outputs_ND).tolist()
    is_told = any(len(np.unique(outputs.outputs_ND[:, column])) > 2 for column in columns)
    return not KINDS[outputs.inputs["kind"]].vectors and is_told


def _notes_of_storage(base: OutputFingerprint, suspect: OutputFingerprint) -> list[str]:
    """Say that weights were held in two types, if they were."""
    if base.storage == suspect.storage:
        return []
    return [
        f"The base's weights were held as {base.storage}, the suspect's as {suspect.storage}: rounding moves "
        "outputs a little, and an exact copy may not be recognized as one."
    ]


def _changed_function(permuted: int, negated: int, verdict: Verdict) -> str:
    """Describe the function of a model whose weights hold the same numbers in another order."""
    if permuted or negated:
        change = f"{permuted} coordinates relabeled" if permuted else f"{negated} coordinates negated"
        return f"The function is the same with {change}."
    p = "undefined" if verdict.p_value is None else f"p = {verdict.p_value:.4g}"
    return (
        "Read as its format says, the rearranged model computes another function: it is a file for a program that "
        f"expects another layout. The test of the outputs ({p}) says nothing about where these weights come from."
    )
