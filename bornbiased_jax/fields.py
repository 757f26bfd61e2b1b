"""What each field of ``ModelConfig`` means to those that must not pass over one in silence.

Four readers of a configuration each know only part of what a model may be: initialization, theory, the export to
transformers and the fused attention kernel. For every field each of them uses it, refuses every value but one, or is
untouched by it for a reason that is written down here. A new field needs its line before tests pass again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from bornbiased_jax.config import ModelConfig

Reader = Literal["initialization", "theory", "export", "fused_attention"]


class Policy(NamedTuple):
    """The treatment of one field by one reader.

    Attributes:
        kind: "used": it acts on the field. "refused": it takes one value only. "untouched": the field changes
            nothing that this reader computes.
        unless: the one value that is taken, where all others are refused.
        reason: why the field changes nothing.
    """

    kind: Literal["used", "refused", "untouched"]
    unless: Any = None
    reason: str = ""


class FieldEntry(NamedTuple):
    """One field's meaning to each reader."""

    initialization: Policy
    theory: Policy
    export: Policy
    fused_attention: Policy


USED = Policy("used")


def _only(value: object) -> Policy:
    return Policy("refused", unless=value)


def _untouched(reason: str) -> Policy:
    return Policy("untouched", reason=reason)


_NO_SHAPE = _untouched("it changes no parameter's shape and no distribution")
_ZERO = _untouched("biases are zero at initialization")
_OUTSIDE = _untouched("it acts before queries, keys and values are made, or after values are aggregated")
_ANY_KEYS = _untouched("it rotates queries and keys before the kernel sees them")
_DRAWN = _untouched("a file states one standard deviation, not one of each group")

TABLE: dict[str, FieldEntry] = {
    "num_layers": FieldEntry(USED, USED, USED, _OUTSIDE),
    "num_heads": FieldEntry(USED, USED, USED, USED),
    "num_kv_heads": FieldEntry(USED, USED, USED, USED),
    "head_dim": FieldEntry(USED, USED, USED, USED),
    "d_model": FieldEntry(USED, USED, USED, _OUTSIDE),
    "d_ff": FieldEntry(USED, USED, USED, _OUTSIDE),
    "vocab_size": FieldEntry(USED, USED, USED, _OUTSIDE),
    "max_seq_len": FieldEntry(USED, USED, USED, _OUTSIDE),
    "norm": FieldEntry(USED, USED, USED, _OUTSIDE),
    "norm_eps": FieldEntry(_NO_SHAPE, USED, USED, _OUTSIDE),
    "norm_parameters": FieldEntry(USED, _untouched("scales are one and biases zero at initialization"), USED, _OUTSIDE),
    "norm_position": FieldEntry(USED, USED, USED, _OUTSIDE),
    "activation": FieldEntry(_NO_SHAPE, USED, USED, _OUTSIDE),
    "gated_mlp": FieldEntry(USED, USED, USED, _OUTSIDE),
    "residual": FieldEntry(_NO_SHAPE, USED, _only(True), _OUTSIDE),
    "residual_scale": FieldEntry(_NO_SHAPE, _only(1.0), USED, _OUTSIDE),
    "parallel_residual": FieldEntry(_NO_SHAPE, USED, USED, _OUTSIDE),
    "shared_norm": FieldEntry(USED, _untouched("norms of a block are equal at initialization"), USED, _OUTSIDE),
    "attention": FieldEntry(USED, USED, _only(True), USED),
    "mlp": FieldEntry(USED, USED, _only(True), _OUTSIDE),
    "bias": FieldEntry(USED, _ZERO, USED, _OUTSIDE),
    "qkv_bias": FieldEntry(USED, _ZERO, USED, _OUTSIDE),
    "tie_embeddings": FieldEntry(USED, USED, USED, _OUTSIDE),
    "embedding_scale": FieldEntry(_NO_SHAPE, USED, USED, _OUTSIDE),
    "logit_scale": FieldEntry(_NO_SHAPE, _only(1.0), USED, _OUTSIDE),
    "logit_softcap": FieldEntry(_NO_SHAPE, _untouched("it leaves the order of logits alone"), USED, _OUTSIDE),
    "num_experts": FieldEntry(USED, _only(None), USED, _OUTSIDE),
    "experts_per_token": FieldEntry(_NO_SHAPE, _untouched("theory refuses mixtures of experts"), USED, _OUTSIDE),
    "normalize_expert_weights": FieldEntry(_NO_SHAPE, _untouched("theory refuses mixtures of experts"), USED, _OUTSIDE),
    "shared_expert_width": FieldEntry(USED, _untouched("theory refuses mixtures of experts"), USED, _OUTSIDE),
    "positions": FieldEntry(USED, USED, USED, _ANY_KEYS),
    "rope_theta": FieldEntry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rotary_fraction": FieldEntry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_pattern": FieldEntry(
        _NO_SHAPE, _untouched("gradients, which alone follow angles, refuse it"), USED, _ANY_KEYS
    ),
    "rope_scaling": FieldEntry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_scaling_factor": FieldEntry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_low_freq_factor": FieldEntry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_high_freq_factor": FieldEntry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_original_max_seq_len": FieldEntry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "qk_norm": FieldEntry(USED, USED, USED, _OUTSIDE),
    "qk_norm_scope": FieldEntry(
        USED, _untouched("the norms of a projection and of its heads agree to leading order in 1/K"), USED, _OUTSIDE
    ),
    "window": FieldEntry(_NO_SHAPE, USED, USED, USED),
    "attention_scale": FieldEntry(_NO_SHAPE, USED, USED, _only(None)),
    "attention_softcap": FieldEntry(_NO_SHAPE, _only(None), USED, _only(None)),
    "attention_pattern": FieldEntry(_NO_SHAPE, _only(None), USED, _only(None)),
    "rope_local_theta": FieldEntry(_NO_SHAPE, _untouched("theory refuses layers that differ"), USED, _ANY_KEYS),
    "attention_kernel": FieldEntry(_NO_SHAPE, USED, _only("softmax"), _only("softmax")),
    "sink_logit": FieldEntry(USED, USED, _only("none"), _only("none")),
    "positional_scale": FieldEntry(_NO_SHAPE, USED, _only("none"), _OUTSIDE),
    "head_norm": FieldEntry(USED, USED, _only(False), _OUTSIDE),
    "output_gate": FieldEntry(USED, USED, _only("none"), _OUTSIDE),
    "prefix_length": FieldEntry(USED, _only(None), _only(None), _only(None)),
    "prefix_memory": FieldEntry(USED, _untouched("it is zero at initialization"), _only("none"), _OUTSIDE),
    "init": FieldEntry(USED, USED, USED, _OUTSIDE),
    "init_groups": FieldEntry(USED, USED, _DRAWN, _OUTSIDE),
}


def fields_of(reader: Reader) -> Iterator[tuple[str, Policy]]:
    """Yield every field with the policy of one reader."""
    for name, entry in TABLE.items():
        yield name, getattr(entry, reader)


_LLAMA3_ROPE = ("rope_low_freq_factor", "rope_high_freq_factor", "rope_original_max_seq_len")
_ROPE = ("rope_theta", "rotary_fraction", "rope_scaling", "rope_local_theta", "rope_scaling_factor", *_LLAMA3_ROPE)
_ATTENTION = (
    *_ROPE, "rope_pattern", "attention_pattern", "window", "attention_scale", "attention_softcap", "attention_kernel",
    "sink_logit", "positional_scale", "head_norm", "output_gate", "qk_norm", "qk_norm_scope", "qkv_bias",
)  # fmt: skip


def unread_fields(cfg: ModelConfig) -> dict[str, str]:
    """Return the fields that a model does not read, each with the field whose value switches it off."""
    unread: dict[str, str] = {}
    if not any(cfg.is_local or ()):
        unread["rope_local_theta"] = "attention_pattern"
    # With a pattern, only local layers have a window.
    if cfg.is_local is not None and not any(cfg.is_local):
        unread["window"] = "attention_pattern"
    if cfg.rope_scaling == "none":
        unread["rope_scaling_factor"] = "rope_scaling"
    if cfg.rope_scaling != "llama3":
        unread |= dict.fromkeys(_LLAMA3_ROPE, "rope_scaling")
    # Without rotated queries and keys no field of RoPE is read.
    if not any(cfg.is_rotated or (True,)):
        unread |= dict.fromkeys(_ROPE, "rope_pattern")
    if cfg.positions != "rope":
        unread |= dict.fromkeys(_ROPE, "positions")
    if cfg.num_experts is None:
        unread |= dict.fromkeys(("experts_per_token", "normalize_expert_weights"), "num_experts")
    if not cfg.qk_norm:
        unread["qk_norm_scope"] = "qk_norm"
    if cfg.bias:
        unread["qkv_bias"] = "bias"
    if cfg.norm == "none":
        unread |= dict.fromkeys(("norm_position", "norm_parameters"), "norm")
        if not (cfg.attention and (cfg.qk_norm or cfg.head_norm)):
            unread["norm_eps"] = "norm"
    if not cfg.attention:
        unread |= dict.fromkeys(_ATTENTION, "attention")
    if not cfg.mlp:
        unread |= dict.fromkeys(("activation", "gated_mlp"), "mlp")
    return unread
