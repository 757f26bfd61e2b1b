"""Estimate the memory of a training step from its settings, and refuse a run that does not fit."""

from __future__ import annotations

from typing import NamedTuple

import jax

from bornbiased_jax import hardware, parallel
from bornbiased_jax.model.adapters import count_trained
from bornbiased_jax.model.memory import FLOAT, check_weights, forward_bytes, weights_bytes
from bornbiased_jax.training.config import PretrainConfig


class TrainingMemory(NamedTuple):
    """Bytes of a training step on one device: of weights, gradients and the optimizer's means, and of a micro-batch."""

    copies: float
    """How many times the weights are held, in all forms."""
    state: float
    activations: float


def memory_needed(config: PretrainConfig) -> TrainingMemory:
    """Estimate the least that a step holds on each device: all states, one seed's gradient, one micro-batch."""
    # Weights, gradients and two means of each seed, spread over the devices.
    devices = parallel.parse_mesh(config.mesh)
    parts = devices["data"] * devices["fsdp"]
    copies = (3 * len(config.seeds) // devices["seed"] + 1) / devices["fsdp"]
    if config.adapter is not None:
        trained = len(config.seeds) * count_trained(config.model, config.adapter)
        copies = 1 + 3 * FLOAT * trained / weights_bytes(config.model)
    # One CPU takes a micro-batch in chunks, a sequence at the least.
    alone = jax.default_backend() == "cpu" and parts == 1
    half = 0.5 if config.dtype == "bfloat16" else 1.0
    sequences = 1 if alone else config.micro_batch // parts
    activations = half * forward_bytes(config.model, sequences, config.context, keep_activations=not config.remat)
    return TrainingMemory(copies, copies * weights_bytes(config.model), activations)


def check_memory(config: PretrainConfig) -> None:
    """Refuse runs that do not fit: weights, gradients and the optimizer's two means of every seed, and a micro-batch.

    Raises:
        InputError: it does not.
    """
    needed = memory_needed(config)
    check_weights(config.model, copies=needed.copies)
    hardware.check_memory(
        needed.state + needed.activations,
        f"a step of {config.micro_batch:,} sequences of {config.context:,} tokens",
        "shorten the context, lower the batch size, raise the accumulation or recompute (remat)",
    )
