"""Verdicts on a suspect and each checkpoint of a run: `seedprint --by-step`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict, Unpack

from bornbiased_jax import progress
from bornbiased_jax.checkpoints.formats.run import find_steps, read_run
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import trace
from bornbiased_jax.lineage.compared_model import ComparedModel
from bornbiased_jax.lineage.trace import TraceOptions
from bornbiased_jax.stats.multiple import holm_log10


def run_steps(reference: str) -> list[tuple[int, str]]:
    """Return the steps of a run's checkpoints, each with the reference of that checkpoint.

    Raises:
        InputError: the reference names no run, one step of it, or a run of several seeds and none of them.
    """
    parsed = parse_ref(reference)
    if parsed.kind != "run" or parsed.path is None or parsed.step is not None:
        raise InputError(f"--by-step follows a run through its steps: name one as in RUN@seed=42, not {reference}")
    seeds = read_run(parsed.path)["config"]["seeds"]
    seed = parsed.seed if parsed.seed is not None else seeds[0]
    if parsed.seed is None and len(seeds) > 1:
        named = ", ".join(map(str, seeds))
        raise InputError(f"{reference} has the seeds {named}: name one of them, as in {reference}@seed={seed}")
    return [(step, f"{parsed.path}@seed={seed},step={step}") for step in find_steps(parsed.path)]


class Decided(TypedDict):
    """A decision and its numbers."""

    verdict: str
    z: float | None
    log10_p: float | None


class StepComponent(Decided):
    """A row of a verdict's components; a test without any has the one row "model"."""

    component: str
    log10_p_adjusted: NotRequired[float]
    """Corrected by Holm's method over all steps and components, so that one level holds for all of them together."""


class StepVerdict(Decided):
    """The verdict on a suspect and one checkpoint of a run, JSON-ready."""

    step: int
    components: list[StepComponent]
    identity: NotRequired[str | None]
    """In which way the two models are one, as in the verdict on a pair; None where they are not."""


def is_identity(step: StepVerdict) -> bool:
    """Tell whether models are called one at a step because their numbers are equal."""
    return step["verdict"] == "same-lineage" and bool(step.get("identity"))


def by_step(reference: str, suspect: ComparedModel, **options: Unpack[TraceOptions]) -> list[StepVerdict]:
    """Compare a suspect with each checkpoint of a run, as in ``runs/a@seed=42``.

    Raises:
        InputError: no run, or what :func:`bornbiased_jax.lineage.trace.trace` refuses.
    """
    rows: list[StepVerdict] = []
    steps = run_steps(reference)
    with progress.bar(len(steps), "verdict by step", unit="checkpoints") as advance:
        for step, checkpoint in steps:
            # A model that was read block by block is closed after each comparison.
            model = suspect if suspect.scratch is None else dataclasses.replace(suspect)
            value: Mapping[str, Any] = trace.trace(checkpoint, model, **options).to_json()
            decision: Decided = {"verdict": value["verdict"], "z": value["z"], "log10_p": value["log10_p"]}
            components: list[StepComponent] = value.get("components") or [{"component": "model", **decision}]
            rows.append({"step": step, **decision, "components": components, "identity": value["identity"]})
            advance(1)
    # One family: every component at every step.
    family = [(row, p) for step_row in rows for row in step_row["components"] if (p := row["log10_p"]) is not None]
    for (row, _), adjusted in zip(family, holm_log10([p for _, p in family]), strict=True):
        row["log10_p_adjusted"] = float(adjusted)
    return rows
