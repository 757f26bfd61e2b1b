"""The decoder: embedding, a scan over blocks, final norm, head; and the paper's two simplified blocks.

This is the one module that knows where tokens enter the residual stream and where logits leave it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import Activation, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.attention import Attention
from bornbiased_jax.model.cache import Cache, RollingCache
from bornbiased_jax.model.interventions import NO_EDITS, Edit, Edits, as_edits, edited, of_layer
from bornbiased_jax.model.layers import MLP, Experts, Norm
from bornbiased_jax.model.limits import check_length, check_width
from bornbiased_jax.parameters import Params

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)


def enter(cfg: ModelConfig, rows_BTD: ArrayT, positions_TD: ArrayT | None) -> ArrayT:
    """Make the input of the first block from rows of the token table and of the table of positions.

    Args:
        cfg: the architecture.
        rows_BTD: rows of the token table, or vectors in their place.
        positions_TD: rows of the table of learned positions; None where there is none.
    """
    if cfg.embedding_scale != 1.0:
        rows_BTD = rows_BTD * rows_BTD.dtype.type(cfg.embedding_scale)
    return rows_BTD if positions_TD is None else rows_BTD + positions_TD[None]


def final_norm(cfg: ModelConfig, params: Params, stream: jax.Array) -> jax.Array:
    """Apply the final norm to the residual stream after the last block."""
    final: Any = Norm(cfg.norm, cfg.norm_eps).apply({"params": params.get("final_norm", {})}, stream)
    return final


def head_path(cfg: ModelConfig) -> str:
    """Return the path of the matrix that makes logits: [D, V], or the embedding [V, D] where the two are tied."""
    return "embed/embedding" if cfg.tie_embeddings else "head/kernel"


def head_table(cfg: ModelConfig, params: Params) -> tuple[jax.Array, int]:
    """Return the matrix that makes logits, and which of its axes is the width D: [D, V] untied, [V, D] tied."""
    module, leaf = head_path(cfg).split("/")
    return params[module][leaf], 1 if cfg.tie_embeddings else 0


def logits_of(cfg: ModelConfig, params: Params, final: jax.Array, *, precision: Any = "highest") -> jax.Array:
    """Project outputs of the final norm [..., D] on the vocabulary [..., V] (Equation 1), float32."""
    table, axis = head_table(cfg, params)
    dims = (((final.ndim - 1,), (axis,)), ((), ()))
    logits = jax.lax.dot_general(
        final, table.astype(final.dtype), dims, precision=precision, preferred_element_type=jnp.float32
    )
    return soft_cap(logits, cfg.logit_softcap)


def soft_cap(x: jax.Array, cap: float | None) -> jax.Array:
    """Bound values smoothly to ±cap: cap · tanh(x / cap); None leaves them as they are."""
    return x if cap is None else cap * jnp.tanh(x / cap)


class Block(nn.Module):
    """Pre-norm (Section 2.1), norms on the sublayers' outputs (OLMo-2), both (Gemma), or parallel (GPT-NeoX).

    With ``last_only`` every query, the MLP and the output are computed at the last position alone; the
    keys and values still come from all positions.
    """

    cfg: ModelConfig
    capture: tuple[str, ...] = ()
    precision: Any = "highest"
    last_only: bool = False
    edits: Edits = NO_EDITS

    @nn.compact
    def __call__(
        self,
        x_BTD: jax.Array,
        positions_T: jax.Array,
        mask_TS: jax.Array | None = None,
        past: tuple[jax.Array, jax.Array, jax.Array] | None = None,
        rolling: RollingCache | None = None,
        layer: jax.Array | None = None,
    ) -> tuple[jax.Array, dict[str, Any]]:
        cfg = self.cfg
        before, after = cfg.norm_position in ("pre", "both"), cfg.norm_position in ("post", "both")
        # Where one norm stands alone, before or after, it has the sublayer's name.
        last = "post_norm" if before else "norm"
        captured: dict[str, Any] = {}

        def norm(name: str, x: jax.Array) -> jax.Array:
            return Norm(cfg.norm, cfg.norm_eps, name=name)(x)

        def attend(x: jax.Array) -> jax.Array:
            y = norm("attention_norm", x) if before else x
            module = Attention(cfg, self.capture, self.precision, self.last_only, self.edits, name="attention")
            y, activations = module(y, positions_T, mask_TS, past, rolling, layer)
            captured.update(activations)
            return norm(f"attention_{last}", y) if after else y

        def feed_forward(x: jax.Array) -> jax.Array:
            y = norm("mlp_norm", x) if before else x
            sublayer = MLP if cfg.num_experts is None else Experts
            y, activations = sublayer(cfg, self.capture, self.precision, self.edits, name="mlp")(y)
            captured.update(activations)
            return norm(f"mlp_{last}", y) if after else y

        # Residual connections around both sublayers: side by side, or MLP after attention.
        stream = x_BTD[:, -1:] if self.last_only else x_BTD
        if cfg.parallel_residual:
            stream = stream + attend(x_BTD) + feed_forward(stream)
        else:
            if cfg.attention:
                update = attend(x_BTD)
                stream = stream + update if cfg.residual else update
            if cfg.mlp:
                update = feed_forward(stream)
                stream = stream + update if cfg.residual else update
        stream = edited(self.edits.residual, stream)
        if "residual" in self.capture:
            captured["residual"] = stream
        return stream, captured


CAPTURABLE = (
    "residual",
    "attention_output",
    "attention_weights",
    "attention_received",
    "values",
    "keys",
    "mlp_preactivation",
    "mlp_up",
    "mlp_hidden",
    "attention_update",
    "mlp_update",
    "attention_input",
    "mlp_input",
    "router_logits",
)

ReduceLayer = Callable[[dict[str, jax.Array]], Any]


class Outputs(NamedTuple):
    """What a forward pass returns. T is 1 where only the last position was asked for."""

    logits_BTV: jax.Array | None
    """Next-token logits, float32, or None."""
    final_BTD: jax.Array
    """Output of the final norm."""
    embedded_BTD: jax.Array
    """Input of the first block."""
    layers: Any
    """Captured activations stacked over layers [L, …], or what ``reduce`` made of them."""
    cache: Cache | None
    """Keys and values up to here, when a cache was given."""


def apply(
    cfg: ModelConfig,
    params: Params,
    x: jax.Array,
    *,
    positions: Literal["all", "last"] = "all",
    logits: bool = True,
    capture: Sequence[str] = (),
    reduce: ReduceLayer | None = None,
    dtype: Any = None,
    precision: Any = "highest",
    mask_TT: jax.Array | None = None,
    edit: Edit | Edits | None = None,
    cache: Cache | None = None,
    rolling: RollingCache | None = None,
    remat: bool | Callable[..., bool] = False,
    unroll: int = 1,
    stream_sharding: jax.sharding.Sharding | None = None,
) -> Outputs:
    """Run the decoder.

    Args:
        cfg: the architecture.
        params: its weights, as :func:`init` lays them out.
        x: token ids [B, T], or vectors [B, T, D] fed in place of token embeddings (Section 4.1).
        positions: "last" computes the last block's queries, MLP, final norm and logits at the last
            position alone, and position-wise ones hold that position only. "all" computes everything.
        logits: whether to project on the vocabulary.
        capture: names from ``CAPTURABLE`` to return for every layer.
        reduce: applied to each layer's captured activations inside the scan, so that only its result is stacked.
        dtype: compute dtype (default: that of the parameters). Norms and softmax stay in float32.
        precision: of the matrix products; "highest" means float32 products on every device.
        mask_TT: boolean, further restricts which keys each query sees.
        edit: what to put in place of activations, by site; a function alone replaces the aggregated values
            before W_O (see :mod:`bornbiased_jax.model.interventions`).
        cache: keys and values of earlier positions; ``x`` continues after them.
        rolling: each query sees the first and the latest tokens alone, at their positions inside a rolling cache; not
            with ``cache``, which holds everything.
        remat: recompute each block in the backward pass instead of storing its activations; or what to store
            nevertheless, one of ``jax.checkpoint_policies``.
        unroll: blocks in one turn of the scan; ``cfg.num_layers`` leaves no loop. Numbers stay the same up to
            rounding; compilation grows with it.
        stream_sharding: where the residual stream [B, T, D] lies on several devices. Left to the compiler, it may
            follow the weights and be cut along its width.

    Returns:
        :class:`Outputs`.

    Raises:
        InputError: an unknown capture, a width or length that does not fit the configuration.

    >>> import numpy as np
    >>> from bornbiased_jax.config import preset
    >>> from bornbiased_jax.init import init_seed
    >>> cfg = preset("gpt2-tiny", num_layers=2, d_model=16, d_ff=32, vocab_size=64)
    >>> out = apply(cfg, init_seed(cfg, 42), np.zeros((3, 5), np.int32), capture=("residual",))
    >>> out.logits_BTV.shape, out.layers["residual"].shape
    ((3, 5, 64), (2, 3, 5, 16))
    """
    last = positions == "last"
    _check(cfg, x, capture, last, rolling)
    if rolling is not None and cache is not None:
        raise InputError("a rolling cache and a whole one exclude each other: give one of them")
    start = jnp.zeros((), jnp.int32) if cache is None else cache.length
    positions_T = start + jnp.arange(x.shape[1], dtype=jnp.int32)
    edits = as_edits(edit)
    dtype = dtype or params["embed"]["embedding"].dtype

    def placed(stream_BTD: jax.Array) -> jax.Array:
        return stream_BTD if stream_sharding is None else jax.lax.with_sharding_constraint(stream_BTD, stream_sharding)

    # Tokens and positions enter the residual stream.
    inside_T = positions_T if rolling is None else rolling.inside(positions_T)
    rows_BTD = _picked(params["embed"]["embedding"], x) if x.ndim == 2 else x
    positions_TD = None
    if cfg.positions == "learned":
        positions_TD = jnp.take(params["positions"]["embedding"], inside_T, axis=0)
    embedded_BTD = placed(enter(cfg, jnp.asarray(rows_BTD), positions_TD).astype(dtype))

    def block(stream: jax.Array, layer: tuple[Any, ...], *, last_only: bool) -> tuple[jax.Array, Any]:
        weights, index, past_layer = layer
        past = None if past_layer is None else (*past_layer, start)
        options: dict[str, Any] = dict(
            capture=capture, reduce=reduce, last=last, last_only=last_only, precision=precision
        )
        options |= dict(mask_TT=mask_TT, edits=edits, past=past, rolling=rolling)
        stream, *results = through_block(cfg, weights, stream, positions_T, index, **options)
        return placed(stream), tuple(results)

    # Scan over the blocks; with "last", the last block alone runs apart, on its last position.
    past = None if cache is None else (cache.keys_LBSGK, cache.values_LBSGK)
    layers = (params.get("blocks", {}), jnp.arange(cfg.num_layers), past)
    full_block = functools.partial(block, last_only=False)
    body: Callable[..., Any] = full_block
    if remat:
        # Within a scan nothing can be merged with the forward pass, so no barriers are needed.
        body = jax.checkpoint(full_block, prevent_cse=False, policy=None if remat is True else remat)
    if last:

        def at(stream: jax.Array, index: jax.Array) -> tuple[jax.Array, Any]:
            return body(stream, jax.tree.map(lambda leaf: _picked(leaf, index), layers))

        # By their index: all blocks but the last, sliced, would be a copy of them.
        tail = jax.tree.map(lambda leaf: leaf[-1], layers)
        stream, stacked = jax.lax.scan(at, embedded_BTD, jnp.arange(cfg.num_layers - 1), unroll=unroll)
        stream, last_results = block(stream, tail, last_only=True)
        stacked = jax.tree.map(lambda before, last: jnp.concatenate([before, last[None]]), stacked, last_results)
    else:
        stream, stacked = jax.lax.scan(body, embedded_BTD, layers, unroll=unroll)
    captured, filled = stacked

    # Final norm, logits and the filled cache.
    final_BTD = final_norm(cfg, params, stream)
    logits_BTV = logits_of(cfg, params, final_BTD, precision=precision) if logits else None
    new_cache = None if cache is None else Cache(filled[0], filled[1], start + x.shape[1])
    return Outputs(logits_BTV, final_BTD, embedded_BTD, captured, new_cache)


def through_block(
    cfg: ModelConfig,
    weights: Params,
    stream: jax.Array,
    positions_T: jax.Array,
    index: jax.Array,
    *,
    capture: Sequence[str] = (),
    reduce: ReduceLayer | None = None,
    last: bool = False,
    last_only: bool = False,
    precision: Any = "highest",
    mask_TT: jax.Array | None = None,
    edits: Edits = NO_EDITS,
    past: tuple[jax.Array, jax.Array, jax.Array] | None = None,
    rolling: RollingCache | None = None,
) -> tuple[jax.Array, Any, Any]:
    """Apply one block of :func:`apply`.

    Args:
        cfg: the architecture.
        weights: the block's parameters, without the axis of layers.
        stream: the residual stream before it [B, T, D].
        positions_T: of the tokens, from 0.
        index: of the block, from 0.
        capture, reduce, precision, mask_TT, rolling: as in :func:`apply`.
        last: position-wise captures keep their last position alone.
        last_only: so does the block's output.
        edits: by site.
        past: keys and values of earlier positions, and how many they are.

    Returns:
        The stream after the block, what was captured or made of it, and with ``past`` the keys and values up to here.
    """
    module = Block(cfg, tuple(capture), precision, last_only, of_layer(edits, index))
    applied: Any = module.apply({"params": weights}, stream, positions_T, mask_TT, past, rolling, index)
    stream, captured = applied
    filled = captured.pop("_past", None)
    if last and not last_only:
        captured = {name: _last_position(name, value) for name, value in captured.items()}
    return stream, reduce(captured) if reduce is not None else captured, filled


def _picked(leaf: jax.Array, index: jax.Array) -> jax.Array:
    """Take entries of the first axis by index: one, or an array of them.

    The compiler would widen weights stored as bfloat16, all blocks of them, before the first is picked; a barrier that
    depends on the index keeps that within the picking.
    """
    if leaf.dtype == jnp.bfloat16:
        leaf, index = jax.lax.optimization_barrier((leaf, index))
    return jnp.take(leaf, index, axis=0) if index.ndim else jax.lax.dynamic_index_in_dim(leaf, index, 0, False)


def _last_position(name: str, value: jax.Array) -> jax.Array:
    if name in ("keys", "values"):
        return value
    axis = 2 if name == "attention_weights" else 1
    return jax.lax.slice_in_dim(value, value.shape[axis] - 1, value.shape[axis], axis=axis)


def _check(cfg: ModelConfig, x: jax.Array, capture: Sequence[str], last: bool, rolling: RollingCache | None) -> None:
    for name in capture:
        if name not in CAPTURABLE:
            raise InputError(f"unknown capture {name!r}: choose from {', '.join(CAPTURABLE)}")
        if cfg.num_experts is not None and name in ("mlp_preactivation", "mlp_up", "mlp_hidden"):
            raise InputError(f"{name} is not captured in a mixture of experts, where each token has its own neurons")
        if cfg.num_experts is None and name == "router_logits":
            raise InputError("router_logits are those of a mixture of experts: this model has none")
    if last and "attention_received" in capture:
        raise InputError("attention_received needs every query: use positions='all'")
    if x.ndim == 3:
        check_width(cfg, x.shape[-1])
    if rolling is None:
        check_length(cfg, x.shape[1])


def mlp0_config(
    *, num_layers: int, d_model: int, d_ff: int, activation: Activation = "relu", vocab_size: int = 2
) -> ModelConfig:
    """Return a stack of MLP₀ blocks (Definition 1): Y = φ(X W_up) W_down, no residual, no normalization."""
    return ModelConfig(
        num_layers=num_layers,
        num_heads=1,
        d_model=d_model,
        d_ff=d_ff,
        vocab_size=vocab_size,
        activation=activation,
        norm="none",
        residual=False,
        attention=False,
        positions="none",
    )


def attn0(x_BTD: jax.Array) -> jax.Array:
    """Apply the Attn₀ block (Definition 3) at every position: the running mean of the inputs so far.

    Args:
        x_BTD: inputs; axis −2 is the position.

    Returns:
        The same shape; position t holds the mean of positions 1 to t.
    """
    counts_T = jnp.arange(1, x_BTD.shape[-2] + 1, dtype=x_BTD.dtype)
    shape = (1,) * (x_BTD.ndim - 2) + (x_BTD.shape[-2], 1)
    return jnp.cumsum(x_BTD, axis=-2) / counts_T.reshape(shape)
