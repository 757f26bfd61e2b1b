"""A training step on the cores of one CPU: each takes its part of the batch through the model by itself.

Inside one program the cores share every single operation and wait for one another after each; a model that is small
has little to share. Here they meet once a step, where the gradients are added.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models import count_parameters, parameter_shapes
from bornbiased_jax.pretrain.step import State, mean_gradient, update

# Above so many parameters products fill all cores by themselves, and a gradient for each lane costs more than it saves.
MAX_PARAMETERS = 12_000_000
MAX_LANES = 8
# Positions that go through a lane at once: what one core's second-level cache holds of a small model's activations.
ROWS = 256


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def lanes_for(cfg: ModelConfig, sequences: int, devices: int) -> int:
    """How many parts of a batch of so many sequences are taken at once: 1 unless a small model trains on one CPU."""
    small = count_parameters(parameter_shapes(cfg)) <= MAX_PARAMETERS
    if jax.default_backend() != "cpu" or devices > 1 or jax.process_count() > 1 or not small:
        return 1
    return max(count for count in range(1, min(cores(), MAX_LANES, sequences) + 1) if sequences % count == 0)


def lane_pieces(sequences: int, context: int) -> int:
    """Into how many equal pieces a lane had better cut its sequences."""
    fits = lambda k: sequences // k * context <= ROWS or k == sequences  # noqa: E731
    return min(k for k in range(1, sequences + 1) if sequences % k == 0 and fits(k))


class LanedStep:
    """``step(states, tokens_ABT1) -> states, {"loss" [S], "grad_norm" [S]}`` of all seeds.

    The same update as :func:`~bornbiased_jax.pretrain.step.make_train_step`, but for the order of sums. For one number
    of lanes the result is the same bits at every call: each part's gradient is a sum in a fixed order, and so is
    theirs. ``states`` is a :class:`State` of leaves [S, ...] at first and then a list of one with [1, ...] for each
    seed, which saves copies; :func:`stacked` makes the first from the second.

    Args:
        cfg: the architecture.
        optimiser: of one seed.
        abstract: shapes of the state, leaves [S, ...].
        batch: shape of the tokens [A, B, T + 1], A·B divisible by ``lanes``.
        lanes: parts taken at once.
        dtype: of the computation.
        remat: recompute each block in the backward pass.
    """

    def __init__(
        self,
        cfg: ModelConfig,
        optimiser: optax.GradientTransformation,
        abstract: State,
        batch: jax.ShapeDtypeStruct,
        *,
        lanes: int,
        dtype: Any = jnp.float32,
        remat: bool = False,
    ) -> None:
        A, B, T1 = batch.shape
        if A * B % lanes:
            raise ValueError(f"{A * B} sequences do not divide among {lanes} lanes")
        share = A * B // lanes
        pieces = lane_pieces(share, T1 - 1)
        self.lanes = lanes

        def gradient(params: Any, tokens_ABT1: jax.Array, lane: jax.Array) -> Any:
            tokens_LPBT1 = tokens_ABT1.reshape(lanes, pieces, share // pieces, T1)
            tokens_PBT1 = jax.lax.dynamic_index_in_dim(tokens_LPBT1, lane, keepdims=False)
            return mean_gradient(cfg, _only(params), tokens_PBT1, dtype=dtype, remat=remat)

        def finish(one: State, parts: list[Any]) -> Any:
            loss, grads = jax.tree.map(lambda *leaves: sum(leaves) / lanes, *parts)
            return jax.tree.map(lambda leaf: leaf[None], update(optimiser, _only(one), loss, grads))

        places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
        index = jax.ShapeDtypeStruct((), jnp.int32)
        one = jax.tree.map(lambda leaf: leaf.update(shape=(1, *leaf.shape[1:])), abstract)
        part = jax.eval_shape(gradient, one.params, batch, index)
        self._gradient = jax.jit(gradient).lower(one.params, batch, index).compile()
        # Nothing is donated: moments are read for their own update and for the weights', so that the compiler would
        # copy all of them before it overwrites any.
        self._finish = jax.jit(finish, out_shardings=(places, None)).lower(one, [part] * lanes).compile()
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="lane")

    def __call__(
        self, states: State | list[State], tokens_ABT1: jax.Array
    ) -> tuple[State | list[State], dict[str, jax.Array]]:
        if isinstance(states, State):
            single = jax.tree.leaves(states)[0].shape[0] == 1
            states = [states] if single else _seeds(states)

        def part(params: Any, lane: int) -> Any:
            return jax.block_until_ready(self._gradient(params, tokens_ABT1, jnp.int32(lane)))

        # All handed out together: a lane that is done goes on with the next seed, and updates are made meanwhile.
        parts = [[self._threads.submit(part, one.params, lane) for lane in range(self.lanes)] for one in states]
        done = [self._finish(one, [piece.result() for piece in parts.pop(0)]) for one in states]
        if len(done) == 1:
            return done[0]
        measured = jax.tree.map(lambda *found: jnp.concatenate(found), *[found for _, found in done])
        return [state for state, _ in done], measured


def stacked(states: State | list[State]) -> State:
    """The state of all seeds, leaves [S, ...]."""
    return _stack(states) if isinstance(states, list) else states


@jax.jit
def _stack(states: list[State]) -> State:
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *states)


@jax.jit
def _seeds(state: State) -> list[State]:
    count = jax.tree.leaves(state)[0].shape[0]
    return [jax.tree.map(lambda leaf, seed=seed: leaf[seed : seed + 1], state) for seed in range(count)]


def _only(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], tree)
