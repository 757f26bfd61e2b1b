"""Gemma 3, its text model: what differs from LLaMA.

- Norms stand before and after each sublayer; files keep their scales less one, those of queries and keys too.
- Five local layers to a global one: a window and a RoPE base of their own, no scaling.
- The token table is multiplied with √D on entering, and shared with the head.
- Attention is scaled by a number of its own; the logits of tokens may be capped.
- The gated MLP has tanh's approximation of GELU.

Source: Gemma 3 technical report (2503.19786) and transformers' configuration of ``gemma3_text``.
"""

import math

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, Want, exactly, without_rounding
from bornbiased_jax.checkpoints.families.gemma import CAUSAL, SCALED_EMBEDDING
from bornbiased_jax.checkpoints.families.reading import (
    Fields,
    Rope,
    read_pattern,
    read_rope,
    rope_scaling,
    write_pattern,
)
from bornbiased_jax.config import FieldValue, ModelConfig

_GLOBAL, _LOCAL = "full_attention", "sliding_attention"
# Every sixth layer is global where a file does not list its layers.
_PERIOD = 6
_GLOBAL_ROPE = Rope(base=1_000_000.0)


def _read(fields: Fields) -> dict[str, FieldValue]:
    cap = fields.get("attn_logit_softcapping", None)
    if cap is not None:
        raise fields.refuse("attn_logit_softcapping", cap, "which transformers' Gemma 3 ignores: set it to null")
    stated = [fields.get(name, None) for name in ("sliding_window_pattern", "_sliding_window_pattern")]
    period = next(filter(None, stated), _PERIOD)
    kinds = fields.get("layer_types", None)
    pattern = "l" * (period - 1) + "g" if kinds is None else read_pattern(fields, kinds)
    scale = fields.get("query_pre_attn_scalar", 256)
    return {
        **_read_rope(fields),
        "window": fields.get("sliding_window", 4096),
        "attention_pattern": pattern,
        "attention_scale": float(scale) ** -0.5,
        "logit_softcap": fields.get("final_logit_softcapping", None),
        "embedding_scale": math.sqrt(fields.get("hidden_size")),
    }


def _read_rope(fields: Fields) -> dict[str, FieldValue]:
    """Read RoPE of global layers, and the base of local ones, in the style of any version of transformers."""
    by_kind = fields.get("rope_parameters", None) or {}
    local = fields.get("rope_local_base_freq", 10_000.0)
    if not by_kind:
        # Before transformers 5: rope_theta and rope_scaling are those of the global layers.
        values = {name: value for name, value in fields.values.items() if name != "rope_parameters"}
        older = Fields(values, fields.where)
        rope = read_rope(older, _GLOBAL_ROPE)
        fields.asked |= older.asked
        return rope | {"rope_local_theta": local}
    if not isinstance(by_kind, dict) or set(by_kind) != {_GLOBAL, _LOCAL}:
        raise fields.refuse("rope_parameters", by_kind, f"which does not say {_GLOBAL} and {_LOCAL}")
    rope = read_rope(Fields({"rope_parameters": by_kind[_GLOBAL]}, fields.where), _GLOBAL_ROPE)
    of_local = read_rope(Fields({"rope_parameters": by_kind[_LOCAL]}, fields.where), Rope(base=local))
    if of_local["rope_scaling"] != "none":
        raise fields.refuse("rope_parameters", by_kind, "but local layers with scaled RoPE are not supported")
    return rope | {"rope_local_theta": of_local["rope_theta"]}


def _write(cfg: ModelConfig) -> dict[str, object]:
    scaling = rope_scaling(cfg) or {"rope_type": "default"}
    return {
        "final_logit_softcapping": cfg.logit_softcap,
        "layer_types": write_pattern(cfg),
        "query_pre_attn_scalar": query_scalar(cfg),
        "rope_parameters": {
            _GLOBAL: {**scaling, "rope_theta": cfg.rope_theta},
            _LOCAL: {"rope_type": "default", "rope_theta": cfg.rope_local_theta},
        },
        "sliding_window": cfg.window,
    }


def query_scalar(cfg: ModelConfig) -> float:
    """Return 1/scale² as files state it."""
    assert cfg.attention_scale is not None
    return without_rounding(cfg.attention_scale**-2)


TENSORS = {
    **llama.TENSORS,
    "blocks/attention_post_norm": "model.layers.{l}.post_attention_layernorm.{leaf}",
    "blocks/mlp_norm": "model.layers.{l}.pre_feedforward_layernorm.{leaf}",
    "blocks/mlp_post_norm": "model.layers.{l}.post_feedforward_layernorm.{leaf}",
}
FAMILY = Family(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    tensors=TENSORS,
    sizes={
        **llama.SIZES,
        "num_kv_heads": ("num_key_value_heads", 4),
        "head_dim": ("head_dim", 256),
        "activation": ("hidden_activation", "gelu_pytorch_tanh"),
        "tie_embeddings": ("tie_word_embeddings", True),
    },
    fixed={**llama.FIXED, "qk_norm": True, "norm_position": "both"},
    wants=(
        *llama.RMSNORM,
        *exactly(norm_position="both", qk_norm=True, qk_norm_scope="head"),
        SCALED_EMBEDDING,
        Want("attention_scale", lambda cfg: cfg.attention_scale is not None, "attention_scale set"),
        Want("attention_pattern", lambda cfg: cfg.attention_pattern is not None, "attention_pattern set"),
        Want("rope_local_theta", lambda cfg: cfg.rope_local_theta is not None, "rope_local_theta set"),
    ),
    bias_flags=llama.ATTENTION_BIAS,
    refused=CAUSAL,
    rope=None,
    read=_read,
    write=_write,
    opts=frozenset("embedding_scale logit_softcap attention_scale attention_pattern rope_local_theta".split()),
    offset_norms=True,
    gguf="gemma3",
)
