"""Compare two fingerprints of outputs: identity first, then one test."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.identity import with_identity
from bornbiased_jax.lineage.lineage_tests import lineage_test
from bornbiased_jax.lineage.output_fingerprint import OutputFingerprint, check_comparable
from bornbiased_jax.lineage.permutation import EVADED_BY, INVARIANT_TO
from bornbiased_jax.lineage.verdict import Detail, Verdict, rests_on
from bornbiased_jax.probes.inputs import KINDS

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

    Identity, bit for bit or up to an order of numbers, outranks the test (:func:`.identity.with_identity`). On shared
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
        num_permutations, signs: as of :func:`.permutation.permutation_test`; the other tests do not have them.
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
    # Run the test, then note what its inputs and the stored types imply.
    alpha = entry.alpha if alpha is None else alpha
    verdict = entry.load()(base.outputs_ND, suspect.outputs_ND, alpha=alpha, **options)
    has_vectors = KINDS[base.inputs["kind"]].vectors
    about = entry.about_vectors if has_vectors else entry.about_tokens
    notes = [*verdict.notes, *([about] if about else [])]
    if base.storage != suspect.storage:
        notes.append(
            f"The base's weights were held as {base.storage}, the suspect's as {suspect.storage}: rounding moves "
            "outputs a little, and an exact copy may not be recognized as one."
        )
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
