"""Families of models, one file each; those that differ from LLaMA by data alone share one.

A new one is a file with a ``FAMILY`` and its place in the list below.
"""

from bornbiased_jax.checkpoints.families import (
    gemma,
    gemma2,
    gemma3_text,
    gpt2,
    gpt_neox,
    llama,
    llama_like,
    mixtral,
    phi3,
    qwen2_moe,
    qwen3_moe,
    smollm3,
    starcoder2,
)
from bornbiased_jax.checkpoints.families.family import Family

_LISTED = (
    gpt2.FAMILY,
    llama.FAMILY,
    llama_like.MISTRAL,
    llama_like.QWEN2,
    llama_like.QWEN3,
    gpt_neox.FAMILY,
    llama_like.OLMO2,
    gemma3_text.FAMILY,
    mixtral.FAMILY,
    qwen3_moe.FAMILY,
    qwen2_moe.FAMILY,
    starcoder2.FAMILY,
    gemma.FAMILY,
    gemma2.FAMILY,
    phi3.FAMILY,
    llama_like.GLM4,
    llama_like.GRANITE,
    llama_like.COHERE,
    llama_like.OLMO,
    smollm3.FAMILY,
)
FAMILIES: dict[str, Family] = {family.name: family for family in _LISTED}
"""Model type to family. Of two that could hold the same model, an export takes the earlier."""
GGUF: dict[str, Family] = {family.gguf: family for family in reversed(_LISTED) if family.gguf is not None}
"""Architecture of a GGUF file to family, the earlier where two share one: Mixtral calls itself llama."""

__all__ = ["FAMILIES", "GGUF", "Family"]
