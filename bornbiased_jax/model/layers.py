"""The layers of a block besides attention: linear maps, norms, activations, MLPs, rotary position embeddings.

Also the inputs of a block besides the residual stream, and the cache of keys and values.

Norms are always computed in float32. Rotary embeddings have the half-split layout of Hugging Face checkpoints.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import DotAlgorithmPreset, PrecisionLike

from bornbiased_jax.config import Activation, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.interventions import NO_EDITS, UNEDITED, Edits, apply_edit

Activations = dict[str, jax.Array]
"""Activations of a block by name."""

Past = tuple[jax.Array, jax.Array, jax.Array]
"""Keys and values [B, S, G, K] of earlier positions of one block, and how many of them are filled."""

HIGHEST = "highest"

PRECISIONS: dict[str, PrecisionLike] = {
    HIGHEST: "highest",
    "tf32x3": DotAlgorithmPreset.TF32_TF32_F32_X3,
    "bf16x3": DotAlgorithmPreset.BF16_BF16_F32_X3,
}
"""Name -> the products' algorithm. Those by three products split each number into two shorter ones and leave out the
product of the two small parts: ``python -m benchmarks products`` measures what that changes in a probe."""

# Fields that are no arrays are part of a pytree's structure: other values are another program.
STATIC = {"static": True}


class Cache(NamedTuple):
    """Keys (after RoPE) and values of every layer, and how many positions are filled."""

    keys_LBSGK: jax.Array
    values_LBSGK: jax.Array
    length: jax.Array


def empty_cache(cfg: ModelConfig, batch: int, size: int, dtype: jnp.dtype = jnp.float32) -> Cache:
    """Return an empty cache for ``size`` positions of ``batch`` sequences."""
    # Key/value heads alone: query heads share them.
    shape = (cfg.num_layers, batch, size, cfg.kv_heads, cfg.key_dim)
    return Cache(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype), jnp.zeros((), jnp.int32))


class RollingCache(NamedTuple):
    """The tokens of a long text that a query still sees: itself, the ``window`` − 1 before it, and the ``keep`` first.

    Positions are those inside the cache, as in StreamingLLM (Xiao et al., 2023): the first tokens keep theirs, the
    others follow without a gap, so that no position exceeds ``keep + window − 1`` (from 0) however long the text is.
    Keys and values are those of the time when their token was read. Both numbers may be traced.
    """

    keep: int | jax.Array
    """First tokens that are never dropped, 0 or more."""
    window: int | jax.Array
    """Latest tokens, the query's own among them, 1 or more."""

    def inside(self, positions_T: jax.Array) -> jax.Array:
        """Return the position inside the cache of the token that is read at each position of the text."""
        return jnp.minimum(positions_T, self.keep + self.window - 1)

    def seen(self, query_T: jax.Array, key_S: jax.Array, window: int | None) -> jax.Array:
        """Return boolean [T, S]: whether the key is in the query's cache, and there within the model's own window."""
        # The first tokens, and the latest ones.
        distance_TS = query_T[:, None] - key_S[None, :]
        first_S = (key_S < self.keep)[None, :]
        seen_TS: jax.Array = (distance_TS >= 0) & (first_S | (distance_TS < self.window))
        if window is None:
            return seen_TS
        # The model's own window counts positions inside the cache, where the first tokens have moved up.
        inside_TS = self.inside(query_T)[:, None] - key_S[None, :]
        is_inside_TS: jax.Array = jnp.where(first_S, inside_TS, distance_TS) < window
        return seen_TS & is_inside_TS


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BlockContext:
    """The inputs of a block besides its weights and the residual stream; a pytree of its arrays.

    Attributes:
        positions_T: of the tokens, from 0.
        layer: the block's number, from 0; needed where layers differ.
        past: keys and values of earlier positions, and how many they are.
        rolling: each query sees the first and the latest tokens alone.
        edits: of this block, functions of the activation alone.
        capture: names of the activations that are wanted; weights of attention are computed in full for them alone.
        precision: of the matrix products.
        last_only: queries, the MLP and the output are computed at the last position alone; keys and values come from
            all positions.
    """

    positions_T: jax.Array
    layer: jax.Array | None = None
    past: Past | None = None
    rolling: RollingCache | None = None
    edits: Edits = NO_EDITS
    capture: tuple[str, ...] = dataclasses.field(default=(), metadata=STATIC)
    precision: PrecisionLike = dataclasses.field(default="highest", metadata=STATIC)
    last_only: bool = dataclasses.field(default=False, metadata=STATIC)


@cache
def precision_named(name: str) -> PrecisionLike:
    """Return the algorithm of float32 products of this name.

    Raises:
        InputError: no such name, or the device does not multiply so.

    Example:
        >>> precision_named("highest")
        'highest'
    """
    if name not in PRECISIONS:
        raise InputError(f"unknown precision {name!r}: choose {', '.join(PRECISIONS)}")
    if name == HIGHEST:
        return PRECISIONS[name]
    square = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    try:
        jax.jit(partial(jnp.matmul, precision=PRECISIONS[name])).lower(square, square).compile()
    except (ValueError, NotImplementedError, jax.errors.JaxRuntimeError) as refusal:
        device = jax.local_devices()[0].device_kind
        raise InputError(f"{device} has no float32 products by {name}: leave --precision out") from refusal
    return PRECISIONS[name]


class Linear(nn.Module):
    """y = x W + b with W [in, out]; computed in the input's dtype at the given precision.

    Where the parameters hold the factors of a low-rank adapter, ``lora_in`` [in, r] and ``lora_out`` [r, out] (see
    :mod:`bornbiased_jax.model.adapters`), y also has (x ``lora_in``) ``lora_out``. No model is initialized with them.
    """

    features: int
    use_bias: bool = False
    precision: PrecisionLike = "highest"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Apply the map to the last axis."""
        kernel_IO = self.param("kernel", nn.initializers.zeros, (x.shape[-1], self.features))
        # Rows in one axis: the kernel's gradient then contracts one axis, which needs no transposed copy of x.
        rows_NI = x.reshape(-1, x.shape[-1])
        y_NO = jax.lax.dot_general(
            rows_NI, kernel_IO.astype(x.dtype), (((1,), (0,)), ((), ())), precision=self.precision
        )
        # Low-rank factors, where an adapter put them next to the kernel.
        if self.has_variable("params", "lora_in"):
            lora_in: jax.Array = self.get_variable("params", "lora_in")
            lora_out: jax.Array = self.get_variable("params", "lora_out")
            low_NR = jnp.matmul(rows_NI, lora_in.astype(x.dtype), precision=self.precision)
            y_NO = y_NO + jnp.matmul(low_NR, lora_out.astype(x.dtype), precision=self.precision)
        y = y_NO.reshape(*x.shape[:-1], self.features)
        if self.use_bias:
            bias_O = self.param("bias", nn.initializers.zeros, (self.features,))
            y = y + jnp.broadcast_to(bias_O.astype(y.dtype), y.shape)
        return y


class Norm(nn.Module):
    """LayerNorm (Ba et al., 2016; scale and bias) or RMSNorm (Zhang and Sennrich, 2019; scale only), or with less."""

    kind: str
    eps: float
    parameters: str = "all"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalize the last axis; the dtype stays."""
        if self.kind == "none":
            return x
        # LayerNorm subtracts the mean and has a bias, RMSNorm has neither.
        is_centered = self.kind == "layernorm"
        y = x.astype(jnp.float32)
        if is_centered:
            y = y - jnp.mean(y, axis=-1, keepdims=True)
        y = y * jax.lax.rsqrt(jnp.mean(jnp.square(y), axis=-1, keepdims=True) + self.eps)
        if self.parameters != "none":
            scale = self.param("scale", nn.initializers.ones, (x.shape[-1],))
            y = y * jnp.broadcast_to(scale, y.shape)
        if is_centered and self.parameters == "all":
            bias = self.param("bias", nn.initializers.zeros, (x.shape[-1],))
            y = y + jnp.broadcast_to(bias, y.shape)
        return y.astype(x.dtype)


class ActivationEntry(NamedTuple):
    """One activation; ``theory.activations`` has its dual kernel under the same name."""

    function: Callable[[jax.Array], jax.Array]
    hugging_face: str | None = None
    """Its name in an exported ``config.json``; None where transformers has no such activation."""
    aliases: tuple[str, ...] = ()
    """Further names in a ``config.json`` that is read."""


UNIT_MEANS: dict[Activation, float] = {
    "gelu": 0.5 / math.sqrt(math.pi),
    "gelu_tanh": 0.28203858807878873,
    "relu": 1 / math.sqrt(2 * math.pi),
    "silu": 0.20662096414190704,
    "relu_squared": 0.5,
    "leaky_relu": 0.99 / math.sqrt(2 * math.pi),
    "shifted_relu": 0.0833154705876863,
}
"""E φ(z) of a standard normal z, which the centered form of an activation subtracts."""
ACTIVATIONS: dict[Activation, ActivationEntry] = {
    "gelu": ActivationEntry(partial(jax.nn.gelu, approximate=False), "gelu", ("gelu_python",)),
    "gelu_tanh": ActivationEntry(
        partial(jax.nn.gelu, approximate=True), "gelu_pytorch_tanh", ("gelu_new", "gelu_fast")
    ),
    "relu": ActivationEntry(jax.nn.relu, "relu"),
    "tanh": ActivationEntry(jnp.tanh, "tanh"),
    "relu_squared": ActivationEntry(lambda x: jnp.square(jax.nn.relu(x)), "relu2"),
    "leaky_relu": ActivationEntry(jax.nn.leaky_relu, "leaky_relu"),
    # Clevert, Unterthiner and Hochreiter (2016), section 4: nearly without a mean.
    "shifted_relu": ActivationEntry(lambda x: jnp.maximum(x, -1)),
    "silu": ActivationEntry(jax.nn.silu, "silu", ("swish",)),
}


def _centered(name: Activation) -> ActivationEntry:
    """Return φ − E φ(z): the mean output of a neuron, which all inputs share, is not written."""
    function = ACTIVATIONS[name].function
    return ActivationEntry(lambda x: function(x) - jnp.asarray(UNIT_MEANS[name], x.dtype))


ACTIVATIONS |= {cast(Activation, f"{name}_centered"): _centered(name) for name in UNIT_MEANS}
HUGGING_FACE: dict[str, Activation] = {
    name: activation
    for activation, entry in ACTIVATIONS.items()
    if entry.hugging_face is not None
    for name in (entry.hugging_face, *entry.aliases)
}
"""Every name that ``config.json`` may give an activation."""


class MLP(nn.Module):
    """φ(x W_up) W_down, or (φ(x W_gate) ∘ x W_up) W_down when gated (SwiGLU with φ = silu)."""

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: BlockContext) -> tuple[jax.Array, Activations]:
        """Return the update of the residual stream, and the activations by name."""
        cfg, precision = self.cfg, context.precision
        # Up, and with a gate the product of the two.
        x_BTD = apply_edit(context.edits.mlp_input, x_BTD)
        phi = ACTIVATIONS[cfg.activation].function
        up_BTF = Linear(cfg.d_ff, cfg.bias, precision, name="up")(x_BTD)
        if cfg.gated_mlp:
            pre_BTF = Linear(cfg.d_ff, cfg.bias, precision, name="gate")(x_BTD)
            hidden_BTF = phi(pre_BTF) * up_BTF
        else:
            pre_BTF = up_BTF
            hidden_BTF = phi(pre_BTF)
        # Down to the residual stream, from what an edit leaves of the neurons.
        hidden_BTF = apply_edit(context.edits.mlp_hidden, hidden_BTF)
        out_BTD = Linear(cfg.d_model, cfg.bias, precision, name="down")(hidden_BTF)
        activations = {"mlp_input": x_BTD, "mlp_preactivation": pre_BTF, "mlp_up": up_BTF, "mlp_hidden": hidden_BTF}
        return out_BTD, activations | {"mlp_update": out_BTD}


class Experts(nn.Module):
    """A mixture of MLPs of which a router chooses ``experts_per_token`` for each token (Mixtral, Qwen2- and Qwen3-MoE).

    Router probabilities are a softmax over all experts in float32; the outputs of the chosen ones are summed with their
    probabilities, which are made to sum to 1 where the configuration says so. Tokens are sorted by expert, so that each
    expert computes those that chose it and no others. A shared expert computes all tokens; its output is weighted by a
    sigmoid of the token's own, and added.
    """

    cfg: ModelConfig

    @nn.compact
    def __call__(self, x_BTD: jax.Array, context: BlockContext) -> tuple[jax.Array, Activations]:
        """Return the update of the residual stream, and the activations by name."""
        cfg, precision = self.cfg, context.precision
        if context.edits.mlp_hidden is not None:
            raise InputError(UNEDITED)
        E, C, D, F = cfg.num_experts or 1, cfg.experts_per_token, cfg.d_model, cfg.d_ff
        x_BTD = apply_edit(context.edits.mlp_input, x_BTD)
        x_ND = x_BTD.reshape(-1, D)

        # The router: C experts of each token, and their weights.
        logits_NE = Linear(E, False, precision, name="router")(x_ND).astype(jnp.float32)
        weights_NC, experts_NC = jax.lax.top_k(jax.nn.softmax(logits_NE, axis=-1), C)
        if cfg.normalize_expert_weights:
            weights_NC = weights_NC / jnp.sum(weights_NC, axis=-1, keepdims=True)

        # One row for each token and chosen expert, sorted by expert.
        experts_M = experts_NC.reshape(-1)
        order_M = jnp.argsort(experts_M, stable=True)
        sizes_E = jnp.bincount(experts_M, length=E)
        sorted_MD = jnp.take(x_ND, order_M // C, axis=0)

        def product(name: str, rows: jax.Array, width: int) -> jax.Array:
            kernel_EIO = _Kernel((E, rows.shape[-1], width), name=name)().astype(rows.dtype)
            return jax.lax.ragged_dot(rows, kernel_EIO, sizes_E, precision=precision)

        # Each expert's MLP on its own rows.
        phi = ACTIVATIONS[cfg.activation].function
        up_MF = product("up", sorted_MD, F)
        hidden_MF = phi(product("gate", sorted_MD, F)) * up_MF if cfg.gated_mlp else phi(up_MF)
        out_MD = product("down", hidden_MF, D)

        # Back to the order of tokens, and the weighted sum over each token's experts.
        own_NCD = jnp.zeros_like(out_MD).at[order_M].set(out_MD).reshape(-1, C, D)
        out_BTD = jnp.sum(own_NCD * weights_NC[..., None].astype(own_NCD.dtype), axis=1).reshape(x_BTD.shape)
        logits_BTE = logits_NE.reshape(*x_BTD.shape[:2], E)

        # The shared expert of every token; its input is edited already.
        if cfg.shared_expert_width is not None:
            dense = cfg.replace(d_ff=cfg.shared_expert_width, bias=False)
            unedited = dataclasses.replace(context, edits=NO_EDITS)
            shared_BTD, _ = MLP(dense, name="shared_expert")(x_BTD, unedited)
            gate_BT1 = Linear(1, False, precision, name="shared_expert_gate")(x_BTD).astype(jnp.float32)
            out_BTD = out_BTD + shared_BTD * jax.nn.sigmoid(gate_BT1).astype(shared_BTD.dtype)
        return out_BTD, {"mlp_input": x_BTD, "mlp_update": out_BTD, "router_logits": logits_BTE}


class _Kernel(nn.Module):
    """A parameter called "kernel" in a folder of its own, as linear maps have it."""

    shape: tuple[int, ...]

    @nn.compact
    def __call__(self) -> jax.Array:
        return self.param("kernel", nn.initializers.zeros, self.shape)


def frequencies(cfg: ModelConfig, *, is_local: bool = False) -> np.ndarray:
    """Return angular frequencies [rotary_dim / 2] in radians per position (Su et al., 2021), scaled as the config says.

    "linear" divides all by the factor. "llama3" leaves wavelengths shorter than
    original/high_freq_factor alone, divides those longer than original/low_freq_factor by the factor,
    and interpolates between (Llama 3.1).
    """
    # Local layers may have a base of their own, and are not scaled.
    dim = cfg.rotary_dim
    if is_local and cfg.rope_local_theta is not None:
        return cfg.rope_local_theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    base = cfg.rope_theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if cfg.rope_scaling == "linear":
        return base / cfg.rope_scaling_factor
    if cfg.rope_scaling == "llama3":
        wavelength = 2 * math.pi / base
        low, high = cfg.rope_low_freq_factor, cfg.rope_high_freq_factor
        smooth = np.clip((cfg.rope_original_max_seq_len / wavelength - low) / (high - low), 0.0, 1.0)
        return base * (smooth + (1 - smooth) / cfg.rope_scaling_factor)
    return base


def rotate(x_BTHK: jax.Array, positions_T: jax.Array, cfg: ModelConfig, layer: jax.Array | None = None) -> jax.Array:
    """Rotate the first ``rotary_dim`` of each head's K dimensions by position × frequency.

    ``layer`` is the block's number, from 0, where layers differ.
    """
    dim = cfg.rotary_dim
    if dim == 0:
        return x_BTHK
    frequency_F = jnp.asarray(frequencies(cfg), jnp.float32)
    # Blocks are scanned: which of them is local, or not rotated, is known to the compiled program alone.
    if cfg.is_local is not None:
        is_local = jnp.asarray(cfg.is_local)[layer]
        frequency_F = jnp.where(is_local, jnp.asarray(frequencies(cfg, is_local=True), jnp.float32), frequency_F)
    if cfg.is_rotated is not None:
        frequency_F = jnp.where(jnp.asarray(cfg.is_rotated)[layer], frequency_F, 0.0)
    # Angles in float32, whatever the compute dtype is: positions are large.
    angles_TF = positions_T.astype(jnp.float32)[:, None] * frequency_F[None, :]
    cos_1T1F = jnp.cos(angles_TF)[None, :, None, :]
    sin_1T1F = jnp.sin(angles_TF)[None, :, None, :]
    # Dimension j turns with dimension j + dim/2; the rest of a head is not rotated.
    first, second, rest = jnp.split(x_BTHK.astype(jnp.float32), [dim // 2, dim], axis=-1)
    rotated = [first * cos_1T1F - second * sin_1T1F, second * cos_1T1F + first * sin_1T1F, rest]
    return jnp.concatenate(rotated, axis=-1).astype(x_BTHK.dtype)
