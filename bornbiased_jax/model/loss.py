"""The next-token loss of a batch, from the last hidden states, without ever holding all logits."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.model.attention import keep_products_and_attention
from bornbiased_jax.model.model import ForwardOptions, apply, head_table, soft_cap
from bornbiased_jax.parameters import Params

# Logits held at once, in scalars: enough rows of a large vocabulary for a CPU's products, and what an accelerator
# does not notice.
CHUNK_CPU = 2**24
CHUNK_ACCELERATOR = 2**28

# A CPU runs blocks written out after one another faster than a loop over them, which copies each block's
# weights, activations and gradients in and out of stacks; but the compiler's time grows with them.
MAX_UNROLLED = 8


def unrolled_blocks(cfg: ModelConfig, remat: bool = False) -> int:
    """Return how many blocks to unroll: all of a shallow model on a CPU, else one.

    With rematerialization the loop stays: without it the compiler merges what is computed twice.
    """
    few = cfg.num_layers <= MAX_UNROLLED
    return cfg.num_layers if few and not remat and jax.default_backend() == "cpu" else 1


def loss_sum(
    cfg: ModelConfig,
    params: Params,
    tokens_BT1: jax.Array,
    *,
    dtype: DTypeLike = jnp.float32,
    remat: bool = False,
    rows: jax.sharding.Sharding | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Compute the summed next-token loss of a batch in nats and the number of tokens predicted.

    Args:
        cfg: the architecture.
        params: its weights, float32.
        tokens_BT1: int32 [B, T + 1]; rows of −1 count for nothing.
        dtype: of the computation.
        remat: recompute each block in the backward pass; else only what is cheap to recompute.
        rows: how sequences lie on several devices; activations stay with their sequences.
    """
    dtype = jnp.dtype(dtype)
    # bfloat16 products have one precision; float32 ones are to be float32 on every device.
    precision = "highest" if dtype == jnp.float32 else "default"
    # Each token but the last is an input, each but the first a label; padding is fed as id 0 and not counted.
    labels_BT = tokens_BT1[:, 1:]
    inputs_BT = jnp.maximum(tokens_BT1[:, :-1], 0)
    unroll = unrolled_blocks(cfg, remat)
    policy: bool | Callable[..., bool] = remat
    if not remat and unroll < cfg.num_layers:
        # In a loop, norms and activations cost less to compute again than to stack; products with weights are kept.
        policy = keep_products_and_attention
    options = ForwardOptions(dtype=dtype, precision=precision, remat=policy, unroll=unroll, stream_sharding=rows)
    out = apply(cfg, params, inputs_BT, logits=False, options=options)
    return loss_of_final(cfg, params, out.final_BTD, labels_BT, precision=precision)


def loss_of_final(
    cfg: ModelConfig, params: Params, final_BTD: jax.Array, labels_BT: jax.Array, *, precision: PrecisionLike
) -> tuple[jax.Array, jax.Array]:
    """Compute the result of :func:`loss_sum` from the output of the final norm and the labels (−1 is ignored)."""
    table, axis = head_table(cfg, params)
    # Logits are linear in the hidden states, which are fewer.
    if cfg.logit_scale != 1.0:
        final_BTD = final_BTD * cfg.logit_scale
    B, T, D = final_BTD.shape
    chunk = chunk_length(cfg, B, T)
    # Cut along positions, [T / chunk, B·chunk, …], so that rows stay on the devices that hold them.
    hidden_CND = final_BTD.reshape(B, T // chunk, chunk, D).swapaxes(0, 1).reshape(T // chunk, B * chunk, D)
    labels_CN = labels_BT.reshape(B, T // chunk, chunk).swapaxes(0, 1).reshape(T // chunk, B * chunk)
    head = Head(axis, precision, cfg.logit_softcap)
    return cross_entropy(head, hidden_CND, table, labels_CN), jnp.sum(labels_BT >= 0)


def chunk_length(cfg: ModelConfig, batch: int, length: int) -> int:
    """Return how many positions go through the head at once: a divisor of the length."""
    limit = CHUNK_CPU if jax.default_backend() == "cpu" else CHUNK_ACCELERATOR
    target = max(1, limit // (cfg.vocab_size * batch))
    return max(size for size in range(1, length + 1) if length % size == 0 and (size <= target or size == 1))


class Head(NamedTuple):
    """Layout, precision and cap of the logits of a head.

    Attributes:
        axis: which axis of the table is D: it is [D, V] or [V, D].
        precision: of the matrix products.
        cap: of the logits, see :func:`.model.soft_cap`.
    """

    axis: int
    precision: PrecisionLike
    cap: float | None = None


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def cross_entropy(head: Head, hidden_CND: jax.Array, table: jax.Array, labels_CN: jax.Array) -> jax.Array:
    """Sum −log softmax(h W)[label] over all positions whose label is not negative, in nats, float32.

    Logits are made, turned into their gradient and dropped chunk by chunk, so that memory does not grow with T·V, and
    the backward pass makes none of them again: gradients of the hidden states and of the table are computed on the way
    forward, as both are linear in the (scalar) cotangent.

    Args:
        head: how logits are made.
        hidden_CND: outputs of the final norm, in chunks of N positions, in the compute dtype.
        table: [D, V] or [V, D], float32.
        labels_CN: int32, −1 where nothing is to be predicted.
    """
    weights = table.astype(hidden_CND.dtype)

    def body(total: jax.Array, rows: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        nll_N, _, _, _ = _chunk_loss(head, weights, *rows)
        return total + jnp.sum(nll_N), None

    total, _ = jax.lax.scan(body, jnp.zeros((), jnp.float32), (hidden_CND, labels_CN))
    return total


def _chunk_loss(
    head: Head, weights: jax.Array, hidden_ND: jax.Array, labels_N: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Compute losses [N], logits [N, V], exp(logits − max) [N, V] and its sum [N, 1]."""
    dims = (((1,), (head.axis,)), ((), ()))
    logits_NV = jax.lax.dot_general(
        hidden_ND, weights, dims, precision=head.precision, preferred_element_type=jnp.float32
    )
    # Softmax less its largest logit, so that no power overflows.
    if head.cap is not None:
        logits_NV = soft_cap(logits_NV, head.cap)
    largest_N1 = jnp.max(logits_NV, axis=1, keepdims=True)
    exp_NV = jnp.exp(logits_NV - largest_N1)
    sum_N1 = jnp.sum(exp_NV, axis=1, keepdims=True)
    chosen_N1 = jnp.take_along_axis(logits_NV, jnp.maximum(labels_N, 0)[:, None], axis=1)
    nll_N = (jnp.log(sum_N1) + largest_N1 - chosen_N1)[:, 0]
    return jnp.where(labels_N >= 0, nll_N, 0.0), logits_NV, exp_NV, sum_N1


def _forward(
    head: Head, hidden_CND: jax.Array, table: jax.Array, labels_CN: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    weights = table.astype(hidden_CND.dtype)
    axis, precision, cap = head

    def body(
        carry: tuple[jax.Array, jax.Array], rows: tuple[jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        total, grad_table = carry
        hidden_ND, labels_N = rows
        # d loss / d logits = softmax − one-hot target, 0 where nothing is to be predicted.
        nll_N, logits_NV, exp_NV, sum_N1 = _chunk_loss(head, weights, hidden_ND, labels_N)
        counted_N1 = (labels_N >= 0).astype(jnp.float32)[:, None]
        columns_NV = jax.lax.broadcasted_iota(jnp.int32, exp_NV.shape, 1)
        target_NV = (columns_NV == labels_N[:, None]).astype(jnp.float32)
        grad_NV = exp_NV * (counted_N1 / sum_N1) - target_NV
        if cap is not None:
            # d/dx of cap · tanh(x / cap) is 1 − tanh².
            grad_NV = grad_NV * (1.0 - jnp.square(logits_NV / cap))
        grad_NV = grad_NV.astype(hidden_CND.dtype)
        # Back through the head: to the hidden states of this chunk, and summed to the table.
        grad_ND = jax.lax.dot_general(grad_NV, weights, (((1,), (1 - axis,)), ((), ())), precision=precision)
        left, right = (hidden_ND, grad_NV) if axis == 0 else (grad_NV, hidden_ND)
        grad_table = grad_table + jax.lax.dot_general(
            left, right, (((0,), (0,)), ((), ())), precision=precision, preferred_element_type=jnp.float32
        )
        return (total + jnp.sum(nll_N), grad_table), grad_ND

    # Sums over chunks in float32: the loss, and the table's gradient.
    start = (jnp.zeros((), jnp.float32), jnp.zeros(table.shape, jnp.float32))
    (total, grad_table), grad_CND = jax.lax.scan(body, start, (hidden_CND, labels_CN))
    return total, (grad_CND, grad_table)


def _backward(_: Head, grads: tuple[jax.Array, jax.Array], cotangent: jax.Array) -> tuple[jax.Array, jax.Array, None]:
    grad_CND, grad_table = grads
    return grad_CND * cotangent.astype(grad_CND.dtype), grad_table * cotangent, None


cross_entropy.defvjp(_forward, _backward)


def bits_per_byte(nats: float, num_bytes: int) -> float:
    """Convert a total loss in nats over a text of ``num_bytes`` bytes to bits per byte."""
    return nats / math.log(2) / num_bytes
