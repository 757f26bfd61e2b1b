"""Every change of the benchmark: from a family's trained model to a descendant, or to what only looks like one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bornbiased_jax.derive import damage
from bornbiased_jax.derive.changes import Context as Drawing
from bornbiased_jax.derive.changes import parse_change
from bornbiased_jax.derive.damage import Model
from bornbiased_jax.parameters import Params
from experiments.lineage.descendants_families import Families
from experiments.lineage.unrelated_models import unpacked

TUNED, LORA, DISTILLED = "fine-tuned", "LoRA, merged", "distilled"
ALL_AT_ONCE = "rotated, units and heads renumbered"
FREE = frozenset(
    ("insert-layer", "rotate", "renumber", "negate", "permute", "rescale", "heads", "resize-vocab", "unused-rows",
     ALL_AT_ONCE)
)  # fmt: skip
"""Kinds that leave the function alone."""


class Change(NamedTuple):
    """One change at one strength.

    Attributes:
        kind: of change.
        strength: as it is written, "" where there is but one.
        size: the strength as a number, or None.
        make: families, a family's place -> the descendant.
        related: whether it is a descendant of the family's birth.
        usual: whether it is the strength of its kind at which every pair of families is tried.
    """

    kind: str
    strength: str
    size: float | None
    make: Callable[[Families, int], Model]
    related: bool = True
    usual: bool = True

    @property
    def name(self) -> str:
        """Kind and strength."""
        return f"{self.kind} {self.strength}".strip()


def all_changes(settings: Mapping[str, Any]) -> list[Change]:
    """List the changes in the order of the tables: training, damage, mixtures, blocks, free ones, distillation."""
    further, strengths = settings["further"], settings["strengths"]
    changes = [
        *_trained(TUNED, "tuned", further["tuned"]),
        *_trained(LORA, "adapted", further["tuned"]),
    ]
    # Damage, at several strengths.
    for kind in ("noise", "prune", "round"):
        values = strengths[kind]
        changes += [
            Change(kind, f"{value:g}", value, functools.partial(_derived, (f"{kind}:{value:g}",)), usual=value == usual)
            for value, usual in ((value, _middle(values)) for value in values)
        ]
    # Mixtures with a partner.
    for kind, mix in (("merge", damage.merge), ("slerp", damage.slerp)):
        values = strengths[kind]
        changes += [
            Change(kind, f"{value:g}", value, functools.partial(_mixed, mix, value), usual=value == _middle(values))
            for value in values
        ]
    # Blocks dropped and repeated.
    for kind in ("drop-layers", "repeat-layers"):
        changes += [
            Change(kind, blocks, None, functools.partial(_derived, (f"{kind}:{blocks}",)), usual=not place)
            for place, blocks in enumerate(strengths[kind])
        ]
    # Changes that preserve the function.
    for kind in ("insert-layer", "rotate", "renumber", "negate", "permute", "rescale", "heads"):
        changes.append(Change(kind, "", None, functools.partial(_derived, (kind + ":{seed}",))))
    free_changes = ("permute:{seed}", "heads:{seed}", "rescale:{seed}", "rotate:{seed}")
    changes.append(Change(ALL_AT_ONCE, "", None, functools.partial(_derived, free_changes)))
    changes += [
        Change("resize-vocab", f"{size}", None, functools.partial(_derived, (f"resize-vocab:{size}",)), usual=not place)
        for place, size in enumerate(strengths["resize-vocab"])
    ]
    changes.append(Change("unused-rows", "1000", None, functools.partial(_derived, ("unused-rows:1000",))))
    return changes + _trained(DISTILLED, "students", further["distilled"], related=False)


def _middle(values: list[float]) -> float:
    return values[len(values) // 2]


def _trained(kind: str, stage: str, steps: list[int], *, related: bool = True) -> list[Change]:
    return [
        Change(kind, f"{step} steps", step, functools.partial(_taken, stage, step), related, usual=step == steps[-1])
        for step in steps
    ]


def params_of(families: Families, place: int) -> Params:
    """Return a family's trained model."""
    return unpacked(families.cfg, families.bases[place])


def _taken(stage: str, step: int, families: Families, place: int) -> Model:
    return families.cfg, unpacked(families.cfg, getattr(families, stage)[step][place])


def _derived(texts: tuple[str, ...], families: Families, place: int) -> Model:
    """Run ``derive`` with draws of the family's own."""
    model: Model = (families.cfg, params_of(families, place))
    for text in texts:
        model = parse_change(text.format(seed=1_000 + place)).apply(model, Drawing(seed=1_000 + place))
    return model


def _mixed(mix: Callable[..., Params], weight: float, families: Families, place: int) -> Model:
    """Mix with a partner, which no family is, and which no other family has."""
    other = unpacked(families.cfg, families.partners[place % len(families.partners)])
    base = (families.cfg, params_of(families, place))
    return families.cfg, mix(base, (families.cfg, other), weight, "the partner")
