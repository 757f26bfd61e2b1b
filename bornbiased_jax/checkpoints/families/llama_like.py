"""Families that differ from LLaMA by data alone, each as its differences.

- Mistral: a sliding window, and heads of any width.
- Qwen 2 and 2.5: biases on query, key and value, windows of some layers.
- Qwen 3: RMSNorm of the queries and keys of each head.
- OLMo 2: norms after the sublayers, and of the whole query and key projections.
"""

from dataclasses import replace

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import exactly
from bornbiased_jax.checkpoints.families.reading import read_layer_windows, write_layer_windows
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
