"""Estimate the memory of a training step from its settings, and refuse a run that does not fit."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from bornbiased_jax import hardware, parallel
from bornbiased_jax.checkpoints.formats.run import trained_shapes
from bornbiased_jax.model.memory import check_weights, forward_bytes, weights_bytes
from bornbiased_jax.parallel import tree_bytes
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.optimizer import make_optimizer


class TrainingMemory(NamedTuple):
    """Bytes of a training step on one device: of weights, gradients and the optimizer's means, and of a micro-batch."""

    state: float
    activations: float


def memory_needed(config: PretrainConfig) -> TrainingMemory:
    """Estimate the least that a step holds on each device: all states, one seed's gradient, one micro-batch."""
    # Weights and the optimizer's means of each seed and one gradient, spread over the devices; below an adapter its
    # base. Muon has one mean of a matrix, AdamW two.
    devices = parallel.parse_mesh(config.mesh)
    parts = devices["data"] * devices["fsdp"]
    trained = trained_shapes(config.model, config.adapter)
    moments = jax.eval_shape(make_optimizer(config, 1).init, trained)
    of_seeds = len(config.seeds) // devices["seed"] * (tree_bytes(trained) + tree_bytes(moments))
    frozen = 0 if config.adapter is None else weights_bytes(config.model)
    # One CPU takes a micro-batch in chunks, a sequence at the least.
    alone = jax.default_backend() == "cpu" and parts == 1
    sequences = 1 if alone else config.micro_batch // parts
    activations = forward_bytes(
        config.model,
        sequences,
        config.context,
        keep_activations=not config.remat,
        itemsize=jnp.dtype(config.dtype).itemsize,
    )
    return TrainingMemory((of_seeds + tree_bytes(trained) + frozen) / devices["fsdp"], activations)


def check_memory(config: PretrainConfig) -> None:
    """Refuse runs that do not fit: weights, gradients and the optimizer's means of every seed, and a micro-batch.

    Raises:
        InputError: it does not.
    """
    needed = memory_needed(config)
    check_weights(config.model, copies=needed.state / weights_bytes(config.model))
    hardware.check_memory(
        needed.state + needed.activations,
        f"a step of {config.micro_batch:,} sequences of {config.context:,} tokens",
        "shorten the context, lower the batch size, raise the accumulation or recompute (remat)",
    )
