"""Qwen 3: per-head RMSNorm of queries and keys."""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.reading import read_layer_windows, read_rope, write_layer_windows

FAMILY = Family(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    tensors=llama.TENSORS,
    sizes={**llama.SIZES, "num_kv_heads": ("num_key_value_heads", 32), "head_dim": ("head_dim", 128)},
    fixed={**llama.FIXED, "qk_norm": True},
    wants=(*llama.RMSNORM, *exactly(norm_position="pre", qk_norm=True, qk_norm_scope="head")),
    biases=llama.attention_biases,
    read_biases=llama.read_attention_bias,
    read=lambda fields: read_rope(fields) | read_layer_windows(fields),
    write=lambda cfg: (
        llama.rope_entries(cfg) | write_layer_windows(cfg) | {"attention_bias": llama.attention_biases(cfg).qkv}
    ),
    gguf="qwen3",
    opts=frozenset(["attention_pattern"]),
)
