"""The one model configuration: a frozen, validated, serializable record of an architecture."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, cast

from bornbiased_jax.errors import InputError, suggestion
from bornbiased_jax.schema import (
    ExpertCount,
    Fraction,
    FrequencyFactor,
    Heads,
    HiddenWidth,
    Layers,
    Length,
    Positive,
    RopeBase,
    RopeFactor,
    Vocabulary,
    Width,
    ends,
    shown,
    within,
)
from bornbiased_jax.schemes import Dimensions, parse_groups, parse_rule, parse_scheme, rules_of, scaled

NormKind = Literal["layernorm", "rmsnorm", "none"]
NormPosition = Literal["pre", "post", "both"]
NormParameters = Literal["all", "scale", "none"]
Activation = Literal[
    "gelu", "gelu_tanh", "relu", "tanh", "silu", "relu_squared", "leaky_relu", "shifted_relu",
    "gelu_centered", "gelu_tanh_centered", "relu_centered", "silu_centered", "relu_squared_centered",
    "leaky_relu_centered", "shifted_relu_centered",
]  # fmt: skip
PositionEncoding = Literal["rope", "learned", "none"]
RopeScaling = Literal["none", "linear", "llama3"]
QKNormScope = Literal["head", "projection"]
PositionalScale = Literal["none", "amplify", "attenuate"]
OutputGate = Literal["none", "headwise", "elementwise", "value"]
SinkLogit = Literal["none", "zero", "learned"]
AttentionKernel = Literal["softmax", "sigmoid", "softpick", "clipped", "centred"]

# φ of Prefix-Tuning+.
PrefixMemory = Literal["none", "elu", "relu", "identity"]
FieldValue = bool | float | str | None
"""The value of a field, as JSON and the command line have it; its type and range are checked when a config is made."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """An architecture of decoder-only transformer. Every field can be set from the command line.

    Sizes are counts, not units. ``num_kv_heads`` and ``head_dim`` given as ``None`` are filled in
    (``num_heads`` and ``d_model / num_heads``), so a constructed config never holds ``None`` there.

    The defaults are the RoPE-enhanced GPT-2 block of "Transformers Are Born Biased" (Appendix B.1).

    Raises:
        InputError: a field is out of range, or two fields contradict each other.
    """

    # Sizes.
    num_layers: Layers = 4
    num_heads: Heads = 4
    num_kv_heads: Heads | None = None
    head_dim: Width | None = None
    d_model: Width = 128
    d_ff: HiddenWidth = 512
    vocab_size: Vocabulary = 4096
    max_seq_len: Length = 1024
    # Block.
    norm: NormKind = "layernorm"
    norm_eps: Fraction = 1e-5
    norm_parameters: NormParameters = "all"
    """Which parameters norms have: all of their kind, no bias, or none; norms of queries and keys have a scale."""
    norm_position: NormPosition = "pre"
    activation: Activation = "gelu"
    gated_mlp: bool = False
    residual: bool = True
    residual_scale: Positive = 1.0
    """What the outputs of attention and MLP are multiplied with before they are added."""
    parallel_residual: bool = False
    shared_norm: bool = False
    """Attention and MLP of a parallel block read through one norm."""
    attention: bool = True
    mlp: bool = True
    # Linear layers.
    bias: bool = False
    qkv_bias: bool = False
    tie_embeddings: bool = True
    embedding_scale: Positive = 1.0
    """What rows of the token table are multiplied with before the first block."""
    logit_scale: Positive = 1.0
    """What logits are multiplied with, before they are bounded."""
    logit_softcap: Positive | None = None
    """Logits are bounded to ±cap by cap · tanh(x / cap)."""
    # Mixture of experts: ``d_ff`` is the width of one expert, and experts have no biases.
    num_experts: ExpertCount | None = None
    experts_per_token: ExpertCount = 2
    normalize_expert_weights: bool = True
    """The weights of a token's experts are made to sum to 1."""
    shared_expert_width: HiddenWidth | None = None
    """Hidden units of an expert that every token visits, weighted by a sigmoid gate of its own; none unless given."""
    # Positions.
    positions: PositionEncoding = "rope"
    rope_theta: RopeBase = 10_000.0
    rotary_fraction: Fraction = 1.0
    rope_pattern: str | None = None
    """Which layers are rotated, repeated over the depth: "r" is, "n" is not; all unless given."""
    rope_scaling: RopeScaling = "none"
    rope_scaling_factor: RopeFactor = 1.0
    rope_low_freq_factor: FrequencyFactor = 1.0
    rope_high_freq_factor: FrequencyFactor = 4.0
    rope_original_max_seq_len: Length = 8192
    # Attention.
    qk_norm: bool = False
    qk_norm_scope: QKNormScope = "head"
    window: Length | None = None
    attention_scale: Positive | None = None
    """What q·k is multiplied with; 1/√head_dim unless given."""
    attention_softcap: Positive | None = None
    """Attention logits are bounded to ±cap by cap · tanh(x / cap)."""
    attention_pattern: str | None = None
    """Kinds of layers, repeated over the depth: "l" is local (sees ``window`` keys), "g" global (sees all)."""
    rope_local_theta: RopeBase | None = None
    """RoPE's base in local layers, which then have no scaling; that of the others unless given."""
    attention_kernel: AttentionKernel = "softmax"
    sink_logit: SinkLogit = "none"
    positional_scale: PositionalScale = "none"
    head_norm: bool = False
    output_gate: OutputGate = "none"
    prefix_length: Length | None = None
    """Trained keys and values that every head sees before all positions (prefix tuning)."""
    prefix_memory: PrefixMemory = "none"
    """φ of Prefix-Tuning+: φ(q)ᵀ M, M [K, K] of each head, is added to what attention aggregates."""
    # Initialization.
    init: str = "gpt2-scaled"
    """A scheme of :data:`bornbiased_jax.schemes.SCHEMES`, "-balanced" or "-mirrored" appended or not."""
    init_groups: str | None = None
    """Groups that are drawn by other rules than the scheme's, as in "down=zeros;embedding=normal:1.0"."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            object.__setattr__(self, field.name, _checked(field.name, getattr(self, field.name)))
        if self.head_dim is None:
            if self.d_model % self.num_heads:
                raise InputError(
                    f"num_heads={self.num_heads} does not divide d_model={self.d_model}: "
                    "choose a divisor, or set head_dim"
                )
            object.__setattr__(self, "head_dim", self.d_model // self.num_heads)
        if self.num_kv_heads is None:
            object.__setattr__(self, "num_kv_heads", self.num_heads)
        self._check_consistency()

    def _check_consistency(self) -> None:
        parse_scheme(self.init)
        if self.init_groups is not None:
            rules = parse_groups(self.init_groups)
            # One spelling of equal choices: sorted, and None for none.
            text = ";".join(f"{group}={rules[group]}" for group in sorted(rules))
            object.__setattr__(self, "init_groups", text or None)
        if self.num_heads % self.kv_heads:
            raise InputError(
                f"num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}: choose a divisor"
            )
        if not self.attention and not self.mlp:
            raise InputError("attention=false and mlp=false leave no block: keep one of them")
        if self.positions == "rope" and self.attention and self.rotary_dim % 2:
            raise InputError(
                f"RoPE rotates pairs, but head_dim={self.head_dim} × rotary_fraction="
                f"{self.rotary_fraction} gives {self.rotary_dim} dimensions: make it even"
            )
        if self.parallel_residual and not self.residual:
            raise InputError("parallel_residual=true needs residual=true")
        if self.parallel_residual and not (self.attention and self.mlp):
            raise InputError("parallel_residual=true needs both attention=true and mlp=true")
        if self.shared_norm and not (self.parallel_residual and self.norm_position == "pre"):
            raise InputError("shared_norm is of parallel blocks: set parallel_residual=true and norm_position=pre")
        if self.rope_scaling == "llama3" and self.rope_low_freq_factor >= self.rope_high_freq_factor:
            raise InputError(
                f"rope_low_freq_factor={self.rope_low_freq_factor:g} is not below rope_high_freq_factor="
                f"{self.rope_high_freq_factor:g}: Llama 3's scaling goes over from one to the other"
            )
        if self.attention_kernel != "softmax" and self.sink_logit != "none":
            raise InputError("sink_logit is an extra logit of a softmax: set attention_kernel=softmax")
        self._check_layers()
        if not self.attention and (self.prefix_length is not None or self.prefix_memory != "none"):
            raise InputError("prefix_length and prefix_memory are parts of attention: set attention=true")

    def _check_layers(self) -> None:
        """Check the fields by which layers differ, and those of mixtures of experts."""
        if self.attention_pattern is not None and not re.fullmatch("[lg]{1,10000}", self.attention_pattern):
            raise InputError(
                f"attention_pattern={shown(self.attention_pattern)} is not of letters l (local) and g (global), as in "
                "lllllg"
            )
        if self.attention_pattern is not None and "l" in self.attention_pattern and self.window is None:
            raise InputError("attention_pattern has local layers, but window is not set: set window, or leave it out")
        if self.rope_pattern is not None and not re.fullmatch("[rn]{1,10000}", self.rope_pattern):
            raise InputError(
                f"rope_pattern={shown(self.rope_pattern)} is not of letters r (rotated) and n (not), as in rrrn"
            )
        if self.rope_pattern is not None and self.positions != "rope":
            raise InputError("rope_pattern says which layers RoPE rotates: set positions=rope")
        if self.rope_local_theta is not None and self.attention_pattern is None:
            raise InputError("rope_local_theta is of local layers: set attention_pattern")
        if self.num_experts is not None:
            if self.experts_per_token > self.num_experts:
                raise InputError(
                    f"experts_per_token={self.experts_per_token} is above num_experts={self.num_experts}: lower it"
                )
            if not self.mlp:
                raise InputError("num_experts needs mlp=true: experts are MLPs")
        elif self.shared_expert_width is not None:
            raise InputError("shared_expert_width is of a mixture of experts: set num_experts")

    @property
    def is_local(self) -> tuple[bool, ...] | None:
        """True for each local layer; None where all layers are alike."""
        pattern = self.of_layers(range(self.num_layers)).get("attention_pattern")
        return None if pattern is None else tuple(letter == "l" for letter in pattern)

    @property
    def is_rotated(self) -> tuple[bool, ...] | None:
        """True for each layer that RoPE rotates; None where it rotates all."""
        pattern = self.of_layers(range(self.num_layers)).get("rope_pattern")
        return None if pattern is None or "n" not in pattern else tuple(letter == "r" for letter in pattern)

    def of_layers(self, order: Iterable[int]) -> dict[str, str]:
        """Return the patterns of a model that has these layers of this one, in this order."""
        patterns = {"attention_pattern": self.attention_pattern, "rope_pattern": self.rope_pattern}
        layers = list(order)
        return {
            name: "".join(pattern[layer % len(pattern)] for layer in layers)
            for name, pattern in patterns.items()
            if pattern is not None
        }

    @property
    def kv_heads(self) -> int:
        """Number of key/value heads G, never None."""
        assert self.num_kv_heads is not None
        return self.num_kv_heads

    @property
    def key_dim(self) -> int:
        """Width K of one head, never None."""
        assert self.head_dim is not None
        return self.head_dim

    @property
    def rotary_dim(self) -> int:
        """The number of a head's K dimensions that RoPE rotates (partial rotary rotates the first ones)."""
        return int(self.key_dim * self.rotary_fraction)

    @property
    def free_fields(self) -> tuple[str, ...]:
        """The fields that given weights leave free: how weights are drawn, and a length that only limits."""
        # Some attention computes with the length.
        is_computed = self.attention_kernel in ("sigmoid", "clipped") or self.positional_scale == "attenuate"
        return "init", "init_groups", *(() if is_computed else ("max_seq_len",))

    def replace(self, **changes: FieldValue) -> ModelConfig:
        """Return a copy with some fields changed. Derived sizes follow, unless given explicitly here.

        Raises:
            InputError: an unknown field, or a value out of range.

        >>> preset("gpt2-tiny").replace(num_heads=8).head_dim
        16
        """
        fields = self._with_groups(changes)
        derived: dict[str, None] = {}
        if "num_heads" in fields and "num_kv_heads" not in fields and self.num_kv_heads == self.num_heads:
            derived["num_kv_heads"] = None
        sized = "num_heads" in fields or "d_model" in fields
        if sized and "head_dim" not in fields and self.head_dim == self.d_model / self.num_heads:
            derived["head_dim"] = None
        return self.from_dict({**vars(self), **derived, **fields})

    @property
    def embedding_std(self) -> float:
        """Standard deviation of the token table's entries at initialization (Appendix B.1: 0.02)."""
        table = Dimensions(self.vocab_size, self.d_model, self.d_model, self.num_layers, self.num_layers)
        return scaled(rules_of(self.init, self.init_groups)["embedding"], [table]).measured_std()

    def _with_groups(self, changes: Mapping[str, FieldValue]) -> Mapping[str, FieldValue]:
        """Collect changes named ``init.GROUP`` into ``init_groups``."""
        groups = {name.partition(".")[2]: rule for name, rule in changes.items() if name.startswith(_GROUP_PREFIX)}
        if not groups:
            return changes
        rest = {name: value for name, value in changes.items() if not name.startswith(_GROUP_PREFIX)}
        before = parse_groups(str(rest.get("init_groups", self.init_groups) or ""))
        rules: dict[str, object] = {str(group): rule for group, rule in before.items()}
        rules.update({group: parse_rule(group, str(rule)) for group, rule in groups.items()})
        return {**rest, "init_groups": ";".join(f"{group}={rule}" for group, rule in rules.items())}

    def to_dict(self) -> dict[str, FieldValue]:
        """Return the fields as JSON-ready values.

        Fields that came after the first stored models are left out while they have their default, so that a stored
        configuration, and what is named by its digest, stays what it was.
        """
        values = dataclasses.asdict(self)
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if name not in _LATER or value != defaults[name]}

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> ModelConfig:
        """Invert :meth:`to_dict`. Unknown fields are refused by name."""
        _refuse_unknown(values)
        # Each value is checked by __post_init__.
        return cls(**cast("Mapping[str, Any]", values))


_GROUP_PREFIX = "init."
_LATER = frozenset(
    """
    init_groups attention_scale attention_softcap attention_pattern rope_local_theta embedding_scale logit_softcap
    num_experts experts_per_token normalize_expert_weights norm_parameters residual_scale shared_norm logit_scale
    rope_pattern shared_expert_width
    """.split()
)
TYPES: Mapping[str, type] = typing.get_type_hints(ModelConfig, include_extras=True)
"""The type of each field with its range: the schemas of files are made of these."""
FIELDS: tuple[str, ...] = tuple(field.name for field in dataclasses.fields(ModelConfig))


def _refuse_unknown(names: Iterable[str]) -> None:
    for name in names:
        if name not in FIELDS:
            raise InputError(f"unknown model field {name!r}: {suggestion(name, FIELDS, 'fields')}")


def _checked(name: str, value: object) -> FieldValue:
    """Check the type and range of a value and return it; integers given as whole floats are accepted."""
    kind = TYPES[name]
    if value is None:
        if type(None) in typing.get_args(kind):
            return None
        raise InputError(f"{name} needs a value, not null")
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else ()
    if choices:
        if not isinstance(value, str) or value not in choices:
            raise InputError(f"{name}={shown(value)} is not one of {', '.join(map(str, choices))}")
        return value
    if ends(kind) is not None:
        number: FieldValue = within(kind, value, name)
        return number
    if kind is str or str in typing.get_args(kind):
        if not isinstance(value, str):
            raise InputError(f"{name}={shown(value)} is not a text")
        return value
    if not isinstance(value, bool):
        raise InputError(f"{name}={shown(value)} is not true or false")
    return value


def parse_setting(text: str) -> tuple[str, FieldValue]:
    """Parse one ``field=value`` of the command line: the value is JSON where it parses, else a string."""
    name, separator, raw = text.partition("=")
    if not separator:
        raise InputError(f"--set {text!r} is not of the form field=value")
    if name.startswith(_GROUP_PREFIX):
        return name, str(parse_rule(name.partition(".")[2], raw))
    _refuse_unknown([name])
    if raw in ("None", "null"):
        return name, None
    if typing.get_origin(TYPES[name]) is Literal:
        return name, raw
    try:
        return name, json.loads(raw.lower() if raw in ("True", "False") else raw)
    except (ValueError, RecursionError):  # no JSON, or an integer or a nesting beyond what is read
        return name, raw


_LLAMA: dict[str, FieldValue] = dict(norm="rmsnorm", activation="silu", gated_mlp=True, tie_embeddings=False)
_QWEN2: dict[str, FieldValue] = dict(**_LLAMA, qkv_bias=True, rope_theta=1_000_000.0, norm_eps=1e-6)
_QWEN3: dict[str, FieldValue] = dict(**_LLAMA, qk_norm=True, rope_theta=1_000_000.0, norm_eps=1e-6)
_NEOX: dict[str, FieldValue] = dict(bias=True, parallel_residual=True, rotary_fraction=0.25, tie_embeddings=False)
_OLMO2: dict[str, FieldValue] = dict(
    **_LLAMA, norm_position="post", qk_norm=True, qk_norm_scope="projection", norm_eps=1e-6, rope_theta=500_000.0
)
_MIXTRAL: dict[str, FieldValue] = dict(**_LLAMA, num_experts=4, rope_theta=1_000_000.0)
_GEMMA3: dict[str, FieldValue] = dict(
    norm="rmsnorm", norm_eps=1e-6, norm_position="both", activation="gelu_tanh", gated_mlp=True, qk_norm=True,
    window=32, attention_pattern="lllllg", rope_theta=1_000_000.0, rope_local_theta=10_000.0,
)  # fmt: skip
_NANO = ModelConfig(num_layers=12, num_heads=12, d_model=768)
_TINY = ModelConfig(num_layers=4, num_heads=4, d_model=128, vocab_size=4096, max_seq_len=1024)

PRESETS: dict[str, ModelConfig] = {
    # "RoPE-enhanced Nano GPT-2 (12L, 12H, 768d)" of Table 1(a); the vocabulary is the one that its
    # printed p-values agree with.
    "gpt2-nano": _NANO.replace(d_ff=3072, vocab_size=50_304, bias=True),
    # "Nano LLaMA-2": Table 13.
    "llama-nano": _NANO.replace(**_LLAMA, d_ff=2048, vocab_size=32_000, max_seq_len=2048),
    # "Qwen-style" models of Appendix B.3.3 at the same size; the paper prints no sizes for them.
    "qwen-nano": _NANO.replace(**_QWEN2, num_kv_heads=4, d_ff=2048, vocab_size=32_000, max_seq_len=2048),
    "qwen3-nano": _NANO.replace(**_QWEN3, num_kv_heads=4, d_ff=2048, vocab_size=32_000, max_seq_len=2048),
    # "RoPE-enhanced 1.2B GPT-2 (24L, 32H, 2048d)" of Table 1(c).
    "gpt2-1.2b": ModelConfig(num_layers=24, num_heads=32, d_model=2048, d_ff=8192, vocab_size=50_304, bias=True),
    # GPT-2 small as released: learned positions, tanh-approximated GELU.
    "gpt2-small": _NANO.replace(d_ff=3072, vocab_size=50_257, bias=True, positions="learned", activation="gelu_tanh"),
    "gpt2-tiny": _TINY.replace(d_ff=512, bias=True),
    "llama-tiny": _TINY.replace(**_LLAMA, d_ff=352),
    "qwen-tiny": _TINY.replace(**_QWEN2, num_kv_heads=2, d_ff=352),
    "qwen3-tiny": _TINY.replace(**_QWEN3, num_kv_heads=2, d_ff=352),
    "neox-tiny": _TINY.replace(**_NEOX, d_ff=512),
    "olmo2-tiny": _TINY.replace(**_OLMO2, d_ff=352),
    "mixtral-tiny": _TINY.replace(**_MIXTRAL, num_kv_heads=2, d_ff=176),
    "qwen3moe-tiny": _TINY.replace(**_QWEN3, num_kv_heads=2, d_ff=88, num_experts=8, normalize_expert_weights=False),
    "qwen2moe-tiny": _TINY.replace(
        **_QWEN2, num_kv_heads=2, d_ff=88, num_experts=8, normalize_expert_weights=False, shared_expert_width=176
    ),
    "gemma3-tiny": _TINY.replace(
        **_GEMMA3,
        num_layers=6,
        num_kv_heads=2,
        d_ff=352,
        embedding_scale=math.sqrt(128),
        attention_scale=32**-0.5,
    ),  # fmt: skip
}


def preset(name: str, **changes: FieldValue) -> ModelConfig:
    """Return a named configuration, with fields changed.

    Raises:
        InputError: no such preset (the nearest name is suggested), or a bad field.

    >>> cfg = preset("llama-tiny", num_layers=2)
    >>> cfg.num_layers, cfg.norm, cfg.kv_heads
    (2, 'rmsnorm', 4)
    """
    if name not in PRESETS:
        name = str(name)
        raise InputError(f"unknown model {name!r}: {suggestion(name, PRESETS, 'presets')}")
    return PRESETS[name].replace(**changes)


def check_config(cfg: object) -> ModelConfig:
    """Return a configuration, if it is one.

    Raises:
        InputError: it is something else, such as the name of a preset.
    """
    if not isinstance(cfg, ModelConfig):
        value = repr(cfg) if isinstance(cfg, str | int | float) else f"a {type(cfg).__name__}"
        raise InputError(f"{value} is no ModelConfig: give one, as preset('gpt2-tiny') returns")
    return cfg
