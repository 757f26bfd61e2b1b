"""GLM-4: norms on both sides of a sublayer, half of each head rotated, its rows in Meta's order.

Source: ChatGLM (2406.12793) and transformers' configuration of ``glm4``.
"""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.phi3 import GATE_UP
from bornbiased_jax.checkpoints.families.reading import Rope

FAMILY = Family(
    name="glm4",
    architecture="Glm4ForCausalLM",
    tensors={
        **GATE_UP,
        "blocks/attention_post_norm": "model.layers.{l}.post_self_attn_layernorm.{leaf}",
        "blocks/mlp_post_norm": "model.layers.{l}.post_mlp_layernorm.{leaf}",
    },
    sizes={
        **llama.SIZES,
        "num_kv_heads": ("num_key_value_heads", 2),
        "head_dim": ("head_dim", 128),
        "norm_eps": ("rms_norm_eps", 1.5625e-07),
    },
    fixed={**llama.FIXED, "norm_position": "both"},
    wants=(
        *exactly(norm="rmsnorm", gated_mlp=True, positions="rope", parallel_residual=False),
        *exactly(norm_position="both", qk_norm=False, bias=False, window=None),
    ),
    bias_flags={"qkv": ("attention_bias", True)},
    rope=Rope(rotated=0.5),
    forms={
        "blocks/attention/query": "paired query",
        "blocks/attention/key": "paired key",
        "blocks/mlp/gate_up": "fused rows",
    },
    gguf="glm4",
)
