"""OLMo 2: norms after the sublayers, and of the whole query and key projections."""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.reading import read_rope

_CHOICES = dict(qk_norm=True, qk_norm_scope="projection", norm_position="post")

FAMILY = Family(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    tensors={
        **llama.TENSORS,
        "blocks/attention_norm": "model.layers.{l}.post_attention_layernorm.{leaf}",
        "blocks/mlp_norm": "model.layers.{l}.post_feedforward_layernorm.{leaf}",
    },
    sizes={**llama.SIZES, "norm_eps": ("rms_norm_eps", 1e-5)},
    fixed={**llama.FIXED, **_CHOICES},
    wants=(*llama.RMSNORM, *exactly(**_CHOICES, window=None)),
    biases=llama.attention_biases,
    read_biases=llama.read_attention_bias,
    read=read_rope,
    write=lambda cfg: llama.rope_entries(cfg) | {"attention_bias": llama.attention_biases(cfg).qkv},
)
