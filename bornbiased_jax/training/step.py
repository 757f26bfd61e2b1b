"""One update: from the loss of a batch to new parameters, for one seed and for many.

Read from top to bottom: the loss of what is trained, its gradient over micro-batches, the update, the step that joins
them, and its lift over seeds. All are pure functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import DTypeLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.adapters import Adapter, adapted, attach
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.parallel import PyTree
from bornbiased_jax.parameters import Params

Mode = Literal["vmap", "map"]
Metrics = dict[str, jax.Array | np.ndarray]
"""What a step measures, by name: an array with a value for each seed."""
LossFn = Callable[[Params, jax.Array, Params | None], tuple[jax.Array, jax.Array]]
"""``loss(params, tokens_BT1, frozen)``: the summed loss in nats and the number of tokens predicted."""


class State(NamedTuple):
    """A seed's training at one moment: what steps update, hooks see and checkpoints hold.

    Leaves have a leading axis S once lifted over seeds. An update takes one batch, and the order of the data follows
    from the run: the step is the state of the data iterator too.
    """

    params: Params
    optimizer: optax.OptState
    step: jax.Array
    """Updates made, int32."""
    seed: jax.Array
    """uint32."""

    @property
    def arrays(self) -> tuple[Params, optax.OptState]:
        """Parameters and the optimizer's state: the arrays of a checkpoint."""
        return self.params, self.optimizer


def make_loss(
    cfg: ModelConfig,
    adapter: Adapter | None = None,
    *,
    dtype: DTypeLike = jnp.float32,
    remat: bool = False,
    rows: jax.sharding.Sharding | None = None,
) -> LossFn:
    """Return the loss of what is trained: a model, or an adapter on frozen weights.

    Args:
        cfg: the model's architecture; of an adapter its base's.
        adapter: what ``params`` are, where they are not the model's.
        dtype: of the computation.
        remat: recompute each block in the backward pass.
        rows: how sequences lie on several devices.
    """
    # Both are closures over what is not trained.
    if adapter is None:
        return lambda params, tokens_BT1, _: loss_sum(cfg, params, tokens_BT1, dtype=dtype, remat=remat, rows=rows)

    def adapter_loss(params: Params, tokens_BT1: jax.Array, frozen: Params | None) -> tuple[jax.Array, jax.Array]:
        assert frozen is not None
        model = attach(adapter, frozen, params)
        return loss_sum(adapted(cfg, adapter), model, tokens_BT1, dtype=dtype, remat=remat, rows=rows)

    return adapter_loss


def mean_gradient(
    loss_fn: LossFn, params: Params, tokens_MBT1: jax.Array, frozen: Params | None
) -> tuple[jax.Array, Params]:
    """Average the losses (nats per token) and gradients of M equal micro-batches; ``frozen`` has no gradient."""

    def mean_loss(params: Params, tokens_BT1: jax.Array) -> jax.Array:
        total, count = loss_fn(params, tokens_BT1, frozen)
        return total / count

    # The loss of a batch has a custom gradient, which never holds all logits.
    value_and_grad = jax.value_and_grad(mean_loss)
    count = tokens_MBT1.shape[0]
    if count == 1:
        return value_and_grad(params, tokens_MBT1[0])

    # One micro-batch after the other, so that the activations of one alone are in memory.
    def add(sums: tuple[jax.Array, Params], tokens_BT1: jax.Array) -> tuple[tuple[jax.Array, Params], None]:
        return jax.tree.map(jnp.add, sums, value_and_grad(params, tokens_BT1)), None

    zeros = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(add, zeros, tokens_MBT1)
    mean: tuple[jax.Array, Params] = jax.tree.map(lambda leaf: leaf / count, total)
    return mean


def apply_gradient(
    optimizer: optax.GradientTransformation, state: State, loss: jax.Array, grads: Params
) -> tuple[State, Metrics]:
    """Return the state after one update, with "loss" and "grad_norm" (before clipping) as measured."""
    # Clip, take the optimizer's direction, decay, scale by the learning rate.
    updates, moments = optimizer.update(grads, state.optimizer, state.params)
    params = optax.apply_updates(state.params, updates)
    state = state._replace(params=params, optimizer=moments, step=state.step + 1)
    return state, {"loss": loss, "grad_norm": optax.tree.norm(grads)}


def make_train_step(loss_fn: LossFn, optimizer: optax.GradientTransformation) -> Callable[..., tuple[State, Metrics]]:
    """Make ``step(state, tokens_ABT1, frozen=None) -> state, metrics`` of one seed: A micro-batches, one update.

    "loss" is that of the batch before the update, in nats per token; "grad_norm" that of the averaged gradient before
    clipping.
    """

    def step(state: State, tokens_ABT1: jax.Array, frozen: Params | None = None) -> tuple[State, Metrics]:
        # Gradient over micro-batches, then the update.
        loss, grads = mean_gradient(loss_fn, state.params, tokens_ABT1, frozen)
        return apply_gradient(optimizer, state, loss, grads)

    return step


def over_seeds(fn: Callable[..., tuple[PyTree, PyTree]], mode: Mode) -> Callable[..., tuple[PyTree, PyTree]]:
    """Lift ``fn(state, *shared) -> state, metrics`` of one seed over the leading axis S of the state.

    What follows the state, a batch and the weights that no seed changes, is shared by the seeds.

    "vmap" computes all seeds at once. "map" computes one after the other within one program and overwrites the
    state in place, so that only one seed's activations are in memory.
    """

    def vmapped(state: PyTree, *shared: PyTree) -> tuple[PyTree, PyTree]:
        return jax.vmap(lambda state: fn(state, *shared))(state)

    def mapped(state: PyTree, *shared: PyTree) -> tuple[PyTree, PyTree]:
        count = jax.tree.leaves(state)[0].shape[0]
        # A single seed needs no loop.
        if count == 1:
            after, metrics = fn(jax.tree.map(lambda leaf: leaf[0], state), *shared)
            return jax.tree.map(lambda leaf: leaf[None], after), jax.tree.map(lambda leaf: leaf[None], metrics)

        def body(state: PyTree, index: jax.Array) -> tuple[PyTree, PyTree]:
            # Take one seed out of the stack, update it, put it back in its place.
            before = jax.tree.map(lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False), state)
            after, metrics = fn(before, *shared)
            put = functools.partial(jax.lax.dynamic_update_index_in_dim, index=index, axis=0)
            return jax.tree.map(put, state, after), metrics

        return jax.lax.scan(body, state, jnp.arange(count))

    return vmapped if mode == "vmap" else mapped
