"""What a training step of each mitigation costs, timed side by side: on a shared machine nothing else compares.

Not a benchmark of its own in ``benchmarks/``: the table of ``sink_cures`` shows the costs beside the losses, in one
record, and experiments do not import benchmarks.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.pretrain import PretrainConfig, State, begin
from experiments.base import Context
from experiments.sinks.sink_training import run_config


def step_costs(context: Context, mitigations: Sequence[str], *, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds of a step of one seed, for each mitigation a list over rounds.

    In a round every mitigation does its ``steps`` steps, one after the other, so that what else the machine does meets
    all of them: compare within a round. Compilation and a first step come before. Batches are random ids.
    """
    running = {name: _started(run_config(context, name, context.work / "timed")) for name in mitigations}
    seconds: dict[str, list[float]] = {name: [] for name in mitigations}
    with progress.bar(rounds, "cost of a step", unit="rounds", quiet=context.quiet) as advance:
        for _ in range(rounds):
            for name, (step, state, rows) in running.items():
                start = time.perf_counter()
                for _ in range(steps):
                    state, _ = step(state, rows)
                jax.block_until_ready(state)
                seconds[name].append((time.perf_counter() - start) / steps)
                running[name] = (step, state, rows)
            advance()
    return seconds


def _started(config: PretrainConfig) -> tuple[Any, State, jax.Array]:
    """The compiled step, the state after one step, and a batch."""
    state, step = begin(dataclasses.replace(config, seeds=config.seeds[:1]))
    shape = (config.accumulation, config.micro_batch, config.context + 1)
    rows = jnp.asarray(np.random.default_rng(0).integers(0, config.model.vocab_size, shape, dtype=np.int32))
    state, _ = step(state, rows)
    return step, jax.block_until_ready(state), rows
