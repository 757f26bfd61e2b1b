"""GPT-2: learned positions, kernels [in, out], query, key and value concatenated in one matrix."""

from bornbiased_jax.checkpoints.families.family import Family, Want, exactly
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.config import FieldValue

# Conditions of the families with LayerNorm.
LAYERNORM = (
    *exactly(norm="layernorm", gated_mlp=False, norm_position="pre", qk_norm=False, window=None),
    Want("num_kv_heads", lambda cfg: cfg.num_kv_heads == cfg.num_heads, "num_kv_heads=num_heads"),
    Want("head_dim", lambda cfg: cfg.key_dim * cfg.num_heads == cfg.d_model, "head_dim=d_model/num_heads"),
)


def _read(fields: Fields) -> dict[str, FieldValue]:
    return {"d_ff": 4 * fields.get("n_embd")} if fields.get("n_inner", None) is None else {}


FAMILY = Family(
    name="gpt2",
    architecture="GPT2LMHeadModel",
    tensors={
        "embed": "transformer.wte.{leaf}",
        "positions": "transformer.wpe.{leaf}",
        "blocks/attention_norm": "transformer.h.{l}.ln_1.{leaf}",
        "blocks/mlp_norm": "transformer.h.{l}.ln_2.{leaf}",
        "blocks/attention/qkv": "transformer.h.{l}.attn.c_attn.{leaf}",
        "blocks/attention/output": "transformer.h.{l}.attn.c_proj.{leaf}",
        "blocks/mlp/up": "transformer.h.{l}.mlp.c_fc.{leaf}",
        "blocks/mlp/down": "transformer.h.{l}.mlp.c_proj.{leaf}",
        "final_norm": "transformer.ln_f.{leaf}",
        "head": "lm_head.{leaf}",
    },
    sizes={
        "num_layers": ("n_layer", ...),
        "num_heads": ("n_head", ...),
        "d_model": ("n_embd", ...),
        "d_ff": ("n_inner", None),
        "vocab_size": ("vocab_size", ...),
        "max_seq_len": ("n_positions", ...),
        "norm_eps": ("layer_norm_epsilon", 1e-5),
        "activation": ("activation_function", "gelu_new"),
        "tie_embeddings": ("tie_word_embeddings", True),
    },
    fixed=dict(norm="layernorm", positions="learned"),
    wants=(*LAYERNORM, *exactly(positions="learned", parallel_residual=False)),
    bias_flags={"qkv": True, "output": True, "mlp": True},
    rope=None,
    read=_read,
    kernel="same",
    forms={"blocks/attention/qkv": "fused columns"},
    gguf="gpt2",
)
