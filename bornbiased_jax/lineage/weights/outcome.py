"""From a permutation of labels to a verdict that says what it rests on."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.verdict import WORD, Decision, Verdict, rests_on
from bornbiased_jax.lineage.weights.blockwise import blockwise
from bornbiased_jax.schemes import Exchangeable, exchangeable, rules_of
from bornbiased_jax.stats.certified import Certified
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

Null = Literal["exact", "approximate", "population"]
ALPHA = 1e-4
"""Level of the tests in the weights unless another is given."""

SCOPE = (
    "The test finds a shared birth, not theft: it cannot say who copied from whom, and two people who chose one seed "
    "of one program share a birth. 'unrelated' means that this test found none, not that there is none."
)
BLOCKWISE = (
    "Both models are quantised in contiguous blocks, which are labels too: the p-value is approximate. Compare with "
    "an unquantised base."
)
EXACT_IF = (
    "Exact if one of the two models still carries the labels it was born and trained with; approximate if both were "
    "reordered by a rule that reads their numbers (a PCA basis, units sorted by norm), quantised in contiguous blocks "
    "or trained with numbers scaled by tiles, of which a file need not tell."
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
        """Return the keys that every verdict of this test has."""
        described = {"permuted": self.permuted, "invariant_to": list(self.invariant_to), "evaded_by": self.evaded_by}
        notes = [rests_on(described), *more.pop("notes", ())]
        empty: dict[str, Any] = {"log10_p_bound": None, "log10_p_moments": None, "by_module": []}
        return {"null": null, **self.facts, **described, **empty, **more, "notes": notes, "scope": SCOPE}

    def undefined(self, reason: str, **more: Any) -> Verdict:
        """Return an undefined verdict with its reason."""
        detail = self.detail("exact", **more)
        return Verdict("undefined", reason, None, None, None, self.test, None, self.alpha, detail)

    def same_at(self, p_value: float) -> bool:
        """Return whether this p says same lineage."""
        return p_value <= self.alpha

    def by_p(
        self,
        finding: str,
        p_value: float,
        *,
        z: float | None,
        log10_p: float | None = None,
        null: Null = "exact",
        **more: Any,
    ) -> Verdict:
        """Decide by a p: same lineage where p ≤ alpha.

        Args:
            finding: what was found, the beginning of the reason.
            p_value, z: see :class:`.Verdict`.
            log10_p: of p where p may round to 0.
            null, more: see :meth:`detail`.
        """
        same = self.same_at(p_value)
        decision: Decision = "same-lineage" if same else "unrelated"
        reason = f"{finding} (p {'≤' if same else '>'} {self.alpha:g})"
        log10_p = math.log10(p_value) if log10_p is None else log10_p
        detail = self.detail(null, **more)
        return Verdict(decision, reason, p_value, log10_p, z, self.test, None, self.alpha, detail)

    def decide(
        self,
        certified: Certified,
        base: Checkpoint,
        suspect: Checkpoint,
        *,
        tries: int = 1,
        where: str = "",
        **more: Any,
    ) -> Verdict:
        """Decide by a certified p, the smallest of ``tries`` (Bonferroni).

        Args:
            certified: the p.
            base, suspect: the models.
            tries: of which this is the smallest.
            where: in the weights the agreement lies, for the reason of a birth that is found.
            more: see :meth:`detail`.
        """
        if not math.isfinite(certified.z):
            return self.undefined(f"every order of {self.permuted} gives the same statistic", **more)
        # Notes say what the p depends on.
        births = base.is_initial or suspect.is_initial
        blocks = not births and blockwise(base) and blockwise(suspect)
        about = [BLOCKWISE] if blocks else [] if births else [EXACT_IF]
        notes = [*more.pop("notes", ()), *about, WORD]
        # Bonferroni's correction, in log10 too.
        shift = math.log10(tries)
        p_value = min(1.0, certified.p_value * tries)
        return self.by_p(
            f"the weights agree {'more' if self.same_at(p_value) else 'no more'} than chance allows under permutations "
            f"of {self.permuted}{where if self.same_at(p_value) else ''}",
            p_value,
            log10_p=min(0.0, certified.log10_p + shift),
            z=certified.z,
            null="approximate" if blocks else "exact",
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


def unstated(labels: Exchangeable, *readers: Checkpoint) -> str | None:
    """Return why permuting these labels is not exact for models initialized as these were, or None where it may be.

    Only of a birth or a run of this package is it known how it was initialised; of one of two models the
    initialisation must leave the labels exchangeable.
    """
    drawn_here = [reader.cfg for reader in readers if reader.is_initial or reader.kind == "run"]
    schemes = {(cfg.init, cfg.init_groups) for cfg in drawn_here}
    refused = sorted(name for name, groups in schemes if labels not in exchangeable(rules_of(name, groups)))
    if not refused or len(schemes) > len(refused):
        return None
    return f"the initialisation {refused[0]} does not leave {labels} exchangeable: choose other labels"


def check_level(alpha: float, num_permutations: int) -> None:
    """Refuse an alpha that is no level, or too few permutations for verdicts to rest on them.

    Raises:
        InputError: they are not.
    """
    if not 0.0 < alpha < 1.0:
        raise InputError(f"alpha={alpha} is not between 0 and 1")
    if num_permutations < 99:
        raise InputError(f"{num_permutations} permutations are too few: ask for {NUM_PERMUTATIONS}, or leave them out")
