"""Two fingerprints, one verdict: identity first, then the test asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

from bornbiased_jax.errors import InputError
from bornbiased_jax.inputs import KINDS
from bornbiased_jax.seedprint.fingerprint import Fingerprint, check_comparable
from bornbiased_jax.seedprint.iclr import iclr_test
from bornbiased_jax.seedprint.identity import with_identity
from bornbiased_jax.seedprint.paper import paper_test
from bornbiased_jax.seedprint.permutation import permutation_test
from bornbiased_jax.seedprint.population import References, population_test
from bornbiased_jax.seedprint.verdict import Verdict

Test = Literal["permutation", "paper", "iclr", "population"]
TESTS: dict[str, Callable[..., Verdict]] = {
    "permutation": permutation_test,
    "paper": paper_test,
    "iclr": iclr_test,
    "population": population_test,
}

_SHARED_VECTORS = (
    "the inputs are continuous vectors that both models shared; their own coordinates reach the outputs, so "
    "agreement is no evidence of lineage here: use token inputs (--inputs tokens) or fresh seeds as the null "
    "(--test population)"
)


def compare(
    base: Fingerprint,
    suspect: Fingerprint,
    *,
    test: Test = "permutation",
    alpha: float = 0.01,
    references: References | None = None,
    **options: Any,
) -> Verdict:
    """Say whether two models share a birth.

    What is identical bit for bit, or but for its order, is said first and outranks the test
    (:func:`.identity.with_identity`). The permutation test on shared vectors can clear a pair but not accuse one:
    its p is too small there, so that a rejection is undefined.

    Args:
        base: of the model known to be older or owned.
        suspect: of the other model, on the same inputs.
        test: which of the tests of this folder.
        alpha: level of the decision.
        references: outputs of fresh seeds of the base's architecture, for the population test.
        options: passed on to the test (``num_permutations``, ``num_dims``, ``seed`` …).

    Raises:
        InputError: fingerprints of different inputs or layers, an unknown test, or a bad option.
    """
    if test not in TESTS:
        raise InputError(f"unknown test {test!r}: choose from {', '.join(TESTS)}")
    check_comparable(base, suspect)
    if test == "population":
        if references is None:
            raise InputError("the population test needs references: outputs of fresh seeds on these inputs")
        verdict = population_test(base.outputs_ND, suspect.outputs_ND, references, alpha=alpha, **options)
    else:
        verdict = TESTS[test](base.outputs_ND, suspect.outputs_ND, alpha=alpha, **options)
    if test == "permutation" and KINDS[base.inputs["kind"]].vectors and verdict.verdict == "same-lineage":
        verdict = dataclasses.replace(verdict, verdict="undefined", reason=_SHARED_VECTORS)
    return with_identity(verdict, base, suspect)
