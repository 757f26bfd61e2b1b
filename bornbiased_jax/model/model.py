"""The decoder: embedding, a scan over blocks, final norm, head; and the paper's two simplified blocks.

This is the one module that knows where tokens enter the residual stream and where logits leave it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from bornbiased_jax.config import Activation, ModelConfig, check_config
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.attention import Attention
from bornbiased_jax.model.interventions import NO_EDITS, Edit, Edits, apply_edit, as_edits, of_layer
from bornbiased_jax.model.layers import MLP, STATIC, Activations, BlockContext, Cache, Experts, Norm, Past, RollingCache
from bornbiased_jax.model.limits import check_length, check_tokens, check_width
from bornbiased_jax.parameters import Params

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)


def enter(cfg: ModelConfig, rows_BTD: ArrayT, positions_TD: ArrayT | None) -> ArrayT:
    """Make the input of the first block from rows of the token table and of the table of positions.

    Args:
        cfg: the architecture.
        rows_BTD: rows of the token table, or vectors in their place.
        positions_TD: rows of the table of learned positions; None where there is none.
    """
    # Gemma multiplies rows of the token table with √D.
    if cfg.embedding_scale != 1.0:
        rows_BTD = rows_BTD * rows_BTD.dtype.type(cfg.embedding_scale)
    return rows_BTD if positions_TD is None else rows_BTD + positions_TD[None]


def final_norm(cfg: ModelConfig, params: Params, stream: jax.Array) -> jax.Array:
    """Apply the final norm to the residual stream after the last block."""
    # Flax declares what a module returns as Any, or a pair where collections are mutable.
    final: Any = Norm(cfg.norm, cfg.norm_eps, cfg.norm_parameters).apply(
        {"params": params.get("final_norm", {})}, stream
    )
    final_BTD: jax.Array = final
    return final_BTD


def head_path(cfg: ModelConfig) -> str:
    """Return the path of the matrix that makes logits: [D, V], or the embedding [V, D] where the two are tied."""
    return "embed/embedding" if cfg.tie_embeddings else "head/kernel"


def head_table(cfg: ModelConfig, params: Params) -> tuple[jax.Array, int]:
    """Return the matrix that makes logits, and which of its axes is the width D: [D, V] untied, [V, D] tied."""
    return (params["embed"]["embedding"], 1) if cfg.tie_embeddings else (params["head"]["kernel"], 0)


def logits_of(cfg: ModelConfig, params: Params, final: jax.Array, *, precision: PrecisionLike = "highest") -> jax.Array:
    """Project outputs of the final norm [..., D] on the vocabulary [..., V] (Equation 1), float32."""
    # A tied head is the token table [V, D], one of its own [D, V]: contract the width, whichever axis it is.
    table, axis = head_table(cfg, params)
    dims = (((final.ndim - 1,), (axis,)), ((), ()))
    logits = jax.lax.dot_general(
        final, table.astype(final.dtype), dims, precision=precision, preferred_element_type=jnp.float32
    )
    if cfg.logit_scale != 1.0:
        logits = logits * cfg.logit_scale
    return logits if cfg.logit_softcap is None else soft_cap(logits, cfg.logit_softcap)


def soft_cap(x: jax.Array, cap: float) -> jax.Array:
    """Bound values smoothly to ±cap: cap · tanh(x / cap)."""
    return cap * jnp.tanh(x / cap)


class Block(nn.Module):
    """Pre-norm (Section 2.1), norms on the sublayers' outputs (OLMo-2), both (Gemma), or parallel (GPT-NeoX)."""

    cfg: ModelConfig

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, context: BlockContext
    ) -> tuple[jax.Array, Activations, tuple[jax.Array, jax.Array] | None]:
        """Return the residual stream after the block, activations by name, and keys and values up to here."""
        cfg = self.cfg
        before, after = cfg.norm_position in ("pre", "both"), cfg.norm_position in ("post", "both")
        # Where one norm stands alone, before or after, it has the sublayer's name.
        last = "post_norm" if before else "norm"
        activations: Activations = {}
        filled = None
        # What one norm of a parallel block gives to attention and MLP alike.
        shared_BTD: jax.Array | None = None

        def norm(name: str, x: jax.Array) -> jax.Array:
            return Norm(cfg.norm, cfg.norm_eps, cfg.norm_parameters, name=name)(x)

        def scaled(update: jax.Array) -> jax.Array:
            return update if cfg.residual_scale == 1.0 else update * cfg.residual_scale

        def attend(x: jax.Array) -> jax.Array:
            nonlocal filled, shared_BTD
            y = norm("attention_norm", x) if before else x
            if cfg.shared_norm:
                shared_BTD = y[:, -1:] if context.last_only else y
            y, of_attention, filled = Attention(cfg, name="attention")(y, context)
            activations.update(of_attention)
            return scaled(norm(f"attention_{last}", y) if after else y)

        def feed_forward(x: jax.Array) -> jax.Array:
            if shared_BTD is None:
                x = norm("mlp_norm", x) if before else x
            y = x if shared_BTD is None else shared_BTD
            sublayer = MLP if cfg.num_experts is None else Experts
            y, of_mlp = sublayer(cfg, name="mlp")(y, context)
            activations.update(of_mlp)
            return scaled(norm(f"mlp_{last}", y) if after else y)

        # Residual connections around both sublayers: in parallel, or MLP after attention.
        stream = x_BTD[:, -1:] if context.last_only else x_BTD
        if cfg.parallel_residual:
            stream = stream + attend(x_BTD) + feed_forward(stream)
        else:
            if cfg.attention:
                update = attend(x_BTD)
                stream = stream + update if cfg.residual else update
            if cfg.mlp:
                update = feed_forward(stream)
                stream = stream + update if cfg.residual else update
        stream = apply_edit(context.edits.residual, stream)
        return stream, activations | {"residual": stream}, filled


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
Positions = Literal["all", "last"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ForwardOptions:
    """Options of a forward pass. The defaults are one plain pass.

    A pytree: edits and caches are its arrays, so that it can go into compiled functions.

    Attributes:
        edit: what to put in place of activations, by site; a function alone replaces the aggregated values before W_O
            (see :mod:`bornbiased_jax.model.interventions`).
        cache: keys and values of earlier positions; the input continues after them.
        rolling: each query sees the first and the latest tokens alone, at their positions inside a rolling cache; not
            with ``cache``, which holds everything.
        dtype: compute dtype (default: that of the parameters). Norms and softmax stay in float32.
        precision: of the matrix products; "highest" means float32 products on every device.
        remat: recompute each block in the backward pass instead of storing its activations; or what to store
            nevertheless, one of ``jax.checkpoint_policies``.
        unroll: blocks in one turn of the scan; ``cfg.num_layers`` leaves no loop. Numbers stay the same up to
            rounding; compilation grows with it.
        stream_sharding: where the residual stream [B, T, D] lies on several devices. Left to the compiler, it may
            follow the weights and be cut along its width.
    """

    edit: Edit | Edits | None = None
    cache: Cache | None = None
    rolling: RollingCache | None = None
    dtype: DTypeLike | None = dataclasses.field(default=None, metadata=STATIC)
    precision: PrecisionLike = dataclasses.field(default="highest", metadata=STATIC)
    remat: bool | Callable[..., bool] = dataclasses.field(default=False, metadata=STATIC)
    unroll: int = dataclasses.field(default=1, metadata=STATIC)
    stream_sharding: jax.sharding.Sharding | None = dataclasses.field(default=None, metadata=STATIC)


PLAIN = ForwardOptions()


class Outputs(NamedTuple):
    """The result of a forward pass. T is 1 where only the last position was asked for."""

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
    positions: Positions = "all",
    logits: bool = True,
    capture: Sequence[str] = (),
    reduce: ReduceLayer | None = None,
    options: ForwardOptions = PLAIN,
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
        options: edits, caches, precision, and how the scan runs.

    Returns:
        :class:`Outputs`.

    Raises:
        InputError: a capture that is unknown or that the model does not have; ids on the host, a width or a length that
            do not fit the configuration, more positions than the cache has room for, or a rolling cache that sees
            nothing or more than learned positions number.

    >>> import numpy as np
    >>> from bornbiased_jax.config import preset
    >>> from bornbiased_jax.init import init_seed
    >>> cfg = preset("gpt2-tiny", num_layers=2, d_model=16, d_ff=32, vocab_size=64)
    >>> out = apply(cfg, init_seed(cfg, 42), np.zeros((3, 5), np.int32), capture=("residual",))
    >>> out.logits_BTV.shape, out.layers["residual"].shape
    ((3, 5, 64), (2, 3, 5, 16))
    """
    # Refuse what this model cannot compute, then number the positions after those of the cache.
    _check(cfg, x, capture, positions, options)
    cache = options.cache
    start = jnp.zeros((), jnp.int32) if cache is None else cache.length
    positions_T = start + jnp.arange(x.shape[1], dtype=jnp.int32)
    block = BlockProgram(cfg, tuple(capture), reduce, positions, options)

    # Tokens and positions enter the residual stream.
    inside_T = positions_T if options.rolling is None else options.rolling.inside(positions_T)
    rows_BTD = _take(params["embed"]["embedding"], x) if x.ndim == 2 else x
    positions_TD = None
    if cfg.positions == "learned":
        positions_TD = jnp.take(params["positions"]["embedding"], inside_T, axis=0)
    dtype = options.dtype or params["embed"]["embedding"].dtype
    embedded_BTD = enter(cfg, jnp.asarray(rows_BTD), positions_TD).astype(dtype)
    if options.stream_sharding is not None:
        embedded_BTD = jax.lax.with_sharding_constraint(embedded_BTD, options.stream_sharding)

    def step(stream_BTD: jax.Array, layer: tuple[Any, ...], *, is_final: bool = False) -> tuple[jax.Array, Any]:
        weights, index, past_layer = layer
        past = None if past_layer is None else (*past_layer, start)
        stream_BTD, *results = block(weights, stream_BTD, positions_T, index, past=past, is_final=is_final)
        if options.stream_sharding is not None:
            stream_BTD = jax.lax.with_sharding_constraint(stream_BTD, options.stream_sharding)
        return stream_BTD, tuple(results)

    # What is scanned over: weights, number and cache of each block.
    past = None if cache is None else (cache.keys_LBSGK, cache.values_LBSGK)
    layers = (params.get("blocks", {}), jnp.arange(cfg.num_layers), past)
    # In the backward pass blocks are computed again, or stored.
    body: Callable[[jax.Array, Any], tuple[jax.Array, Any]] = step
    if options.remat:
        # Within a scan nothing can be merged with the forward pass, so no barriers are needed.
        policy = None if options.remat is True else options.remat
        body = jax.checkpoint(step, prevent_cse=False, policy=policy)

    # Scan over the blocks; with "last", the last block alone runs apart, on its last position.
    if positions == "last":

        def at(stream_BTD: jax.Array, index: jax.Array) -> tuple[jax.Array, Any]:
            return body(stream_BTD, jax.tree.map(lambda leaf: _take(leaf, index), layers))

        # By their index: all blocks but the last, sliced, would be a copy of them.
        tail = jax.tree.map(lambda leaf: leaf[-1], layers)
        stream_BTD, stacked = jax.lax.scan(at, embedded_BTD, jnp.arange(cfg.num_layers - 1), unroll=options.unroll)
        stream_BTD, last_results = step(stream_BTD, tail, is_final=True)
        stacked = jax.tree.map(lambda before, last: jnp.concatenate([before, last[None]]), stacked, last_results)
    else:
        stream_BTD, stacked = jax.lax.scan(body, embedded_BTD, layers, unroll=options.unroll)
    captured, filled = stacked

    # Final norm, logits and the filled cache.
    final_BTD = final_norm(cfg, params, stream_BTD)
    logits_BTV = logits_of(cfg, params, final_BTD, precision=options.precision) if logits else None
    # Blocks without attention leave a cache as it is.
    pair = past if filled is None else filled
    new_cache = None if pair is None else Cache(pair[0], pair[1], start + x.shape[1])
    return Outputs(logits_BTV, final_BTD, embedded_BTD, captured, new_cache)


@dataclasses.dataclass(frozen=True)
class BlockProgram:
    """The program of a pass for each block, whether all lie in memory or one at a time.

    Attributes:
        cfg: the architecture.
        capture, reduce, positions: as in :func:`apply`.
        options: of the pass; edits, the rolling cache and the precision are the block's.
    """

    cfg: ModelConfig
    capture: tuple[str, ...] = ()
    reduce: ReduceLayer | None = None
    positions: Positions = "all"
    options: ForwardOptions = PLAIN

    def __call__(
        self,
        weights: Params,
        stream_BTD: jax.Array,
        positions_T: jax.Array,
        index: jax.Array,
        *,
        past: Past | None = None,
        is_final: bool = False,
    ) -> tuple[jax.Array, Any, Any]:
        """Apply one block to the residual stream.

        Args:
            weights: the block's parameters, without the axis of layers.
            stream_BTD: the residual stream before it.
            positions_T: of the tokens, from 0.
            index: of the block, from 0.
            past: keys and values of earlier positions, and how many they are.
            is_final: whether no block follows: with ``positions="last"`` it computes its last position alone.

        Returns:
            The stream after the block, what was captured or made of it, and with ``past`` the keys and values up to
            here.
        """
        options, at_last = self.options, self.positions == "last"
        context = BlockContext(
            positions_T,
            layer=index,
            past=past,
            rolling=options.rolling,
            # Edits learn here which block they act in.
            edits=NO_EDITS if options.edit is None else of_layer(as_edits(options.edit), index, self.cfg.num_layers),
            capture=self.capture,
            precision=options.precision,
            last_only=at_last and is_final,
        )
        applied: Any = Block(self.cfg).apply({"params": weights}, stream_BTD, context)
        stream_BTD, activations, filled = applied
        # Give what was asked for, never more: a scan would stack it.
        captured = {name: activations[name] for name in activations if name in self.capture}
        # Blocks before the final one compute all positions, and give the last.
        if at_last and not is_final:
            captured = {name: _last_position(name, value) for name, value in captured.items()}
        reduced = captured if self.reduce is None else self.reduce(captured)
        return stream_BTD, reduced, None if past is None else filled


def _take(leaf: jax.Array, index: jax.Array) -> jax.Array:
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
    # Queries are the third axis of weights [B, H, T, S], positions the second of all others.
    axis = 2 if name == "attention_weights" else 1
    return jax.lax.slice_in_dim(value, value.shape[axis] - 1, value.shape[axis], axis=axis)


def _check(
    cfg: ModelConfig, x: jax.Array, capture: Sequence[str], positions: Positions, options: ForwardOptions
) -> None:
    check_config(cfg)
    if getattr(x, "ndim", None) not in (2, 3):
        shape = f"an array of shape {x.shape}" if hasattr(x, "shape") else f"a {type(x).__name__}"
        raise InputError(f"x is {shape}: give an array of token ids [B, T] or of vectors [B, T, D]")
    if 0 in x.shape:
        raise InputError(f"x has shape {x.shape}: give at least one sequence of at least one position")
    for name in capture:
        _check_capture(cfg, name)
    if positions == "last" and "attention_received" in capture:
        raise InputError("attention_received needs every query: use positions='all'")
    if any(as_edits(options.edit)) and (positions == "last" or options.cache is not None):
        raise InputError("an edit counts the positions of a whole pass: use positions='all' and no cache")
    if x.ndim == 3:
        check_width(cfg, x.shape[-1])
    elif isinstance(x, np.ndarray):
        # Ids on the host are looked at: a negative one would be counted from the table's end, one beyond it give NaN.
        check_tokens(x, cfg.vocab_size)
    if options.rolling is None:
        _check_positions(cfg, x.shape[1], options.cache)
    elif options.cache is not None:
        raise InputError("a rolling cache and a whole one exclude each other: give one of them")
    else:
        _check_rolling(cfg, x.shape[1], options.rolling)


def _check_capture(cfg: ModelConfig, name: str) -> None:
    if name not in CAPTURABLE:
        raise InputError(f"unknown capture {name!r}: choose from {', '.join(CAPTURABLE)}")
    if cfg.num_experts is not None and name in ("mlp_preactivation", "mlp_up", "mlp_hidden"):
        raise InputError(f"{name} is not captured in a mixture of experts, where each token has its own neurons")
    if cfg.num_experts is None and name == "router_logits":
        raise InputError("router_logits are those of a mixture of experts: this model has none")
    if not cfg.attention and (name.startswith("attention_") or name in ("keys", "values")):
        raise InputError(f"{name} is of attention, which this model lacks (attention=false): leave it out")
    if not cfg.mlp and name.startswith("mlp_"):
        raise InputError(f"{name} is of an MLP, which this model lacks (mlp=false): leave it out")


def _check_positions(cfg: ModelConfig, length: int, cache: Cache | None) -> None:
    # How far a cache is filled is known only outside a compiled program.
    filled = 0 if cache is None or isinstance(cache.length, Tracer) else int(cache.length)
    check_length(cfg, filled + length)
    room = filled + length if cache is None else cache.keys_LBSGK.shape[2]
    if filled + length > room:
        raise InputError(f"the cache has room for {room} positions, not for {filled + length}: make a larger one")


def _check_rolling(cfg: ModelConfig, length: int, rolling: RollingCache) -> None:
    # Numbers that a compiled program takes are known to it alone.
    if isinstance(rolling.keep, Tracer) or isinstance(rolling.window, Tracer):
        return
    keep, window = int(rolling.keep), int(rolling.window)
    if keep < 0 or window < 1:
        raise InputError(f"a rolling cache of keep={keep}, window={window}: keep 0 tokens or more, and see 1 or more")
    check_length(cfg, min(length, keep + window))


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
