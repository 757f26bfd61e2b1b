"""When sinks are born: every seed of a pretraining run at birth and at each of its checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.checkpoints.formats.run import find_steps, read_run
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.sinks import measure_sinks_of_seeds


class StepSinks(TypedDict):
    """One step of a run, JSON-ready; lists are by seed."""

    step: int
    seeds: list[int]
    sink_rate: list[float]
    """Fraction of heads whose score of the first position exceeds epsilon, averaged over sequences."""
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
    opened: Checkpoint, tokens_NT: ArrayLike, *, epsilon: float = 0.25, quiet: bool = False
) -> list[StepSinks]:
    """Measure sinks at the first position of all seeds of a run, step by step, seeds in one vectorized pass.

    Args:
        opened: any checkpoint of the run. Step 0 is drawn from the seeds where the run kept none and began at a birth.
        tokens_NT: N sequences of T token ids.
        epsilon: a head is a sink where its score exceeds this.
        quiet: show no progress.

    Raises:
        InputError: not of a run, a damaged checkpoint, inputs that do not fit the model, a model without attention.
    """
    check_run(opened)
    folder = Path(opened.info["run"])
    config = read_run(folder)["config"]
    seeds = [int(seed) for seed in config["seeds"]]
    saved_steps = find_steps(folder)
    born = config.get("init_from") is None and config.get("adapter") is None
    steps = [0, *saved_steps] if born and 0 not in saved_steps else saved_steps
    rows: list[StepSinks] = []
    with progress.bar(len(steps), "sinks by step", unit="steps", quiet=quiet) as advance:
        for step in steps:
            params_by_seed = [
                open_checkpoint(f"{folder}@seed={seed},step={step}").params()
                if step in saved_steps
                else init_seed(opened.cfg, seed)
                for seed in seeds
            ]
            params_S: Params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *params_by_seed)
            measured = measure_sinks_of_seeds(opened.cfg, params_S, tokens_NT, epsilon=epsilon)
            rows.append(
                {
                    "step": step,
                    "seeds": seeds,
                    "sink_rate": measured.rate_S.tolist(),
                    "largest_score": measured.score_SLH.max(axis=(1, 2)).tolist(),
                }
            )
            advance(1)
    return rows
