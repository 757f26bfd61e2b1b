"""GPT-NeoX and Pythia: parallel residuals, partial RoPE, query, key and value interleaved per head."""

from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.gpt2 import LAYERNORM
from bornbiased_jax.checkpoints.families.reading import Fields, read_rope, rope_scaling
from bornbiased_jax.checkpoints.layout import Biases
from bornbiased_jax.config import ModelConfig


def _biases(cfg: ModelConfig) -> Biases:
    attention = cfg.bias or cfg.qkv_bias
    return Biases(attention, attention, True)


def _read_biases(fields: Fields) -> Biases:
    attention = fields.get("attention_bias", True)
    return Biases(attention, attention, True)


FAMILY = Family(
    name="gpt_neox",
    architecture="GPTNeoXForCausalLM",
    tensors={
        "embed": "gpt_neox.embed_in.{leaf}",
        "blocks/attention_norm": "gpt_neox.layers.{l}.input_layernorm.{leaf}",
        "blocks/mlp_norm": "gpt_neox.layers.{l}.post_attention_layernorm.{leaf}",
        "blocks/attention/qkv": "gpt_neox.layers.{l}.attention.query_key_value.{leaf}",
        "blocks/attention/output": "gpt_neox.layers.{l}.attention.dense.{leaf}",
        "blocks/mlp/up": "gpt_neox.layers.{l}.mlp.dense_h_to_4h.{leaf}",
        "blocks/mlp/down": "gpt_neox.layers.{l}.mlp.dense_4h_to_h.{leaf}",
        "final_norm": "gpt_neox.final_layer_norm.{leaf}",
        "head": "embed_out.{leaf}",
    },
    sizes={
        "num_layers": ("num_hidden_layers", ...),
        "num_heads": ("num_attention_heads", ...),
        "d_model": ("hidden_size", ...),
        "d_ff": ("intermediate_size", ...),
        "vocab_size": ("vocab_size", ...),
        "max_seq_len": ("max_position_embeddings", ...),
        "norm_eps": ("layer_norm_eps", 1e-5),
        "activation": ("hidden_act", "gelu"),
        "tie_embeddings": ("tie_word_embeddings", False),
        "parallel_residual": ("use_parallel_residual", True),
    },
    fixed=dict(norm="layernorm"),
    wants=(*LAYERNORM, *exactly(positions="rope")),
    biases=_biases,
    read_biases=_read_biases,
    read=lambda fields: read_rope(fields, theta="rotary_emb_base", fraction="rotary_pct", rotated=0.25),
    write=lambda cfg: {
        "rotary_emb_base": cfg.rope_theta,
        "rotary_pct": cfg.rotary_fraction,
        "attention_bias": _biases(cfg).qkv,
        "rope_scaling": rope_scaling(cfg),
    },
    forms={"blocks/attention/qkv": "fused heads"},
    # transformers calls the head lm_head in memory and has written either name.
    aliases={"embed_out.weight": "lm_head.weight"},
    gguf="gptneox",
)
