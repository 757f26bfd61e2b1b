"""Families of models, one file each. A new one is a file with a ``FAMILY`` and its name in the list below."""

from bornbiased_jax.checkpoints.families import gpt2, gpt_neox, llama, mistral, olmo2, qwen2, qwen3
from bornbiased_jax.checkpoints.families.family import Family

_MODULES = (gpt2, llama, mistral, qwen2, qwen3, gpt_neox, olmo2)
FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}
"""Model type to family. Of two that could hold the same model, an export takes the earlier."""
GGUF: dict[str, Family] = {family.gguf: family for family in FAMILIES.values() if family.gguf is not None}
"""Architecture of a GGUF file to family."""

__all__ = ["FAMILIES", "GGUF", "Family"]
