"""From a permutation of labels to a verdict that says what it rests on."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.errors import InputError
from bornbiased_jax.seedprint.verdict import WORD, Decision, Verdict, rests_on
from bornbiased_jax.stats.certified import Certified
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

Null = Literal["exact", "approximate", "population"]
ALPHA = 1e-4
"""Level of the tests in the weights unless another is given."""

SCOPE = (
    "The test finds a shared birth, not intent and not theft: it cannot say who copied from whom, and two people who "
    "chose the same seed of the same program share one. 'unrelated' means that no shared birth was found by this "
    "test, not that there is none."
)
BLOCKWISE = (
    "Both models are quantised in contiguous blocks, which are labels too: the p-value is approximate. Compare with "
    "an unquantised base."
)


@dataclasses.dataclass(frozen=True)
class Basis:
    """What a test rests on, said with each of its verdicts.

    Attributes:
        test: its name.
        alpha: level of the decision.
        permuted: the labels that the null permutes.
        invariant_to: changes that leave the function alone and the statistic too.
        evaded_by: changes that leave the function alone and hide a birth from this test.
        facts: further keys of the JSON (``labels``, ``align`` …).
    """

    test: str
    alpha: float
    permuted: str
    invariant_to: tuple[str, ...]
    evaded_by: str
    facts: dict[str, Any]

    def detail(self, null: Null, **more: Any) -> dict[str, Any]:
        """The keys that every verdict of this test has."""
        described = {"permuted": self.permuted, "invariant_to": list(self.invariant_to), "evaded_by": self.evaded_by}
        notes = [
            *rests_on(described),
            *more.pop("notes", ()),
        ]
        return {"null": null, **self.facts, **described, **more, "notes": notes, "scope": SCOPE}

    def undefined(self, reason: str, **more: Any) -> Verdict:
        """A verdict that says why there is none."""
        detail = self.detail("exact", **more)
        return Verdict("undefined", reason, None, None, None, self.test, None, self.alpha, detail)

    def decide(
        self, certified: Certified, base: WeightsReader, suspect: WeightsReader, *, tries: int = 1, **more: Any
    ) -> Verdict:
        """The verdict of a certified p, the smallest of ``tries`` (Bonferroni); same lineage where p ≤ alpha."""
        if not math.isfinite(certified.z):
            return self.undefined(f"every order of {self.permuted} gives the same statistic", **more)
        blocks = base.kind == suspect.kind == "gguf"
        notes = [*more.pop("notes", ()), WORD, *([BLOCKWISE] if blocks else [])]
        shift = math.log10(tries)
        log10_p = min(0.0, certified.log10_p + shift)
        p_value = min(1.0, certified.p_value * tries)
        detail = self.detail(
            "approximate" if blocks else "exact",
            log10_p_bound=min(0.0, certified.log10_p_bound + shift),
            log10_p_moments=min(0.0, certified.log10_p_moments + shift),
            statistic=certified.statistic,
            null_mean=certified.mean,
            null_std=certified.std,
            num_permutations=certified.num_permutations,
            enumerated=certified.enumerated,
            null_histogram=certified.histogram,
            **more,
            notes=notes,
        )
        same = p_value <= self.alpha
        reason = f"the weights agree {'more' if same else 'no more'} than chance allows under permutations of "
        reason += f"{self.permuted} (p {'≤' if same else '>'} {self.alpha:g})"
        decision: Decision = "same-lineage" if same else "unrelated"
        return Verdict(decision, reason, p_value, log10_p, certified.z, self.test, None, self.alpha, detail)


def check_level(alpha: float, num_permutations: int) -> None:
    """Whether alpha is a level, and the permutations are enough for its verdicts to rest on them.

    Raises:
        InputError: they are not.
    """
    if not 0.0 < alpha < 1.0:
        raise InputError(f"alpha={alpha} is not between 0 and 1")
    if num_permutations < 99:
        raise InputError(f"{num_permutations} permutations are too few: ask for {NUM_PERMUTATIONS}, or leave them out")
