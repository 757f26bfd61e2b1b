"""Gemma 2: Gemma 1 with norms on both sides of a sublayer, local layers in turn with global ones, and soft caps.

Source: Gemma 2 technical report (2408.00118) and transformers' configuration of ``gemma2``.
"""

import math

from bornbiased_jax.checkpoints.families import gemma, gemma3_text, llama
from bornbiased_jax.checkpoints.families.family import Family, Want, exactly
from bornbiased_jax.checkpoints.families.reading import Fields, read_pattern, write_pattern
from bornbiased_jax.config import FieldValue, ModelConfig


def _read(fields: Fields) -> dict[str, FieldValue]:
    kinds = fields.get("layer_types", None)
    return {
        "window": fields.get("sliding_window", 4096),
        "attention_pattern": "lg" if kinds is None else read_pattern(fields, kinds),
        "attention_scale": float(fields.get("query_pre_attn_scalar", 256)) ** -0.5,
        "attention_softcap": fields.get("attn_logit_softcapping", 50.0),
        "logit_softcap": fields.get("final_logit_softcapping", 30.0),
        "embedding_scale": math.sqrt(fields.get("hidden_size")),
    }


def _write(cfg: ModelConfig) -> dict[str, object]:
    return {
        "attn_logit_softcapping": cfg.attention_softcap,
        "final_logit_softcapping": cfg.logit_softcap,
        "layer_types": write_pattern(cfg),
        "query_pre_attn_scalar": gemma3_text.query_scalar(cfg),
        "sliding_window": cfg.window,
    }


FAMILY = Family(
    name="gemma2",
    architecture="Gemma2ForCausalLM",
    tensors=gemma3_text.TENSORS,
    sizes=gemma3_text.FAMILY.sizes,
    fixed={**llama.FIXED, "norm_position": "both"},
    wants=(
        *llama.RMSNORM,
        *exactly(norm_position="both", qk_norm=False),
        gemma.SCALED_EMBEDDING,
        Want("attention_scale", lambda cfg: cfg.attention_scale is not None, "attention_scale set"),
        Want("attention_pattern", lambda cfg: cfg.attention_pattern is not None, "attention_pattern set"),
    ),
    bias_flags=llama.ATTENTION_BIAS,
    refused=gemma.CAUSAL,
    read=_read,
    write=_write,
    opts=frozenset("embedding_scale logit_softcap attention_scale attention_softcap attention_pattern".split()),
    offset_norms=True,
    gguf="gemma2",
)
