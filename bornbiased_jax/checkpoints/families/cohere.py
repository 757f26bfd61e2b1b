"""Cohere's Command R: parallel blocks that read through one LayerNorm without a bias, logits scaled.

Source: transformers' configuration of ``cohere``; queries and keys lie in Meta's order.
"""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.llama_like import write_attention_bias
from bornbiased_jax.checkpoints.families.reading import Fields, read_rope
from bornbiased_jax.config import FieldValue

_BLOCK: dict[str, FieldValue] = dict(norm_parameters="scale", parallel_residual=True, shared_norm=True)


def _read(fields: Fields) -> dict[str, FieldValue]:
    if fields.get("use_qk_norm", False):
        raise fields.refuse("use_qk_norm", True, "but norms of queries and keys that take out a mean are not supported")
    return read_rope(fields, base=500_000.0)


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
    biases=llama.attention_biases,
    read_biases=llama.read_attention_bias,
    read=_read,
    write=write_attention_bias,
    forms={"blocks/attention/query": "paired query", "blocks/attention/key": "paired key"},
    opts=frozenset(["norm_parameters", "shared_norm", "logit_scale"]),
    gguf="command-r",
)
