"""When sinks appear: all seeds of a pretraining run at initialization and at each of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from numpy.typing import ArrayLike

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.checkpoints.formats.run import find_steps, read_run
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.probes.sinks import DEFAULTS, SinkOptions, measure_sinks


class StepSinks(TypedDict):
    """One step of a run, JSON-ready; lists are by seed."""

    step: int
    seeds: list[int]
    sink_rate: list[float]
    """Fraction of heads that are sinks, as ``threshold`` of the options says."""
    largest_score: list[float]
    """Mean score of the strongest head."""


def check_run(opened: Checkpoint) -> None:
    """Refuse a checkpoint that has no steps.

    Raises:
        InputError: the checkpoint is not of a pretraining run.
    """
    if "run" not in opened.info:
        raise InputError(f"{opened.reference} has no steps to follow: name a pretraining run, as in RUN@seed=42")


def sinks_by_step(
    opened: Checkpoint, tokens_NT: ArrayLike, options: SinkOptions = DEFAULTS, *, quiet: bool = False
) -> list[StepSinks]:
    """Measure sinks of all seeds of a run, step by step.

    Args:
        opened: any checkpoint of the run. Step 0 is drawn from the seeds where the run saved none and began untrained.
        tokens_NT: N sequences of T token ids.
        options: which heads are sinks.
        quiet: show no progress.

    Raises:
        InputError: not of a run, a corrupted checkpoint, inputs that do not fit the model, a model without attention.
    """
    check_run(opened)
    folder = Path(opened.info["run"])
    config = read_run(folder)["config"]
    seeds = [int(seed) for seed in config["seeds"]]
    saved_steps = find_steps(folder)
    is_untrained = config.get("init_from") is None and config.get("adapter") is None
    steps = [0, *saved_steps] if is_untrained and 0 not in saved_steps else saved_steps
    rows: list[StepSinks] = []
    with progress.bar(len(steps), "sinks by step", unit="steps", quiet=quiet) as advance:
        for step in steps:
            row: StepSinks = {"step": step, "seeds": seeds, "sink_rate": [], "largest_score": []}
            for seed in seeds:
                # Weights of a step that was not saved are the initial ones.
                if step in saved_steps:
                    params = open_checkpoint(f"{folder}@seed={seed},step={step}").params()
                else:
                    params = init_seed(opened.cfg, seed)
                sinks = measure_sinks(opened.cfg, params, tokens_NT, options)
                row["sink_rate"].append(sinks["sink_rate"])
                row["largest_score"].append(float(sinks["score_LH"].max()))
            rows.append(row)
            advance(1)
    return rows
