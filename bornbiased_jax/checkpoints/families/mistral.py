"""Mistral 7B: LLaMA with a sliding window, and heads of any width."""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.reading import read_rope
from bornbiased_jax.checkpoints.layout import Biases

FAMILY = Family(
    name="mistral",
    architecture="MistralForCausalLM",
    tensors=llama.TENSORS,
    sizes={**llama.SIZES, "num_kv_heads": ("num_key_value_heads", 8)},
    fixed=llama.FIXED,
    wants=(*llama.RMSNORM, *llama.PRE, *exactly(bias=False, qkv_bias=False)),
    biases=lambda cfg: Biases(False, False, False),
    read_biases=lambda fields: Biases(False, False, False),
    read=lambda fields: read_rope(fields) | {"window": fields.get("sliding_window", 4096)},
    write=lambda cfg: llama.rope_entries(cfg) | {"sliding_window": cfg.window},
)
