"""A training step on one CPU: each core takes its part of the batch through a small model by itself.

Inside one program the cores share every single operation and wait for one another after each; a model that is small
has little to share. Here they meet once a step, where the gradients are added.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bornbiased_jax import hardware
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.models import count_parameters, parameter_shapes
from bornbiased_jax.pretrain.step import State, mean_gradient, update

# Above so many parameters products fill all cores by themselves, and a gradient for each lane costs more than it saves.
MAX_PARAMETERS = 12_000_000
MAX_LANES = 8
# Positions that go through a model at once: more fall out of the caches, and their temporaries are paged in anew at
# every step; fewer starve the products. A lane has one core's cache.
ROWS, ROWS_LANE = 512, 256


def lanes_for(cfg: ModelConfig, sequences: int) -> int:
    """How many parts of a batch of so many sequences one CPU takes at once: a small model one for each core."""
    if jax.default_backend() != "cpu" or count_parameters(parameter_shapes(cfg)) > MAX_PARAMETERS:
        return 1
    return max(count for count in range(1, min(hardware.cores(), MAX_LANES, sequences) + 1) if sequences % count == 0)


def cache_pieces(sequences: int, context: int, rows: int) -> int:
    """Into how many equal pieces so many sequences had better be cut, to have at most so many rows of positions."""
    fits = lambda k: sequences // k * context <= rows or k == sequences  # noqa: E731
    return min(k for k in range(1, sequences + 1) if sequences % k == 0 and fits(k))


class LanedStep:
    """``step(states, tokens_ABT1) -> states, {"loss" [S], "grad_norm" [S]}`` of all seeds.

    The same update as :func:`~bornbiased_jax.pretrain.step.make_train_step`, but for the order of sums. For one number
    of lanes the result is the same bits at every call: each part's gradient is a sum in a fixed order, and so is
    theirs. ``states`` is a :class:`State` of leaves [S, ...] at first and then a list of each seed's own, which saves
    copies and is overwritten; :func:`stacked` makes the first from the second.

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
        pieces = cache_pieces(share, T1 - 1, ROWS if lanes == 1 else ROWS_LANE)
        self.lanes = lanes

        def gradient(params: Any, tokens_ABT1: jax.Array, lane: jax.Array) -> Any:
            tokens_LPBT1 = tokens_ABT1.reshape(lanes, pieces, share // pieces, T1)
            tokens_PBT1 = jax.lax.dynamic_index_in_dim(tokens_LPBT1, lane, keepdims=False)
            return mean_gradient(cfg, params, tokens_PBT1, dtype=dtype, remat=remat)

        def finish(one: State, parts: list[Any]) -> Any:
            loss, grads = jax.tree.map(lambda *leaves: sum(leaves) / lanes, *parts)
            return update(optimiser, one, loss, grads)

        index = jax.ShapeDtypeStruct((), jnp.int32)
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), abstract)
        part = jax.eval_shape(gradient, one.params, batch, index)
        self._gradient = jax.jit(gradient).lower(one.params, batch, index).compile()
        # A program of its own, which overwrites the state: within one with the gradient, or with an axis of seeds, the
        # compiler copies weights and moments first.
        self._finish = jax.jit(finish, donate_argnums=0).lower(one, [part] * lanes).compile()
        self._threads = ThreadPoolExecutor(lanes, thread_name_prefix="lane")

    def __call__(self, states: State | list[State], tokens_ABT1: jax.Array) -> tuple[list[State], dict[str, jax.Array]]:
        def part(params: Any, lane: int) -> Any:
            return jax.block_until_ready(self._gradient(params, tokens_ABT1, jnp.int32(lane)))

        ones = unstacked(states) if isinstance(states, State) else states
        # All handed out together: a lane that is done goes on with the next seed, and updates are made meanwhile.
        parts = [[self._threads.submit(part, one.params, lane) for lane in range(self.lanes)] for one in ones]
        done = [self._finish(one, [piece.result() for piece in parts.pop(0)]) for one in ones]
        measured = jax.tree.map(lambda *found: jnp.stack(found), *[found for _, found in done])
        return [state for state, _ in done], measured


def stacked(states: State | list[State]) -> State:
    """The state of all seeds, leaves [S, ...]; a list is given up for it."""
    if isinstance(states, State):
        return states
    return _stack_one(states) if len(states) == 1 else _stack(states)


def unstacked(state: State) -> list[State]:
    """The state of each seed; that of all is given up for them."""
    single = jax.tree.leaves(state)[0].shape[0] == 1
    return _unstack_one(state) if single else _unstack(state)


@jax.jit
def _stack(states: list[State]) -> State:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)


@jax.jit
def _unstack(state: State) -> list[State]:
    count = jax.tree.leaves(state)[0].shape[0]
    return [jax.tree.map(lambda leaf, seed=seed: leaf[seed], state) for seed in range(count)]


# The buffers of a single seed only change their shape.
_stack_one = jax.jit(_stack, donate_argnums=0)
_unstack_one = jax.jit(_unstack, donate_argnums=0)
