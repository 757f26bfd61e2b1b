"""Cohere's Command R: parallel blocks that read through one LayerNorm without a bias, logits scaled.

Source: transformers' configuration of ``cohere``; queries and keys lie in Meta's order.
"""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.reading import Rope
from bornbiased_jax.config import FieldValue

_BLOCK: dict[str, FieldValue] = dict(norm_parameters="scale", parallel_residual=True, shared_norm=True)

FAMILY = Family(
    name="cohere",
    architecture="CohereForCausalLM",
    tensors={module: name for module, name in llama.TENSORS.items() if module != "blocks/mlp_norm"},
    sizes={
        **llama.SIZES,
        "norm_eps": ("layer_norm_eps", 1e-5),
        "tie_embeddings": ("tie_word_embeddings", True),
        "logit_scale": ("logit_scale", 0.0625),
    },
    fixed={"norm": "layernorm", "gated_mlp": True, **_BLOCK},
    wants=(
        *exactly(**_BLOCK, norm="layernorm", gated_mlp=True, positions="rope", rotary_fraction=1.0),
        *exactly(qk_norm=False, window=None),
    ),
    bias_flags=llama.ATTENTION_BIAS,
    rope=Rope(base=500_000.0),
    refused={"use_qk_norm": "but norms of queries and keys that take out a mean are not supported"},
    forms={"blocks/attention/query": "paired query", "blocks/attention/key": "paired key"},
    gguf="command-r",
)
