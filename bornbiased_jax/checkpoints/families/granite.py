"""Granite: LLaMA with four multipliers: of embeddings, attention, residual updates and logits.

Source: transformers' configuration of ``granite``; the multipliers are those of μP (2203.03466).
"""

import dataclasses

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Want, without_rounding

FAMILY = dataclasses.replace(
    llama.FAMILY,
    name="granite",
    architecture="GraniteForCausalLM",
    sizes={
        **llama.SIZES,
        "embedding_scale": ("embedding_multiplier", 1.0),
        "attention_scale": ("attention_multiplier", 1.0),
        "residual_scale": ("residual_multiplier", 1.0),
    },
    wants=(
        *llama.FAMILY.wants,
        Want("attention_scale", lambda cfg: cfg.attention_scale is not None, "attention_scale set"),
    ),
    read=lambda fields: {"logit_scale": 1 / fields.get("logits_scaling", 1.0)},
    write=lambda cfg: {"logits_scaling": without_rounding(1 / cfg.logit_scale)},
    gguf="granite",
    opts=frozenset(["logit_scale"]),
)
