"""Families that differ from LLaMA by data alone, each as its differences.

- Mistral: a sliding window, and heads of any width.
- Qwen 2 and 2.5: biases on query, key and value, windows of some layers.
- Qwen 3: RMSNorm of the queries and keys of each head.
- OLMo 1 (2402.00838): LayerNorm without parameters; its clipping of queries, keys and values is refused.
- OLMo 2: norms after the sublayers, and of the whole query and key projections.
- Granite: four multipliers, of embeddings, attention, residual updates and logits, which are those of μP (2203.03466).
- Cohere's Command R: parallel blocks that read through one LayerNorm without a bias, scaled logits, Meta's order.
- GLM-4 (2406.12793): norms on both sides of a sublayer, half of each head rotated, in Meta's order.

Source: transformers' configurations of these names.
"""

from dataclasses import replace

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Want, exactly, without_rounding
from bornbiased_jax.checkpoints.families.phi3 import GATE_UP
from bornbiased_jax.checkpoints.families.reading import Rope, read_layer_windows, write_layer_windows
from bornbiased_jax.checkpoints.layout import Form
from bornbiased_jax.config import FieldValue

_BASE = replace(llama.FAMILY, bias_flags=llama.ATTENTION_BIAS, gguf=None, interleaved=False)
MISTRAL = replace(
    _BASE,
    name="mistral",
    architecture="MistralForCausalLM",
    sizes={**llama.SIZES, "num_kv_heads": ("num_key_value_heads", 8)},
    wants=(*llama.RMSNORM, *llama.PRE, *exactly(bias=False, qkv_bias=False)),
    bias_flags={},
    read=lambda fields: {"window": fields.get("sliding_window", 4096)},
    write=lambda cfg: {"sliding_window": cfg.window},
)
QWEN2 = replace(
    _BASE,
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    sizes={**llama.SIZES, "num_kv_heads": ("num_key_value_heads", 32)},
    wants=(*llama.RMSNORM, *llama.PRE, *exactly(bias=False, qkv_bias=True)),
    bias_flags={"qkv": True},
    read=read_layer_windows,
    write=write_layer_windows,
    gguf="qwen2",
    opts=frozenset(["attention_pattern"]),
)
QWEN3 = replace(
    _BASE,
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    sizes={**llama.SIZES, "num_kv_heads": ("num_key_value_heads", 32), "head_dim": ("head_dim", 128)},
    fixed={**llama.FIXED, "qk_norm": True},
    wants=(*llama.RMSNORM, *exactly(norm_position="pre", qk_norm=True, qk_norm_scope="head")),
    read=read_layer_windows,
    write=write_layer_windows,
    gguf="qwen3",
    opts=frozenset(["attention_pattern"]),
)
_OLMO_NORM: dict[str, FieldValue] = dict(norm_parameters="none", norm="layernorm", norm_eps=1e-5)
OLMO = replace(
    _BASE,
    name="olmo",
    architecture="OlmoForCausalLM",
    tensors={module: name for module, name in llama.TENSORS.items() if not module.endswith("norm")},
    sizes={field: size for field, size in llama.SIZES.items() if field != "norm_eps"},
    fixed={**_OLMO_NORM, "gated_mlp": True},
    wants=(
        *exactly(**_OLMO_NORM, gated_mlp=True, positions="rope", rotary_fraction=1.0, parallel_residual=False),
        *llama.PRE,
        *exactly(window=None),
        Want("head_dim", lambda cfg: cfg.key_dim * cfg.num_heads == cfg.d_model, "head_dim=d_model/num_heads"),
    ),
    refused={"clip_qkv": "but clipped queries, keys and values are not supported"},
    gguf="olmo",
    interleaved=True,
)
_OLMO2_NORMS: dict[str, FieldValue] = dict(qk_norm=True, qk_norm_scope="projection", norm_position="post")
OLMO2 = replace(
    _BASE,
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    tensors={
        **llama.TENSORS,
        "blocks/attention_norm": "model.layers.{l}.post_attention_layernorm.{leaf}",
        "blocks/mlp_norm": "model.layers.{l}.post_feedforward_layernorm.{leaf}",
    },
    sizes={**llama.SIZES, "norm_eps": ("rms_norm_eps", 1e-5)},
    fixed={**llama.FIXED, **_OLMO2_NORMS},
    wants=(*llama.RMSNORM, *exactly(**_OLMO2_NORMS, window=None)),
    gguf="olmo2",
)
GRANITE = replace(
    llama.FAMILY,
    name="granite",
    architecture="GraniteForCausalLM",
    sizes={
        **llama.SIZES,
        "embedding_scale": ("embedding_multiplier", 1.0),
        "attention_scale": ("attention_multiplier", 1.0),
        "residual_scale": ("residual_multiplier", 1.0),
    },
    wants=(
        *llama.FAMILY.wants,
        Want("attention_scale", lambda cfg: cfg.attention_scale is not None, "attention_scale set"),
    ),
    read=lambda fields: {"logit_scale": 1 / fields.get("logits_scaling", 1.0)},
    write=lambda cfg: {"logits_scaling": without_rounding(1 / cfg.logit_scale)},
    gguf="granite",
    opts=frozenset(["logit_scale"]),
)
_COHERE_BLOCK: dict[str, FieldValue] = dict(norm_parameters="scale", parallel_residual=True, shared_norm=True)
_PAIRED: dict[str, Form] = {"blocks/attention/query": "paired query", "blocks/attention/key": "paired key"}
COHERE = replace(
    _BASE,
    name="cohere",
    architecture="CohereForCausalLM",
    tensors={module: name for module, name in llama.TENSORS.items() if module != "blocks/mlp_norm"},
    sizes={
        **llama.SIZES,
        "norm_eps": ("layer_norm_eps", 1e-5),
        "tie_embeddings": ("tie_word_embeddings", True),
        "logit_scale": ("logit_scale", 0.0625),
    },
    fixed={"norm": "layernorm", "gated_mlp": True, **_COHERE_BLOCK},
    wants=(
        *exactly(**_COHERE_BLOCK, norm="layernorm", gated_mlp=True, positions="rope", rotary_fraction=1.0),
        *exactly(qk_norm=False, window=None),
    ),
    rope=Rope(base=500_000.0),
    refused={"use_qk_norm": "but norms of queries and keys that take out a mean are not supported"},
    forms=_PAIRED,
    gguf="command-r",
)
GLM4 = replace(
    _BASE,
    name="glm4",
    architecture="Glm4ForCausalLM",
    tensors={
        **GATE_UP,
        "blocks/attention_post_norm": "model.layers.{l}.post_self_attn_layernorm.{leaf}",
        "blocks/mlp_post_norm": "model.layers.{l}.post_mlp_layernorm.{leaf}",
    },
    sizes={
        **llama.SIZES,
        "num_kv_heads": ("num_key_value_heads", 2),
        "head_dim": ("head_dim", 128),
        "norm_eps": ("rms_norm_eps", 1.5625e-07),
    },
    fixed={**llama.FIXED, "norm_position": "both"},
    wants=(
        *exactly(norm="rmsnorm", gated_mlp=True, positions="rope", parallel_residual=False),
        *exactly(norm_position="both", qk_norm=False, bias=False, window=None),
    ),
    bias_flags={"qkv": ("attention_bias", True)},
    rope=Rope(rotated=0.5),
    forms={**_PAIRED, "blocks/mlp/gate_up": "fused rows"},
    gguf="glm4",
)
