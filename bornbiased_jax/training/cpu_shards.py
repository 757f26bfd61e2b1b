"""A training step on one CPU: each core takes its part of the batch through a small model by itself.

Inside one program the cores share every single operation and wait for one another after each; a model that is small
has little to share. Here they meet once a step, where the gradients are added.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import optax

from bornbiased_jax import hardware
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import Params, count_parameters
from bornbiased_jax.training.step import LossFn, Metrics, State, apply_gradient, mean_gradient

# Above so many parameters products fill all cores by themselves, and a gradient for each shard costs more than it
# saves.
MAX_PARAMETERS = 12_000_000
MAX_SHARDS = 8
# Positions that go through a model at once: more fall out of the caches, and their temporaries are paged in anew at
# every step; fewer starve the products. A shard has one core's cache.
ROWS, ROWS_SHARD = 512, 256


def cpu_shards_for(cfg: ModelConfig, sequences: int) -> int:
    """Return how many parts of a batch one CPU takes at once: one for each core with a small model."""
    if jax.default_backend() != "cpu" or count_parameters(parameter_shapes(cfg)) > MAX_PARAMETERS:
        return 1
    return max(count for count in range(1, min(hardware.cores(), MAX_SHARDS, sequences) + 1) if sequences % count == 0)


def cache_chunks(sequences: int, context: int, rows: int) -> int:
    """Return how many equal chunks keep each within so many rows of positions."""
    counts = [k for k in range(1, sequences + 1) if sequences % k == 0]
    return next((k for k in counts if sequences // k * context <= rows), sequences)


class CpuShardsStep:
    """``step(states, tokens_ABT1) -> states, {"loss" [S], "grad_norm" [S]}`` of all seeds.

    The same update as :func:`~bornbiased_jax.training.step.make_train_step`, but for the order of sums. For one number
    of shards the result is the same bits at every call: each part's gradient is a sum in a fixed order, and so is
    theirs. ``states`` is a :class:`State` of leaves [S, ...] at first and then a list of each seed's own, which saves
    copies and is overwritten by the next call; :func:`stacked` makes the first from the second.

    Args:
        loss_fn: of what is trained, as :func:`~bornbiased_jax.training.step.make_loss` makes it.
        optimizer: of one seed.
        abstract: shapes of the state, leaves [S, ...].
        batch: shape of the tokens [A, B, T + 1], A·B divisible by ``shards``.
        shards: parts taken at once.
        frozen: the weights that an adapter belongs to, or their shapes.
    """

    def __init__(
        self,
        loss_fn: LossFn,
        optimizer: optax.GradientTransformation,
        abstract: State,
        batch: jax.ShapeDtypeStruct,
        *,
        shards: int,
        frozen: Params | None = None,
    ) -> None:
        A, B, T1 = batch.shape
        if A * B % shards:
            raise ValueError(f"{A * B} sequences do not divide among {shards} shards")
        per_shard = A * B // shards
        # Each shard takes its sequences in chunks that fit the cache.
        chunks = cache_chunks(per_shard, T1 - 1, ROWS if shards == 1 else ROWS_SHARD)
        self.shards = shards

        def gradient(
            params: Params, tokens_ABT1: jax.Array, shard: jax.Array, frozen: Params | None
        ) -> tuple[jax.Array, Params]:
            tokens_SMBT1 = tokens_ABT1.reshape(shards, chunks, per_shard // chunks, T1)
            tokens_MBT1 = jax.lax.dynamic_index_in_dim(tokens_SMBT1, shard, keepdims=False)
            return mean_gradient(loss_fn, params, tokens_MBT1, frozen)

        def finish(state: State, parts: list[tuple[jax.Array, Params]]) -> tuple[State, Metrics]:
            loss, grads = jax.tree.map(lambda *leaves: sum(leaves) / shards, *parts)
            return apply_gradient(optimizer, state, loss, grads)

        # Compile both programs for the state of a single seed.
        index = jax.ShapeDtypeStruct((), jnp.int32)
        single = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), abstract)
        part = jax.eval_shape(gradient, single.params, batch, index, frozen)
        self._gradient = jax.jit(gradient).lower(single.params, batch, index, frozen).compile()
        # A program of its own, which overwrites the state: within one with the gradient, or with an axis of seeds, the
        # compiler copies weights and moments first.
        self._finish = jax.jit(finish, donate_argnums=0).lower(single, [part] * shards).compile()
        self._threads = ThreadPoolExecutor(shards, thread_name_prefix="cpu-shard")

    def __call__(
        self, states: State | list[State], tokens_ABT1: jax.Array, frozen: Params | None = None
    ) -> tuple[list[State], Metrics]:
        """Take one step of every seed; return the new states and the metrics, leaves [S, ...]."""

        def part(params: Params, shard: int) -> tuple[jax.Array, Params]:
            # A thread has none of its caller's settings of jax: without compilation there is no program to call.
            with jax.disable_jit(False):
                result: tuple[jax.Array, Params] = self._gradient(params, tokens_ABT1, jnp.int32(shard), frozen)
                jax.block_until_ready(result)
                return result

        by_seed = unstacked(states) if isinstance(states, State) else states
        # All handed out together: a shard that is done continues with the next seed, and updates are made meanwhile.
        shards = range(self.shards)
        parts = [[self._threads.submit(part, state.params, shard) for shard in shards] for state in by_seed]
        updated = [self._finish(state, [future.result() for future in parts.pop(0)]) for state in by_seed]
        metrics = jax.tree.map(lambda *values: jnp.stack(values), *[values for _, values in updated])
        return [state for state, _ in updated], metrics


def stacked(states: State | list[State]) -> State:
    """Return the state of all seeds, leaves [S, ...]: a copy of the list's arrays, or the state itself."""
    return states if isinstance(states, State) else _stack(states)


def unstacked(state: State) -> list[State]:
    """Split a state into one for each seed and free the arrays of the stacked one; a single seed's are not copied."""
    if jax.tree.leaves(state)[0].shape[0] == 1:
        alone: list[State] = _unstack_one(state)
        return alone
    apart: list[State] = jax.block_until_ready(_unstack(state))
    # Whoever called may hold the whole state until the last step: twice the memory of training.
    jax.tree.map(lambda leaf: leaf.delete(), state)
    return apart


@jax.jit
def _stack(states: list[State]) -> State:
    state: State = jax.tree.map(lambda *leaves: jnp.stack(leaves), *states)
    return state


@jax.jit
def _unstack(state: State) -> list[State]:
    count = jax.tree.leaves(state)[0].shape[0]
    return [jax.tree.map(lambda leaf, seed=seed: leaf[seed], state) for seed in range(count)]


# The buffers of a single seed only change their shape.
_unstack_one = jax.jit(_unstack, donate_argnums=0)
