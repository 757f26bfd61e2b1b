"""Qwen 2 and 2.5: LLaMA with biases on query, key and value."""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.reading import read_layer_windows, read_rope, write_layer_windows
from bornbiased_jax.checkpoints.layout import Biases

FAMILY = Family(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    tensors=llama.TENSORS,
    sizes={**llama.SIZES, "num_kv_heads": ("num_key_value_heads", 32)},
    fixed=llama.FIXED,
    wants=(*llama.RMSNORM, *llama.PRE, *exactly(bias=False, qkv_bias=True)),
    biases=lambda cfg: Biases(True, False, False),
    read_biases=lambda fields: Biases(True, False, False),
    read=lambda fields: read_rope(fields) | read_layer_windows(fields),
    write=lambda cfg: llama.rope_entries(cfg) | write_layer_windows(cfg),
    gguf="qwen2",
    opts=frozenset(["attention_pattern"]),
)
