"""LLaMA: also SmolLM2, TinyStories models and all that call themselves llama."""

from typing import Any

from bornbiased_jax.checkpoints.families.family import BiasFlag, Family, Want, exactly
from bornbiased_jax.config import FieldValue

TENSORS = {
    "embed": "model.embed_tokens.{leaf}",
    "blocks/attention_norm": "model.layers.{l}.input_layernorm.{leaf}",
    "blocks/mlp_norm": "model.layers.{l}.post_attention_layernorm.{leaf}",
    "blocks/attention/query": "model.layers.{l}.self_attn.q_proj.{leaf}",
    "blocks/attention/key": "model.layers.{l}.self_attn.k_proj.{leaf}",
    "blocks/attention/value": "model.layers.{l}.self_attn.v_proj.{leaf}",
    "blocks/attention/output": "model.layers.{l}.self_attn.o_proj.{leaf}",
    "blocks/attention/query_norm": "model.layers.{l}.self_attn.q_norm.{leaf}",
    "blocks/attention/key_norm": "model.layers.{l}.self_attn.k_norm.{leaf}",
    "blocks/mlp/gate": "model.layers.{l}.mlp.gate_proj.{leaf}",
    "blocks/mlp/up": "model.layers.{l}.mlp.up_proj.{leaf}",
    "blocks/mlp/down": "model.layers.{l}.mlp.down_proj.{leaf}",
    "final_norm": "model.norm.{leaf}",
    "head": "lm_head.{leaf}",
}
SIZES: dict[str, tuple[str, Any]] = {
    "num_layers": ("num_hidden_layers", ...),
    "num_heads": ("num_attention_heads", ...),
    "num_kv_heads": ("num_key_value_heads", None),
    "head_dim": ("head_dim", None),
    "d_model": ("hidden_size", ...),
    "d_ff": ("intermediate_size", ...),
    "vocab_size": ("vocab_size", ...),
    "max_seq_len": ("max_position_embeddings", ...),
    "norm_eps": ("rms_norm_eps", 1e-6),
    "activation": ("hidden_act", "silu"),
    "tie_embeddings": ("tie_word_embeddings", False),
}
FIXED: dict[str, FieldValue] = dict(norm="rmsnorm", gated_mlp=True)
RMSNORM = exactly(norm="rmsnorm", gated_mlp=True, positions="rope", parallel_residual=False, rotary_fraction=1.0)
PRE = exactly(norm_position="pre", qk_norm=False)
ATTENTION_BIAS: dict[str, BiasFlag] = {"qkv": ("attention_bias", False), "output": ("attention_bias", False)}
"""One flag for query, key, value and output; the MLP has no bias."""

FAMILY = Family(
    name="llama",
    architecture="LlamaForCausalLM",
    tensors=TENSORS,
    sizes=SIZES,
    fixed=FIXED,
    wants=(
        *RMSNORM,
        *PRE,
        Want("qkv_bias", lambda cfg: cfg.bias or not cfg.qkv_bias, "bias=true with qkv_bias=true"),
        *exactly(window=None),
        Want("num_heads", lambda cfg: cfg.d_model % cfg.num_heads == 0, "num_heads dividing d_model"),
    ),
    bias_flags={**ATTENTION_BIAS, "mlp": ("mlp_bias", False)},
    gguf="llama",
    interleaved=True,
)
