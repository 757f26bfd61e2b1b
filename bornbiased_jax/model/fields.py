"""What each field of ``ModelConfig`` means to those that must not pass over one in silence.

Four readers of a configuration each know only part of what a model may be: initialization, theory, the export to
transformers and the fused attention kernel. For every field each of them uses it, refuses every value but one, or is
untouched by it for a reason that is written down here. A new field needs its line before tests pass again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

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


class Entry(NamedTuple):
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

TABLE: dict[str, Entry] = {
    "num_layers": Entry(USED, USED, USED, _OUTSIDE),
    "num_heads": Entry(USED, USED, USED, USED),
    "num_kv_heads": Entry(USED, USED, USED, USED),
    "head_dim": Entry(USED, USED, USED, USED),
    "d_model": Entry(USED, USED, USED, _OUTSIDE),
    "d_ff": Entry(USED, USED, USED, _OUTSIDE),
    "vocab_size": Entry(USED, USED, USED, _OUTSIDE),
    "max_seq_len": Entry(USED, USED, USED, _OUTSIDE),
    "norm": Entry(USED, USED, USED, _OUTSIDE),
    "norm_eps": Entry(_NO_SHAPE, USED, USED, _OUTSIDE),
    "norm_parameters": Entry(USED, _untouched("scales are one and biases zero at initialization"), USED, _OUTSIDE),
    "norm_position": Entry(USED, USED, USED, _OUTSIDE),
    "activation": Entry(_NO_SHAPE, USED, USED, _OUTSIDE),
    "gated_mlp": Entry(USED, USED, USED, _OUTSIDE),
    "residual": Entry(_NO_SHAPE, USED, _only(True), _OUTSIDE),
    "residual_scale": Entry(_NO_SHAPE, _only(1.0), USED, _OUTSIDE),
    "parallel_residual": Entry(_NO_SHAPE, USED, USED, _OUTSIDE),
    "shared_norm": Entry(USED, _untouched("norms of a block are equal at initialization"), USED, _OUTSIDE),
    "attention": Entry(USED, USED, _only(True), USED),
    "mlp": Entry(USED, USED, _only(True), _OUTSIDE),
    "bias": Entry(USED, _ZERO, USED, _OUTSIDE),
    "qkv_bias": Entry(USED, _ZERO, USED, _OUTSIDE),
    "tie_embeddings": Entry(USED, USED, USED, _OUTSIDE),
    "embedding_scale": Entry(_NO_SHAPE, USED, USED, _OUTSIDE),
    "logit_scale": Entry(_NO_SHAPE, _only(1.0), USED, _OUTSIDE),
    "logit_softcap": Entry(_NO_SHAPE, _untouched("it leaves the order of logits alone"), USED, _OUTSIDE),
    "num_experts": Entry(USED, _only(None), USED, _OUTSIDE),
    "experts_per_token": Entry(_NO_SHAPE, _untouched("theory refuses mixtures of experts"), USED, _OUTSIDE),
    "normalize_expert_weights": Entry(_NO_SHAPE, _untouched("theory refuses mixtures of experts"), USED, _OUTSIDE),
    "shared_expert_width": Entry(USED, _untouched("theory refuses mixtures of experts"), USED, _OUTSIDE),
    "positions": Entry(USED, USED, USED, _ANY_KEYS),
    "rope_theta": Entry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rotary_fraction": Entry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_pattern": Entry(_NO_SHAPE, _untouched("gradients, which alone follow angles, refuse it"), USED, _ANY_KEYS),
    "rope_scaling": Entry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_scaling_factor": Entry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_low_freq_factor": Entry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_high_freq_factor": Entry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "rope_original_max_seq_len": Entry(_NO_SHAPE, USED, USED, _ANY_KEYS),
    "qk_norm": Entry(USED, USED, USED, _OUTSIDE),
    "qk_norm_scope": Entry(
        USED, _untouched("the norms of a projection and of its heads agree to leading order in 1/K"), USED, _OUTSIDE
    ),
    "window": Entry(_NO_SHAPE, USED, USED, USED),
    "attention_scale": Entry(_NO_SHAPE, USED, USED, _only(None)),
    "attention_softcap": Entry(_NO_SHAPE, _only(None), USED, _only(None)),
    "attention_pattern": Entry(_NO_SHAPE, _only(None), USED, _only(None)),
    "rope_local_theta": Entry(_NO_SHAPE, _untouched("theory refuses layers that differ"), USED, _ANY_KEYS),
    "attention_kernel": Entry(_NO_SHAPE, USED, _only("softmax"), _only("softmax")),
    "sink_logit": Entry(USED, USED, _only("none"), _only("none")),
    "positional_scale": Entry(_NO_SHAPE, USED, _only("none"), _OUTSIDE),
    "head_norm": Entry(USED, USED, _only(False), _OUTSIDE),
    "output_gate": Entry(USED, USED, _only("none"), _OUTSIDE),
    "prefix_length": Entry(USED, _only(None), _only(None), _only(None)),
    "prefix_memory": Entry(USED, _untouched("it is zero at initialization"), _only("none"), _OUTSIDE),
    "init": Entry(USED, USED, USED, _OUTSIDE),
    "init_groups": Entry(USED, USED, _DRAWN, _OUTSIDE),
}


def fields_of(reader: Reader) -> Iterator[tuple[str, Policy]]:
    """Yield every field with the policy of one reader."""
    for name, entry in TABLE.items():
        yield name, getattr(entry, reader)
