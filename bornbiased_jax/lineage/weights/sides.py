"""The tests in the weights as :func:`bornbiased_jax.lineage.trace.trace` calls them: on two sides not yet opened."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.lineage.weights.auto import auto_test
from bornbiased_jax.lineage.weights.bilinear import bilinear_test
from bornbiased_jax.lineage.weights.compare import weights_test
from bornbiased_jax.lineage.weights.differences import settings_apart, with_differences
from bornbiased_jax.lineage.weights.identical import FILES, same_files, same_source
from bornbiased_jax.lineage.weights.rank import NUM_BIRTHS, rank_test
from bornbiased_jax.lineage.weights.tokens import seen_ids
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

if TYPE_CHECKING:
    from bornbiased_jax.lineage.trace import Side


def auto(
    base: Side,
    suspect: Side,
    *,
    alpha: float,
    num_permutations: int = NUM_PERMUTATIONS,
    outputs: Callable[[], Verdict] | None = None,
) -> Verdict:
    """Run :func:`.auto.auto_test` on two sides; neither model is opened whole unless outputs are asked for."""
    return _tested(auto_test, base, suspect, alpha=alpha, num_permutations=num_permutations, outputs=outputs)


def weights(
    base: Side,
    suspect: Side,
    *,
    alpha: float,
    align: str = "none",
    labels: str | None = None,
    num_permutations: int = NUM_PERMUTATIONS,
    text: str | None = None,
) -> Verdict:
    """Run :func:`.compare.weights_test` on two sides, on the tokens of a text; neither model is opened whole."""
    options = {"align": align, "labels": labels, "num_permutations": num_permutations}
    return _tested(weights_test, base, suspect, text, alpha=alpha, **options)


def bilinear(
    base: Side,
    suspect: Side,
    *,
    alpha: float,
    num_permutations: int = NUM_PERMUTATIONS,
    text: str | None = None,
) -> Verdict:
    """Run :func:`.bilinear.bilinear_test` on two sides, on the tokens of a text."""
    return _tested(bilinear_test, base, suspect, text, alpha=alpha, num_permutations=num_permutations)


def rank(
    base: Side,
    suspect: Side,
    *,
    alpha: float,
    align: str = "none",
    num_references: int = NUM_BIRTHS,
    text: str | None = None,
) -> Verdict:
    """Run :func:`.rank.rank_test` on two sides, on the tokens of a text; its fresh births are the references."""
    return _tested(rank_test, base, suspect, text, alpha=alpha, align=align, num_births=num_references)


def _tested(
    test: Callable[..., Verdict], base: Side, suspect: Side, text: str | None = None, **options: Any
) -> Verdict:
    """Run a test on two sides, on the tokens of a text where one is given; the verdict gets both names."""
    readers = base.checkpoint, suspect.checkpoint
    if text is not None:
        options["ids"] = seen_ids(*readers, text)
    return _named(test(*readers, **options), base, suspect, readers)


def _named(verdict: Verdict, base: Side, suspect: Side, readers: tuple[Checkpoint, Checkpoint]) -> Verdict:
    """Add both names to a verdict, and a note where the two are one model."""
    files = same_files(*readers)
    settings = settings_apart(readers[0].cfg, readers[1].cfg)
    same = same_source(*readers) or (with_differences(FILES, settings) if files else None)
    # What tests other than auto look at is where the two come from, and no further.
    detail = {"identity": "files" if files else "tensors" if same else None, **verdict.detail}
    notes = list(verdict.detail.get("notes", ()))
    if same is not None and same != verdict.reason:
        notes.insert(0, f"{same[0].upper()}{same[1:]}.")
    return dataclasses.replace(verdict, detail={**detail, "base": base.name, "suspect": suspect.name, "notes": notes})
