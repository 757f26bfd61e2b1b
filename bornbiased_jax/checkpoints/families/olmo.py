"""OLMo 1: LLaMA whose LayerNorm has no parameters; its clipping of queries, keys and values is refused.

Source: OLMo (2402.00838) and transformers' configuration of ``olmo``.
"""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, Want, exactly
from bornbiased_jax.config import FieldValue

_NORM: dict[str, FieldValue] = dict(norm_parameters="none", norm="layernorm", norm_eps=1e-5)

FAMILY = Family(
    name="olmo",
    architecture="OlmoForCausalLM",
    tensors={module: name for module, name in llama.TENSORS.items() if not module.endswith("norm")},
    sizes={field: size for field, size in llama.SIZES.items() if field != "norm_eps"},
    fixed={**_NORM, "gated_mlp": True},
    wants=(
        *exactly(**_NORM, gated_mlp=True, positions="rope", rotary_fraction=1.0, parallel_residual=False),
        *llama.PRE,
        *exactly(window=None),
        Want("head_dim", lambda cfg: cfg.key_dim * cfg.num_heads == cfg.d_model, "head_dim=d_model/num_heads"),
    ),
    bias_flags=llama.ATTENTION_BIAS,
    refused={"clip_qkv": "but clipped queries, keys and values are not supported"},
    gguf="olmo",
    interleaved=True,
)
