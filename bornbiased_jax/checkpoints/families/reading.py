"""Parts of ``config.json`` that several families share, read and written: RoPE, windows, flags."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

from annotated_types import Interval, Len
from typing_extensions import TypedDict

from bornbiased_jax.config import FieldValue, ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import Fraction, FrequencyFactor, Length, RopeBase, RopeFactor, shown

_ROPE_KEYS: dict[str, dict[str, str]] = {
    "default": {},
    "linear": {"factor": "rope_scaling_factor"},
    "llama3": {
        "factor": "rope_scaling_factor",
        "low_freq_factor": "rope_low_freq_factor",
        "high_freq_factor": "rope_high_freq_factor",
        "original_max_position_embeddings": "rope_original_max_seq_len",
    },
}


class RopeEntries(TypedDict, total=False):
    """The settings of RoPE in one object, in the style of any version of transformers."""

    rope_type: str
    type: str
    rope_theta: RopeBase
    partial_rotary_factor: Fraction
    factor: RopeFactor
    low_freq_factor: FrequencyFactor
    high_freq_factor: FrequencyFactor
    original_max_position_embeddings: Length


# What the functions below ask for, with the ranges of our fields.
SHARED: dict[str, object] = {
    "rope_theta": RopeBase,
    "rotary_emb_base": RopeBase,
    "partial_rotary_factor": Fraction,
    "rotary_pct": Fraction,
    "rope_scaling": RopeEntries | None,
    "rope_parameters": RopeEntries | None,
    "original_max_position_embeddings": Length,
    # Qwen2-MoE has 0 for none.
    "sliding_window": Annotated[int, Interval(ge=0, le=2**30)] | None,
    "max_window_layers": Annotated[int, Interval(ge=0, le=10_000)],
    "use_sliding_window": bool,
    "layer_types": Annotated[list[str], Len(0, 10_000)] | None,
    "attention_bias": bool,
    "qkv_bias": bool,
    "norm_topk_prob": bool,
    "use_bidirectional_attention": bool | None,
    "use_bias": bool,
    "use_qk_norm": bool,
    "clip_qkv": float | None,
    "logits_scaling": Annotated[float, Interval(gt=0, le=1e6)],
    "query_pre_attn_scalar": Annotated[float, Interval(gt=0, le=1e6)],
    "sliding_window_pattern": Annotated[int, Interval(ge=1, le=10_000)] | None,
    "_sliding_window_pattern": Annotated[int, Interval(ge=1, le=10_000)] | None,
    "no_rope_layers": Annotated[list[Annotated[int, Interval(ge=0, le=1)]], Len(0, 10_000)] | None,
    "no_rope_layer_interval": Annotated[int, Interval(ge=1, le=10_000)],
    "mlp_bias": bool,
    "initializer_range": Annotated[float, Interval(ge=0.0, le=1e6)] | None,
}


class Fields:
    """The fields of one file, remembering which were asked for.

    Args:
        values: by name.
        where: what to call the file in an error.
        remedy: what the error of a missing field advises.
        prefix: what stands in the file before the names that are asked for.
    """

    def __init__(
        self, values: Mapping[str, object], where: str, remedy: str = "add it, as the model has it", prefix: str = ""
    ) -> None:
        self.values = values
        self.where = where
        self.prefix = prefix
        self._remedy = remedy
        self.asked: set[str] = set()

    def get(self, name: str, default: object = ...) -> Any:  # noqa: ANN401 (JSON, as its schema says)
        """Return a field, or its default.

        Raises:
            InputError: it is absent and has no default.
        """
        name = self.prefix + name
        self.asked.add(name)
        if name not in self.values and default is ...:
            raise InputError(f"{self.where} has no field {name!r}: {self._remedy}")
        return self.values.get(name, default)

    def refuse(self, name: str, value: object, remedy: str) -> InputError:
        """Return the error that names a field, for the caller to raise."""
        return InputError(f"{self.where} has {name}={shown(value)}, {remedy}")


class Rope(NamedTuple):
    """The form in which the files of a family state RoPE.

    Attributes:
        base: the base where a file says nothing.
        rotated: the fraction of a head's width that is rotated where a file says nothing; None for families that
            always rotate all of it.
        base_name, rotated_name: of the two, in the style before transformers 5.
    """

    base: float = 10_000.0
    rotated: float | None = None
    base_name: str = "rope_theta"
    rotated_name: str = "partial_rotary_factor"


def read_rope(fields: Fields, style: Rope) -> dict[str, FieldValue]:
    """Read RoPE in the style of transformers 5 (rope_parameters) or before (rope_theta, rope_scaling)."""
    # The older fields, and the object that newer files have in their place.
    base = fields.get(style.base_name, style.base)
    part = fields.get(style.rotated_name, 1.0 if style.rotated is None else style.rotated)
    old, new = fields.get("rope_scaling", None), fields.get("rope_parameters", None)
    if old and new and old != new:
        raise fields.refuse("rope_scaling", old, "but rope_parameters says otherwise: keep one of them")
    name = "rope_scaling" if old else "rope_parameters"
    settings = old or new or {}
    if not isinstance(settings, dict):
        raise fields.refuse(name, settings, "which is not an object")
    kind: Any = settings.get("rope_type", settings.get("type", "default"))
    if str(kind) not in _ROPE_KEYS:
        raise fields.refuse(f"{name}.rope_type", kind, f"which is not one of {', '.join(_ROPE_KEYS)}")
    keys = _ROPE_KEYS[kind]
    for key in settings:
        if key not in ("rope_type", "type", "rope_theta", "partial_rotary_factor", *keys):
            raise fields.refuse(f"{name}.{key}", settings[key], "a field that is not understood")
    part = settings.get("partial_rotary_factor", part)
    if style.rotated is None and part != 1.0:
        raise fields.refuse("partial_rotary_factor", part, "which models of this family do not have")
    # Scaling, by the names of our fields.
    rope: dict[str, FieldValue] = {"rope_theta": settings.get("rope_theta", base), "rotary_fraction": part}
    rope["rope_scaling"] = "none" if kind == "default" else kind
    for key, field in keys.items():
        if key in settings:
            rope[field] = settings[key]
        elif key == "original_max_position_embeddings":
            rope[field] = fields.get(key, fields.get("max_position_embeddings"))
        else:
            raise InputError(f"{fields.where} has {name} of type {kind!r} without {key}: add it, as the model has it")
    return rope


def write_rope(cfg: ModelConfig, style: Rope) -> dict[str, object]:
    """Write RoPE in the older style, which every version of transformers reads: the inverse of :func:`read_rope`."""
    entries: dict[str, object] = {style.base_name: cfg.rope_theta, "rope_scaling": rope_scaling(cfg)}
    return entries if style.rotated is None else entries | {style.rotated_name: cfg.rotary_fraction}


def rope_scaling(cfg: ModelConfig) -> dict[str, object] | None:
    """Return RoPE's scaling in the older style; None for no scaling."""
    if cfg.rope_scaling == "none":
        return None
    keys = _ROPE_KEYS[cfg.rope_scaling]
    return {"rope_type": cfg.rope_scaling} | {key: getattr(cfg, field) for key, field in keys.items()}


LAYER_TYPES = {"sliding_attention": "l", "full_attention": "g"}


def read_pattern(fields: Fields, kinds: object) -> str:
    """Turn ``layer_types``, the kinds of layers, into a pattern of ``ModelConfig.attention_pattern``.

    Raises:
        InputError: it is no such list, or a kind is not known.
    """
    if not isinstance(kinds, list) or not kinds or not all(kind in LAYER_TYPES for kind in kinds):
        raise fields.refuse("layer_types", kinds, f"which is not a list of {' and '.join(LAYER_TYPES)}")
    if len(kinds) != fields.get("num_hidden_layers"):
        raise fields.refuse("layer_types", kinds, f"which does not list {fields.get('num_hidden_layers')} layers")
    pattern = "".join(LAYER_TYPES[kind] for kind in kinds)
    return shortest_period(pattern)


def shortest_period(pattern: str) -> str:
    """Return the shortest beginning that a pattern of layers repeats; the last turn may be cut short."""
    for length in range(1, len(pattern) + 1):
        if (pattern[:length] * len(pattern))[: len(pattern)] == pattern:
            return pattern[:length]
    return pattern


def write_pattern(cfg: ModelConfig) -> list[str]:
    """Write the kind of every layer: the inverse of :func:`read_pattern`."""
    kinds = {letter: kind for kind, letter in LAYER_TYPES.items()}
    return [kinds["l" if is_local else "g"] for is_local in cfg.is_local or ()]


def read_layer_windows(
    fields: Fields, is_local: Callable[[int, int], bool] = lambda layer, first: layer >= first
) -> dict[str, FieldValue]:
    """Read the windows of Qwen's layers: one for all, or a pattern.

    Args:
        fields: of the file.
        is_local: whether a layer, counted from 0, has a window, from its number and ``max_window_layers``; for files
            that list no kinds of layers.
    """
    window = fields.get("sliding_window", 4096)
    first = fields.get("max_window_layers", 28)
    used = fields.get("use_sliding_window", False) and window is not None
    kinds = fields.get("layer_types", None)
    if kinds is None:
        local = [used and is_local(layer, first) for layer in range(fields.get("num_hidden_layers"))]
        kinds = ["sliding_attention" if layer_is_local else "full_attention" for layer_is_local in local]
    pattern = read_pattern(fields, kinds)
    if not used and pattern != "g":
        raise fields.refuse("layer_types", kinds, "but no sliding window: make the two agree")
    if pattern == "g":
        return {"window": None}
    return {"window": window} if pattern == "l" else {"window": window, "attention_pattern": pattern}


def write_layer_windows(cfg: ModelConfig) -> dict[str, object]:
    """Write Qwen's entries for a window of every layer, or of none."""
    windowed = cfg.window is not None
    entries: dict[str, object] = {
        "use_sliding_window": windowed,
        "sliding_window": cfg.window,
        "max_window_layers": 0 if windowed else cfg.num_layers,
    }
    return entries if cfg.attention_pattern is None else entries | {"layer_types": write_pattern(cfg)}
