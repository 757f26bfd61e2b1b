"""The lineage tests by name: one entry a test, from which commands, :func:`.trace.trace` and docs derive theirs.

Nothing heavy is imported here: a test's module is loaded when the test is run.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from bornbiased_jax.errors import InputError

if TYPE_CHECKING:
    from bornbiased_jax.lineage.verdict import Verdict


@dataclasses.dataclass(frozen=True)
class LineageTest:
    """One test of lineage.

    Attributes:
        function: "module:name" of what decides. By ``needs`` it takes, then ``alpha`` and the test's own options:
            "outputs": the outputs of base and suspect, [N, D] each, on the same inputs;
            "weights": the two :class:`.compared_model.ComparedModel`, of which it opens what it reads.
        needs: what it reads of the two models.
        description: one line for a reader, who chooses by it.
        alpha: level of its decision by default.
        options: names of its own options.
        references: whether it needs outputs of fresh seeds, given as ``references``.
        permuted: the labels that the null of a test of outputs permutes.
        about_tokens, about_vectors: note on its own p on such inputs.
    """

    function: str
    needs: Literal["outputs", "weights"]
    description: str
    alpha: float = 0.01
    options: tuple[str, ...] = ()
    references: bool = False
    permuted: str = ""
    about_tokens: str = ""
    about_vectors: str = ""

    def load(self) -> Callable[..., Verdict]:
        """Import the test's function."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Verdict] = getattr(importlib.import_module(module), name)
        return function


TESTS: Mapping[str, LineageTest] = {
    "auto": LineageTest(
        "bornbiased_jax.lineage.weights_compare:auto",
        needs="weights",
        description="what is identical, then every exact test of the weights, corrected for their number",
        alpha=1e-4,
        options=("num_permutations", "sign_key", "neurons"),
    ),
    "weights": LineageTest(
        "bornbiased_jax.lineage.weights_compare:weights",
        needs="weights",
        description="one exact test of the weights, which --labels chooses",
        alpha=1e-4,
        options=("labels", "num_permutations", "sign_key", "neurons"),
    ),
    "permutation": LineageTest(
        "bornbiased_jax.lineage.permutation:permutation_test",
        needs="outputs",
        description="outputs of both models on the same inputs; exact on random tokens",
        options=("num_permutations", "signs"),
        permuted="the residual coordinates",
    ),
    "paper": LineageTest(
        "bornbiased_jax.lineage.paper:paper_test",
        needs="outputs",
        description="Algorithm 1 of “Transformers Are Born Biased”, on outputs",
        permuted="nothing: it takes coordinates as independent Gaussian draws",
        about_tokens=(
            "On random tokens its p is no false-positive rate but stays below one between initializations: "
            "0.0% of 1,800 unrelated pairs were below 0.01. Between models trained apart up to 3.5% were."
        ),
        about_vectors=(
            "Its Gaussian null ignores vectors that both models shared: every one of 1,800 unrelated pairs of "
            "initializations was below 0.01."
        ),
    ),
    "iclr": LineageTest(
        "bornbiased_jax.lineage.paper:iclr_test",
        needs="outputs",
        description="the analytic test of the SeedPrints code, on outputs",
        permuted="nothing: it takes coordinates as independent",
        about_tokens=(
            "Its null takes coordinates as independent. Between initializations on random tokens its "
            "false-positive rate is near alpha (1.2% of 1,800 unrelated pairs below 0.01), with a tail that is too "
            "heavy; between models trained apart it is far above: up to 17.6% were below 0.01."
        ),
        about_vectors=(
            "Its null takes coordinates as independent, and vectors that both models shared make them agree: every "
            "one of 1,800 unrelated pairs of initializations was below 0.01."
        ),
    ),
    "population": LineageTest(
        "bornbiased_jax.lineage.population:population_test",
        needs="outputs",
        description="outputs, ranked among fresh seeds of the base's architecture; exact for an untrained base",
        references=True,
        permuted="the base among fresh seeds of its architecture",
    ),
}


def lineage_test(name: str) -> LineageTest:
    """Return the test of this name.

    Raises:
        InputError: there is none.
    """
    if name not in TESTS:
        raise InputError(f"unknown test {name!r}: choose from {', '.join(TESTS)}")
    return TESTS[name]
