"""Gemma 1: what differs from LLaMA.

- Files keep norm scales less one.
- The token table is multiplied with √D on entering, and shared with the head.
- The gated MLP has tanh's approximation of GELU; files that say "gelu" mean it too.

Source: Gemma technical report (2403.08295) and transformers' configuration of ``gemma``.
"""

import math

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, Want, exactly
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.config import FieldValue

SCALED_EMBEDDING = Want(
    "embedding_scale",
    lambda cfg: math.isclose(cfg.embedding_scale, math.sqrt(cfg.d_model), rel_tol=1e-6),
    "embedding_scale=√d_model",
)
CAUSAL = {"use_bidirectional_attention": "but only causal attention is supported"}
"""Refusal of attention that sees later tokens, as of an encoder made from Gemma."""


def _read(fields: Fields) -> dict[str, FieldValue]:
    settings: dict[str, FieldValue] = {"embedding_scale": math.sqrt(fields.get("hidden_size"))}
    # transformers reads hidden_act alone, and takes the exact GELU of the first releases for a mistake.
    fields.get("hidden_activation", None)
    return settings | ({"activation": "gelu_tanh"} if fields.get("hidden_act", None) == "gelu" else {})


FAMILY = Family(
    name="gemma",
    architecture="GemmaForCausalLM",
    tensors=llama.TENSORS,
    sizes={
        **llama.SIZES,
        "num_kv_heads": ("num_key_value_heads", 16),
        "head_dim": ("head_dim", 256),
        "activation": ("hidden_act", "gelu_pytorch_tanh"),
        "tie_embeddings": ("tie_word_embeddings", True),
    },
    fixed=llama.FIXED,
    wants=(
        *llama.RMSNORM,
        *llama.PRE,
        SCALED_EMBEDDING,
        *exactly(window=None),
        Want("activation", lambda cfg: cfg.activation != "gelu", "activation=gelu_tanh"),
    ),
    bias_flags=llama.ATTENTION_BIAS,
    refused=CAUSAL,
    read=_read,
    opts=frozenset(["embedding_scale"]),
    offset_norms=True,
    gguf="gemma",
)
