"""One update: pure functions of the state of one seed, and their lift over a leading axis of seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.adapters import Adapter, adapted, attach
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.parameters import Params

Mode = Literal["vmap", "map"]


class State(NamedTuple):
    """Everything that an update changes; leaves have a leading axis S once lifted over seeds."""

    params: Params
    optimiser: Any


def loss_of(
    cfg: ModelConfig,
    params: Params,
    tokens_BT1: jax.Array,
    adapter: Adapter | None,
    frozen: Params | None,
    **settings: Any,
) -> tuple[jax.Array, jax.Array]:
    """Compute :func:`bornbiased_jax.model.loss.loss_sum` of a trained model, or of an adapter on a frozen one.

    Args:
        cfg: the model's architecture; of an adapter its base's.
        params: what is trained.
        tokens_BT1: the batch.
        adapter: None for the model itself.
        frozen: the weights of the adapter's base.
        settings: as ``loss_sum`` takes it.
    """
    if adapter is None:
        return loss_sum(cfg, params, tokens_BT1, **settings)
    assert frozen is not None
    return loss_sum(adapted(cfg, adapter), attach(adapter, frozen, params), tokens_BT1, **settings)


def mean_gradient(
    cfg: ModelConfig,
    params: Params,
    tokens_MBT1: jax.Array,
    *,
    dtype: Any = jnp.float32,
    remat: bool = False,
    rows: jax.sharding.Sharding | None = None,
    adapter: Adapter | None = None,
    frozen: Params | None = None,
) -> tuple[jax.Array, Params]:
    """Average the losses (nats per token) and gradients of M equal micro-batches.

    With an adapter ``params`` are its own, and the ``frozen`` weights have no gradient.
    """

    def mean_loss(params: Params, tokens_BT1: jax.Array) -> jax.Array:
        total, count = loss_of(cfg, params, tokens_BT1, adapter, frozen, dtype=dtype, remat=remat, rows=rows)
        return total / count

    value_and_grad = jax.value_and_grad(mean_loss)
    count = tokens_MBT1.shape[0]
    if count == 1:
        return value_and_grad(params, tokens_MBT1[0])

    def body(carry: Any, tokens_BT1: jax.Array) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, carry, value_and_grad(params, tokens_BT1)), None

    zeros = (jnp.zeros((), jnp.float32), jax.tree.map(jnp.zeros_like, params))
    total, _ = jax.lax.scan(body, zeros, tokens_MBT1)
    return jax.tree.map(lambda leaf: leaf / count, total)


def update(
    optimiser: optax.GradientTransformation, state: State, loss: jax.Array, grads: Params
) -> tuple[State, dict[str, jax.Array]]:
    """Return the state after one update, with "loss" and "grad_norm" (before clipping) as measured."""
    updates, inner = optimiser.update(grads, state.optimiser, state.params)
    params = optax.apply_updates(state.params, updates)
    return State(params, inner), {"loss": loss, "grad_norm": optax.tree.norm(grads)}


def make_train_step(
    cfg: ModelConfig,
    optimiser: optax.GradientTransformation,
    *,
    dtype: Any = jnp.float32,
    remat: bool = False,
    rows: jax.sharding.Sharding | None = None,
    adapter: Adapter | None = None,
) -> Callable[..., tuple[State, dict[str, jax.Array]]]:
    """Make ``step(state, tokens_ABT1) -> state, {"loss", "grad_norm"}`` of one seed: A micro-batches, one update.

    With an adapter, whose parameters the state holds, ``step(state, tokens_ABT1, frozen)``.

    The loss is that of the batch before the update, in nats per token; the norm is that of the averaged
    gradient before clipping.
    """

    def step(state: State, tokens_ABT1: jax.Array, frozen: Params | None = None) -> tuple[State, dict[str, jax.Array]]:
        settings: dict[str, Any] = dict(dtype=dtype, remat=remat, rows=rows, adapter=adapter, frozen=frozen)
        loss, grads = mean_gradient(cfg, state.params, tokens_ABT1, **settings)
        return update(optimiser, state, loss, grads)

    return step


def over_seeds(fn: Callable[..., tuple[Any, Any]], mode: Mode) -> Callable[..., tuple[Any, Any]]:
    """Lift ``fn(state, *shared) -> state, metrics`` of one seed over the leading axis S of the state.

    What follows the state, a batch and the weights that no seed changes, is shared by the seeds.

    "vmap" computes all seeds at once. "map" computes one after the other within one program and overwrites the
    state in place, so that only one seed's activations are in memory.
    """

    def vmapped(state: Any, *shared: Any) -> tuple[Any, Any]:
        return jax.vmap(lambda state: fn(state, *shared))(state)

    def mapped(state: Any, *shared: Any) -> tuple[Any, Any]:
        count = jax.tree.leaves(state)[0].shape[0]
        if count == 1:
            after = fn(jax.tree.map(lambda leaf: leaf[0], state), *shared)
            return jax.tree.map(lambda leaf: leaf[None], after)

        def body(state: Any, index: jax.Array) -> tuple[Any, Any]:
            pick = lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)  # noqa: E731
            put = lambda leaf, new: jax.lax.dynamic_update_index_in_dim(leaf, new, index, 0)  # noqa: E731
            after, measured = fn(jax.tree.map(pick, state), *shared)
            return jax.tree.map(put, state, after), measured

        return jax.lax.scan(body, state, jnp.arange(count))

    return vmapped if mode == "vmap" else mapped
