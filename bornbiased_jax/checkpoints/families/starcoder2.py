"""StarCoder 2: LLaMA with LayerNorm, biases in every linear layer, and an MLP without a gate.

Source: StarCoder 2 and The Stack v2 (2402.19173) and transformers' configuration of ``starcoder2``.
"""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, Want, exactly
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.config import FieldValue

_OF_TRAINER = """
    activation_function attention_softmax_in_fp32 layer_norm_epsilon mlp_type norm_type scale_attention_softmax_in_fp32
""".split()


def _read(fields: Fields) -> dict[str, FieldValue]:
    # Of the trainer that published files come from: transformers has hidden_act and norm_epsilon.
    for name in _OF_TRAINER:
        fields.get(name, None)
    return {"window": fields.get("sliding_window", None)}


FAMILY = Family(
    name="starcoder2",
    architecture="Starcoder2ForCausalLM",
    tensors={
        **llama.TENSORS,
        "blocks/mlp/up": "model.layers.{l}.mlp.c_fc.{leaf}",
        "blocks/mlp/down": "model.layers.{l}.mlp.c_proj.{leaf}",
    },
    sizes={
        **llama.SIZES,
        "num_kv_heads": ("num_key_value_heads", 2),
        "norm_eps": ("norm_epsilon", 1e-5),
        "activation": ("hidden_act", "gelu_pytorch_tanh"),
        "tie_embeddings": ("tie_word_embeddings", True),
    },
    fixed=dict(norm="layernorm"),
    wants=(
        *exactly(norm="layernorm", gated_mlp=False, positions="rope", parallel_residual=False, rotary_fraction=1.0),
        *llama.PRE,
        Want("qkv_bias", lambda cfg: cfg.bias or not cfg.qkv_bias, "bias=true with qkv_bias=true"),
    ),
    bias_flags={"qkv": ("use_bias", True), "output": ("use_bias", True), "mlp": ("use_bias", True)},
    read=_read,
    write=lambda cfg: {"sliding_window": cfg.window},
    gguf="starcoder2",
)
