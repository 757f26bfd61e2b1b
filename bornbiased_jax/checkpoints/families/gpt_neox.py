"""GPT-NeoX and Pythia: parallel residuals, partial RoPE, query, key and value interleaved per head."""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.gpt2 import LAYERNORM
from bornbiased_jax.checkpoints.families.reading import Rope

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
        **{field: size for field, size in llama.SIZES.items() if field not in ("num_kv_heads", "head_dim")},
        "norm_eps": ("layer_norm_eps", 1e-5),
        "activation": ("hidden_act", "gelu"),
        "parallel_residual": ("use_parallel_residual", True),
    },
    fixed=dict(norm="layernorm"),
    wants=(*LAYERNORM, *exactly(positions="rope")),
    bias_flags={"qkv": ("attention_bias", True), "output": ("attention_bias", True), "mlp": True},
    rope=Rope(rotated=0.25, base_name="rotary_emb_base", rotated_name="rotary_pct"),
    forms={"blocks/attention/qkv": "fused heads"},
    # transformers calls the head lm_head in memory and has written either name.
    aliases={"embed_out.weight": "lm_head.weight"},
    gguf="gptneox",
)
