"""Causal multi-head attention, with every variation that the config names.

Kernels turn a row of attention logits into weights:

    softmax    e^s / Σ e^s
    sigmoid    σ(s − ln max_seq_len), each key for itself (Ramapuram et al., 2409.04431)
    softpick   max(e^s − 1, 0) / (Σ |e^s − 1| + ε): a key below zero weighs nothing (Zuhri et al., 2504.20966)
    clipped    clip((1 − γ) softmax(s) + γ, 0, 1), γ = −α/max_seq_len (Bondarenko et al., 2306.12929, their ζ = 1)
    centered    softmax(s) less 1/n over the n keys that the query sees: uniform attention adds nothing

The last four need not sum to 1 over a row. Plain softmax attention in bfloat16 is one kernel of the GPU where it has
one (:func:`fused_attention`), which never holds a [T, T] array.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.lax import PrecisionLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.fields import fields_of
from bornbiased_jax.model.interventions import apply_edit
from bornbiased_jax.model.layers import Activations, BlockContext, Linear, Norm, rotate

CLIP_ALPHA = 4.0
"""α of clipped softmax, which its authors use for T = 128: weights below about α/max_seq_len become zero."""

SOFTPICK_EPSILON = 1e-6
"""ε of softpick, on the scale of a row whose largest e^s is 1."""

Kernel = Callable[[jax.Array, jax.Array, int], jax.Array]


def _softmax(scores_BHTS: jax.Array, seen_11TS: jax.Array, _longest: int) -> jax.Array:
    return jax.nn.softmax(jnp.where(seen_11TS, scores_BHTS, -jnp.inf), axis=-1)


def _sigmoid(scores_BHTS: jax.Array, seen_11TS: jax.Array, longest: int) -> jax.Array:
    return jnp.where(seen_11TS, jax.nn.sigmoid(scores_BHTS - math.log(longest)), 0.0)


def _softpick(scores_BHTS: jax.Array, seen_11TS: jax.Array, _longest: int) -> jax.Array:
    """Divide numerator and denominator by e^m, m = max(0, largest logit), so that no power overflows.

    e^(s−m) − e^(−m) is e^(−m)(e^s − 1), which is exact near s = 0 where the difference would cancel.
    """
    # A key that is not seen may have any logit, and must not overflow where it is left out: 0, which weighs nothing.
    scores_BHTS = jnp.where(seen_11TS, scores_BHTS, 0.0)
    top_BHT1 = jnp.maximum(jax.lax.stop_gradient(jnp.max(scores_BHTS, axis=-1, keepdims=True)), 0.0)
    near = jnp.exp(-top_BHT1) * jnp.expm1(jnp.minimum(scores_BHTS, 1.0))
    far = jnp.exp(scores_BHTS - top_BHT1) - jnp.exp(-top_BHT1)
    above = jnp.where(scores_BHTS < 1.0, near, far)
    total_BHT1 = jnp.sum(jnp.abs(above), axis=-1, keepdims=True) + SOFTPICK_EPSILON
    return jnp.maximum(above, 0.0) / total_BHT1


def _clipped(scores_BHTS: jax.Array, seen_11TS: jax.Array, longest: int) -> jax.Array:
    gamma = -CLIP_ALPHA / longest
    return jnp.clip((1.0 - gamma) * _softmax(scores_BHTS, seen_11TS, longest) + gamma, 0.0, 1.0)


def _centered(scores_BHTS: jax.Array, seen_11TS: jax.Array, longest: int) -> jax.Array:
    mean_11TS = seen_11TS / jnp.sum(seen_11TS, axis=-1, keepdims=True)
    return _softmax(scores_BHTS, seen_11TS, longest) - mean_11TS


KERNELS: dict[str, Kernel] = {
    "softmax": _softmax,
    "sigmoid": _sigmoid,
    "softpick": _softpick,
    "clipped": _clipped,
    "centred": _centered,
}
"""Logits [B, H, T, S] in float32, which keys are seen [1, 1, T, S], max_seq_len -> weights [B, H, T, S]."""


def _softmax_with_extra(scores_BHTS: jax.Array, seen_11TS: jax.Array, extra_H: jax.Array) -> jax.Array:
    """Compute the softmax over the keys and one more column, which every query sees and which is cut off again."""
    scores_BHTS = jnp.where(seen_11TS, scores_BHTS, -jnp.inf)
    extra_BHT1 = jnp.broadcast_to(extra_H[None, :, None, None], (*scores_BHTS.shape[:3], 1))
    return jax.nn.softmax(jnp.concatenate([scores_BHTS, extra_BHT1], axis=-1), axis=-1)[..., :-1]


FUSED = {name: policy.unless for name, policy in fields_of("fused_attention") if policy.kind == "refused"}
"""The one value that each of these fields has where the fused kernel computes the same."""

FEATURE_MAPS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "elu": jax.nn.elu,
    "relu": jax.nn.relu,
    "identity": lambda q: q,
}
"""φ of Prefix-Tuning+, by its name in the configuration."""

# Rows of queries taken together: fewer leave less out, but each block costs a few more operations to compile.
MIN_ROWS = 32

MAX_BLOCKS = 8


def row_blocks(num_queries: int, num_keys: int, window: int | None) -> list[tuple[slice, slice]]:
    """Return blocks of query rows, each with the columns that causality and the window leave to any of them.

    With as many queries as keys, half of the square is never seen: blocks of rows leave most of it out.
    Other shapes (one query, or a cache that is partly empty) stay whole.
    """
    if num_queries != num_keys or num_queries < 2 * MIN_ROWS:
        return [(slice(0, num_queries), slice(0, num_keys))]
    size = max(MIN_ROWS, -(-num_queries // MAX_BLOCKS))
    blocks = []
    for start in range(0, num_queries, size):
        stop = min(start + size, num_queries)
        first = 0 if window is None else max(0, start - window + 1)
        blocks.append((slice(start, stop), slice(first, stop)))
    return blocks


class Attention(nn.Module):
    """softmax(Q Kᵀ/√K) V W_O over causal positions, G key/value heads shared by H query heads.

    Options, all applied to the aggregated values o before W_O and in this order: positional
    amplification √i or attenuation √(i/max_seq_len) (Section 6.2.1), per-head RMSNorm with one scale
    [K] shared by the heads ("The Structural Origin of Attention Sink"), a sigmoid output gate. In the
    weights: a window of the last w positions, an extra logit per head (zero or learned) that takes
    probability and adds nothing, or another kernel in place of the softmax
    (:data:`KERNELS`). In the values: a gate sigmoid(W v + b) of each
    value on itself, W [K, K] shared by the heads (value-state gate, 2510.09017).

    Adapters: ``prefix_length`` trained keys and values of each group before all positions, seen by every query and not
    rotated (prefix tuning); ``prefix_memory`` adds φ(q)ᵀ M to the aggregated values before the options above, q as it
    meets the keys and M [K, K] of each head (Prefix-Tuning+). Captured weights, keys and values are those of the input
    alone: what a row of weights lacks to 1 is the prefix's.
    """

    cfg: ModelConfig

    @nn.compact
    def __call__(
        self, x_BTD: jax.Array, context: BlockContext
    ) -> tuple[jax.Array, Activations, tuple[jax.Array, jax.Array]]:
        """Return the update of the residual stream [B, T, D], activations by name, and keys and values up to here."""
        cfg, edits, precision, rolling = self.cfg, context.edits, context.precision, context.rolling
        H, G, K = cfg.num_heads, cfg.kv_heads, cfg.key_dim
        # Blocks are scanned: which of them is a local one is known to the compiled program alone.
        if context.layer is None and (cfg.is_local is not None or cfg.is_rotated is not None):
            raise ValueError("layers of this configuration differ: say which one a block is")
        is_local = None if cfg.is_local is None else jnp.asarray(cfg.is_local)[context.layer]
        x_BTD = apply_edit(edits.attention_input, x_BTD)
        # Where the last position alone continues, it alone asks; keys and values come from all.
        positions_T = context.positions_T
        query_x = x_BTD[:, -1:] if context.last_only else x_BTD
        query_T = positions_T[-1:] if context.last_only else positions_T

        use_bias = cfg.bias or cfg.qkv_bias

        def project(name: str, x: jax.Array, heads: int) -> jax.Array:
            # Norms of queries and keys act on the projection as a whole (OLMo-2) or on each head (Qwen3).
            y = Linear(heads * K, use_bias, precision, name=name)(x)
            if cfg.qk_norm and cfg.qk_norm_scope == "projection":
                y = Norm("rmsnorm", cfg.norm_eps, name=f"{name}_norm")(y)
            y = y.reshape(*y.shape[:2], heads, K)
            if cfg.qk_norm and cfg.qk_norm_scope == "head":
                y = Norm("rmsnorm", cfg.norm_eps, name=f"{name}_norm")(y)
            return y

        # Queries, keys and values.
        q_BTHK, k_BSGK = project("query", query_x, H), project("key", x_BTD, G)
        v_BSGK = Linear(G * K, use_bias, precision, name="value")(x_BTD)
        v_BSGK = v_BSGK.reshape(*v_BSGK.shape[:2], G, K)
        if cfg.output_gate == "value":
            v_BSGK = v_BSGK * jax.nn.sigmoid(Linear(K, True, precision, name="value_gate")(v_BSGK))

        # RoPE on queries and keys.
        inside_T = query_T if rolling is None else rolling.inside(query_T)
        first_BTHK = q_BTHK
        if cfg.positions == "rope":
            # Among the latest tokens only distances count, and they are those of the text; the first tokens are met
            # from the query's place inside the cache.
            first_BTHK = rotate(q_BTHK, inside_T, cfg, context.layer) if rolling is not None else q_BTHK
            q_BTHK = rotate(q_BTHK, query_T, cfg, context.layer)
            k_BSGK = rotate(k_BSGK, positions_T, cfg, context.layer)
        k_BSGK, v_BSGK = apply_edit(edits.keys, k_BSGK), apply_edit(edits.values, v_BSGK)

        # Keys and values so far: the cache with this pass written into it.
        key_S = positions_T
        if context.past is not None:
            past_keys, past_values, start = context.past
            k_BSGK = jax.lax.dynamic_update_slice_in_dim(past_keys, k_BSGK.astype(past_keys.dtype), start, 1)
            v_BSGK = jax.lax.dynamic_update_slice_in_dim(past_values, v_BSGK.astype(past_values.dtype), start, 1)
            key_S = jnp.arange(k_BSGK.shape[1], dtype=positions_T.dtype)

        # Which keys each query sees, an extra logit of each head, and keys and values of a prefix that all see.
        seen_TS = self._seen(query_T, key_S, context, is_local)
        extra_H = None
        if cfg.sink_logit != "none":
            zeros = nn.initializers.zeros
            extra_H = self.param("sink_logit", zeros, (H,)) if cfg.sink_logit == "learned" else jnp.zeros((H,))
        prefix: tuple[jax.Array, ...] = ()
        if cfg.prefix_length is not None:
            shape = (cfg.prefix_length, G, K)
            parts = [self.param(name, nn.initializers.zeros, shape) for name in ("prefix_key", "prefix_value")]
            prefix = tuple(jnp.broadcast_to(part.astype(k_BSGK.dtype), (len(k_BSGK), *shape)) for part in parts)

        def scores(q_BTHK: jax.Array, k_BSGK: jax.Array) -> jax.Array:
            """Compute q·k/√K of every head (or with the scale of the configuration), [B, H, T, S], float32."""
            B, T = q_BTHK.shape[:2]
            # Heads before positions, and the R query heads of a group as more rows: the products then run on
            # contiguous matrices, twice as fast on a CPU as with the heads between positions and channels.
            scale = 1.0 / math.sqrt(K) if cfg.attention_scale is None else cfg.attention_scale
            q_BGMK = (q_BTHK * scale).reshape(B, T, G, H // G, K).transpose(0, 2, 3, 1, 4)
            q_BGMK = q_BGMK.reshape(B, G, H // G * T, K)
            scores_BGMS = jnp.einsum("BGMK,BGSK->BGMS", q_BGMK, k_BSGK.transpose(0, 2, 1, 3), precision=precision)
            scores_BHTS = scores_BGMS.reshape(B, H, T, -1).astype(jnp.float32)
            cap = cfg.attention_softcap
            return scores_BHTS if cap is None else cap * jnp.tanh(scores_BHTS / cap)

        def attend(rows: slice, columns: slice) -> tuple[jax.Array, jax.Array]:
            """Return weights [B, H, T, S] of some queries on some keys, and the aggregated values [B, T, H, K]."""
            keys, values, mask_TS = k_BSGK[:, columns], v_BSGK[:, columns], seen_TS[rows, columns]
            if prefix:
                keys, values = (jnp.concatenate(pair, axis=1) for pair in zip(prefix, (keys, values), strict=True))
                mask_TS = jnp.pad(mask_TS, ((0, 0), (prefix[0].shape[1], 0)), constant_values=True)
            scores_BHTS = scores(q_BTHK[:, rows], keys)
            if rolling is not None and cfg.positions == "rope":
                first_S = jnp.arange(keys.shape[1]) < (cfg.prefix_length or 0) + rolling.keep
                met_BHTS = scores(first_BTHK[:, rows], keys)
                scores_BHTS = jnp.where(first_S[None, None, None], met_BHTS, scores_BHTS)
            if extra_H is not None:
                weights_BHTS = _softmax_with_extra(scores_BHTS, mask_TS[None, None], extra_H)
            else:
                weights_BHTS = KERNELS[cfg.attention_kernel](scores_BHTS, mask_TS[None, None], cfg.max_seq_len)
            return weights_BHTS, _aggregate(weights_BHTS.astype(values.dtype), values, precision)

        # Weights in full where they are captured, else the fused kernel, else blocks of rows.
        weights_BHTS = o_BTHK = None
        is_plain = all(getattr(cfg, name) == unless for name, unless in FUSED.items()) and edits.seen is None
        if not {"attention_weights", "attention_received"}.isdisjoint(context.capture):
            weights_BHTS, o_BTHK = attend(slice(None), slice(None))
            weights_BHTS = weights_BHTS[..., cfg.prefix_length or 0 :]
        elif is_plain and context.past is None and rolling is None and not context.last_only:
            o_BTHK = fused_attention(q_BTHK, k_BSGK, v_BSGK, cfg.window)
        if o_BTHK is None:
            # What no query sees can be left out only where it is known before the program runs.
            window = cfg.window if rolling is None and is_local is None else None
            blocks = row_blocks(q_BTHK.shape[1], k_BSGK.shape[1], window)
            o_BTHK = jnp.concatenate([attend(rows, columns)[1] for rows, columns in blocks], axis=1)

        # Adapter and sink mitigations on the aggregated values, then W_O.
        if cfg.prefix_memory != "none":
            memory_HKK = self.param("prefix_memory", nn.initializers.zeros, (H, K, K))
            phi_BTHK = FEATURE_MAPS[cfg.prefix_memory](q_BTHK if rolling is None else first_BTHK)
            memory_HKK = memory_HKK.astype(phi_BTHK.dtype)
            read_BTHK = jnp.einsum("BTHK,HKJ->BTHJ", phi_BTHK, memory_HKK, precision=precision)
            o_BTHK = o_BTHK + read_BTHK.astype(o_BTHK.dtype)
        o_BTHK = self._sink_mitigations(o_BTHK, query_x, inside_T, precision)
        o_BTHK = apply_edit(edits.attention_output, o_BTHK)
        out_BTD = Linear(cfg.d_model, cfg.bias, precision, name="output")(o_BTHK.reshape(*o_BTHK.shape[:2], H * K))
        activations = {"attention_input": query_x, "attention_output": o_BTHK, "attention_update": out_BTD}
        activations |= {"values": v_BSGK, "keys": k_BSGK}
        if weights_BHTS is not None:
            activations |= {"attention_weights": weights_BHTS, "attention_received": jnp.sum(weights_BHTS, axis=2)}
        return out_BTD, activations, (k_BSGK, v_BSGK)

    def _seen(
        self, query_T: jax.Array, key_S: jax.Array, context: BlockContext, is_local: jax.Array | None
    ) -> jax.Array:
        """Return boolean [T, S]: causality and windows of absolute positions, less what an edit takes away."""

        def within(window: int | None) -> jax.Array:
            if context.rolling is not None:
                return context.rolling.seen(query_T, key_S, window)
            distance_TS = query_T[:, None] - key_S[None, :]
            causal_TS = distance_TS >= 0
            return causal_TS if window is None else causal_TS & (distance_TS < window)

        seen_TS = within(self.cfg.window)
        if is_local is not None:
            # Layers that are not local see everything.
            seen_TS = jnp.where(is_local, seen_TS, within(None))
        return seen_TS if context.edits.seen is None else seen_TS & context.edits.seen(seen_TS)

    def _sink_mitigations(
        self, o_BTHK: jax.Array, x_BTD: jax.Array, positions_T: jax.Array, precision: PrecisionLike
    ) -> jax.Array:
        cfg = self.cfg
        # Uniform attention has variance σ²/i at position i; √i makes it σ² everywhere, attenuation σ²/max_seq_len.
        if cfg.positional_scale != "none":
            index_T = (positions_T + 1).astype(jnp.float32)
            longest = cfg.max_seq_len if cfg.positional_scale == "attenuate" else 1
            o_BTHK = o_BTHK * jnp.sqrt(index_T / longest).astype(o_BTHK.dtype)[None, :, None, None]
        if cfg.head_norm:
            o_BTHK = Norm("rmsnorm", cfg.norm_eps, name="head_norm")(o_BTHK)
        if cfg.output_gate in ("headwise", "elementwise"):
            per_head = 1 if cfg.output_gate == "headwise" else cfg.key_dim
            gate = Linear(cfg.num_heads * per_head, False, precision, name="gate")(x_BTD)
            gate = jax.nn.sigmoid(gate).reshape(*gate.shape[:2], cfg.num_heads, per_head)
            o_BTHK = o_BTHK * jnp.broadcast_to(gate, o_BTHK.shape)
        return o_BTHK


def _aggregate(weights_BHTS: jax.Array, v_BSGK: jax.Array, precision: PrecisionLike) -> jax.Array:
    """Compute the weighted sums of values [B, T, H, K]."""
    B, H, T, S = weights_BHTS.shape
    G, K = v_BSGK.shape[2:]
    # The same order as for the scores: query heads of a group are rows of one product.
    weights_BGMS = weights_BHTS.reshape(B, G, H // G * T, S)
    o_BGMK = jnp.einsum("BGMS,BGSK->BGMK", weights_BGMS, v_BSGK.transpose(0, 2, 1, 3), precision=precision)
    return o_BGMK.reshape(B, H, T, K).transpose(0, 2, 1, 3)


# cuDNN's flash attention needs tensor cores for bfloat16; JAX itself asks for no capability below 9.0.
MIN_CAPABILITY = (8, 0)

HALF = (jnp.bfloat16, jnp.float16)

KERNEL = "dot_product_attention_fwd_wrapper"
"""What JAX calls the kernel's primitive: for rematerialization policies that keep its result."""


def fused_attention(
    q_BTHK: jax.Array, k_BTGK: jax.Array, v_BTGK: jax.Array, window: int | None = None
) -> jax.Array | None:
    """Compute softmax(Q Kᵀ/√K) V over causal positions by cuDNN; None where its kernel cannot take these arrays.

    It takes bfloat16 and float16 on NVIDIA GPUs of compute capability 8.0 or more, an even number of positions, and
    heads of widths divisible by 8, up to 128 or, from 9.0 on, 256. Everything else belongs to the plain formula.

    Args:
        q_BTHK: queries.
        k_BTGK: keys of the same positions, H divisible by G.
        v_BTGK: values.
        window: how many last positions a query sees; None for all.
    """
    if jax.default_backend() != "gpu" or _capability() < MIN_CAPABILITY:
        return None
    if q_BTHK.dtype not in HALF:
        return None

    def attend(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        left = None if window is None else (window - 1, 0)
        return jax.nn.dot_product_attention(q, k, v, is_causal=True, local_window_size=left, implementation="cudnn")

    def summed(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(attend(q, k, v))

    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in (q_BTHK, k_BTGK, v_BTGK)]
    try:
        # JAX knows which shapes its kernels take, forward and backward, and says so by raising.
        jax.eval_shape(jax.grad(summed, argnums=(0, 1, 2)), *shapes)
    except (NotImplementedError, RuntimeError, ValueError):
        return None
    return attend(q_BTHK, k_BTGK, v_BTGK)


def keep_products_and_attention(primitive: Primitive, *arguments: object, **parameters: object) -> bool:
    """Store products with weights and fused attention, recompute all else: a rematerialization policy."""
    if primitive.name == KERNEL:
        return True
    return bool(jax.checkpoint_policies.dots_with_no_batch_dims_saveable(primitive, *arguments, **parameters))


def _capability() -> tuple[int, ...]:
    """Return the device's compute capability; (0,) where it has none, as on AMD's."""
    capability = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    parts = capability.split(".")
    return tuple(map(int, parts)) if all(part.isdecimal() for part in parts) else (0,)
