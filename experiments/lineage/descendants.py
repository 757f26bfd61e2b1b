"""Which test finds which descendant: every way a model is changed, every test and baseline.

The analysis, fixed before any number.

Families: initializations trained on the same text in the same order, so that unrelated models differ in their
initialization alone. Families of even number are one half, of odd number the other. What is merged in is trained alike,
of further initializations, one for each family.

Changes: every kind that ``derive`` makes, at several strengths where it has any, each family with draws of its own;
fine-tuning of all weights, and of LoRA's factors which are then merged, on another text; and a student of another
initialization that learned a family's predictions on the first text, which is no descendant and must come out
unrelated.

Pairs. Related: a family's trained model and its own descendant; a model is never held against itself. Unrelated: a
family's trained model and the descendant of one of the next few families of its half, for every test and change; at the
usual strength of each kind (the middle one, the longest training) also every other two families, for the tests whose p
is exact. Tests that need an initialization get the family's, at usual strengths and on fewer families. Of distillation
every pair is unrelated, teacher and student too.

Rank of pairs: z where a test has one, −log₁₀ p or the score otherwise; undefined is the least. AUC and KS distance are
of these. Decisions: at each test's own level or threshold (published ones: p ≤ 0.01, score above 0.8; ours: what the
command takes unless told otherwise), where undefined is "not the same"; and at a calibrated threshold, the smallest
that at most 1% of the other half's unrelated pairs exceed, over all changes together, as nobody knows beforehand what
was done to a model. TPR at FPR ≤ 1% is the fraction found at that threshold; the FPR that it has on the pairs that it
is used on stands next to it. Accuracies count related and unrelated pairs alike. Intervals: 95%, families resampled;
exact binomial ones, families as trials, where all agree.

Accusations: for every exact test and kind of change, of at least 1,000 unrelated pairs the number called the same at
the test's own level, against the 99.9% quantile of a binomial count. Two families are counted once: what leaves a
test's reading alone gives both orders of them one p. Under exactness any two p of different pairs are then independent
(relabeling one model at random makes its p uniform whatever the others are), so that the count has the binomial mean
and variance. It is not quite binomial, about one excess in a thousand checks is expected by chance, and kinds share
their families: where no change moves a test's reading, its counts are one count.

A test is trusted after a change if it finds at least 90% of the related pairs at its own level and keeps that level:
an exact one by the accusations of that kind, any other by calling at most 5% of that change's unrelated pairs the same.

Two checkpoints are compared by sketches of a fourth of the numbers that the tests in the weights have here. Their rows
came later; stated before their numbers: wherever the larger sketches find at least 90% of the descendants by an exact
test, so do the small ones. The agreement of matchings finds fewer after noise, merges and pruning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.experiments._shared.training import loss_of
from bornbiased_jax.experiments.base import Context, Entry, Experiment, chunked, once_a_process
from bornbiased_jax.experiments.lineage import descendants_tables, settings
from bornbiased_jax.experiments.lineage.descendants_families import Families, Recipe, all_changes, make_families
from bornbiased_jax.experiments.lineage.descendants_readings import (
    FamilyReading,
    Origin,
    ScoreReading,
    read_initialization,
    read_outputs,
    read_published,
    read_small,
    read_weights,
)
from bornbiased_jax.experiments.lineage.descendants_summary import fold_of, summarize
from bornbiased_jax.experiments.lineage.unrelated_models import draw

_MOST = 1e6


def run(context: Context) -> Entry:
    """Run every test after every change, stored change by change, then summarize each test after each change."""
    settings = context.settings
    stand = _stand(settings, context.sources)
    changes = all_changes(settings)
    outcomes = context.rows("descendants/pairs", compute, settings, len(changes), unit="changes")
    return {
        "num_families": len(stand.bases),
        "loss": _loss(stand.families, [(base.cfg, base.params) for base in stand.bases]),
        **summarize(changes, [outcome["rows"] for outcome in outcomes], len(stand.bases)),
        "changes": [
            {
                "change": change.name,
                "kind": change.kind,
                "strength": change.size,
                "related": change.related,
                "usual": change.usual,
                "loss": outcome["loss"],
            }
            for change, outcome in zip(changes, outcomes, strict=True)
        ],
    }


class Stand(NamedTuple):
    """The models that every change is tried on: families, their trained models, and their initializations."""

    families: Families
    bases: list[FamilyReading]
    initializations: list[FamilyReading]


@once_a_process
def _stand(context: Context) -> Stand:
    """Read what the first process trained and kept, or train it."""
    families, settings = make_families(context), context.settings
    cfg = families.cfg
    initial = [(seed, draw(cfg, np.uint32(seed))) for seed in families.seeds[: settings["num_born"]]]
    return Stand(
        families,
        [FamilyReading(cfg, params, settings, cfg) for params in families.bases],
        [
            FamilyReading(cfg, params, settings, cfg, origin=Origin(cfg.d_model, None, 0, seed))
            for seed, params in initial
        ],
    )


@chunked
def compute(settings: Entry, sources: Entry, chunk: Chunk) -> Sequence[Entry]:
    """Run every test after the change that a chunk names by its number; families are read from where they lie."""
    stand, change = _stand(settings, sources), all_changes(settings)[chunk.start]
    families = stand.families
    models = [change.make(families, place) for place in range(len(stand.bases))]
    suspects = [FamilyReading(cfg, params, settings, families.cfg) for cfg, params in models]
    return [{"loss": _loss(families, models), "rows": _rows(settings, change, stand, suspects)}]


def _loss(families: Families, models: Sequence[Model]) -> float:
    """Compute the mean loss on a batch of the first text, in nats a token: what a change costs."""
    return float(np.mean([loss_of(cfg, params, families.batch) for cfg, params in models]))


def _rows(settings: Entry, change: Recipe, stand: Stand, suspects: Sequence[FamilyReading]) -> Sequence[Entry]:
    """Compute the readings of every pair of one change."""
    bases, initializations = stand.bases, stand.initializations
    nearby = neighbors(len(bases), settings["num_offsets"])
    rows = []
    for base, base_model in enumerate(bases):
        for suspect, suspect_model in enumerate(suspects):
            is_evaluated = base == suspect or suspect in nearby[base]
            if not is_evaluated and not (change.usual and base < suspect):
                continue
            seed = base * len(suspects) + suspect
            values = read_outputs(base_model, suspect_model, seed, kendall=is_evaluated) | read_weights(
                base_model, suspect_model, seed
            )
            if is_evaluated:
                values |= read_small(base_model, suspect_model, seed)
                values |= read_published(base_model, suspect_model)
            if change.usual and max(base, suspect) < len(initializations) and suspect in (base, nearby[base][0]):
                values |= read_initialization(
                    initializations[base], suspect_model, seed, settings["birth_permutations"]
                )
            rows.append({"base": base, "suspect": suspect, "chosen": is_evaluated, "values": _short(values)})
    return rows


def neighbors(count: int, num_offsets: int) -> list[list[int]]:
    """List for each family those that every test compares its model with: the next ones of its half, in a circle."""
    partners = []
    for place in range(count):
        half = [index for index in range(count) if fold_of(index) == fold_of(place)]
        at = half.index(place)
        partners.append([half[(at + step) % len(half)] for step in range(1, min(num_offsets, len(half) - 1) + 1)])
    return partners


def _short(values: Mapping[str, ScoreReading]) -> dict[str, list[float | None]]:
    """Round to six digits; what is infinite (a copy's p may be zero) becomes ±10⁶, beyond all others."""
    return {
        name: [None if part is None else float(f"{min(max(part, -_MOST), _MOST):.6g}") for part in value]
        for name, value in values.items()
    }


EXPERIMENT = Experiment(
    name="descendants",
    title="Which test finds which descendant",
    description=(
        "Models trained from known initializations are changed in every way of `bornbiased derive` that needs no "
        "experts, fine-tuned, given a LoRA adapter, and distilled into students of other initializations. Published "
        "tests and scores and those of this package, but for heads in token space and the population test, are run on "
        "the same pairs, related and unrelated."
    ),
    settings=settings.DESCENDANTS,
    cost={"smoke": "seconds", "laptop": "an hour on two busy cores", "paper": "not measured: for a GPU"},
    run=run,
    claims=descendants_tables.claims,
    tables=descendants_tables.tables,
    headline=descendants_tables.headline,
)
