"""Families of models, one file each. A new one is a file with a ``FAMILY`` and its name in the list below."""

from bornbiased_jax.checkpoints.families import (
    gemma3_text,
    gpt2,
    gpt_neox,
    llama,
    mistral,
    mixtral,
    olmo2,
    qwen2,
    qwen3,
    qwen3_moe,
)
from bornbiased_jax.checkpoints.families.family import Family

_MODULES = (gpt2, llama, mistral, qwen2, qwen3, gpt_neox, olmo2, gemma3_text, mixtral, qwen3_moe)
FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
"""Model type to family. Of two that could hold the same model, an export takes the earlier."""
GGUF: dict[str, Family] = {family.gguf: family for family in FAMILIES.values() if family.gguf is not None}
"""Architecture of a GGUF file to family."""

__all__ = ["FAMILIES", "GGUF", "Family"]
