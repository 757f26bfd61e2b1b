"""Phi-3 and Phi-4-mini: LLaMA with fused matrices and partial RoPE; LongRoPE is refused, and compared alone.

Source: Phi-3 technical report (2404.14219) and transformers' configuration of ``phi3``.
"""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, Want, exactly
from bornbiased_jax.checkpoints.families.reading import Fields, Rope
from bornbiased_jax.config import FieldValue

GATE_UP = {
    **{name: template for name, template in llama.TENSORS.items() if name not in ("blocks/mlp/gate", "blocks/mlp/up")},
    "blocks/mlp/gate_up": "model.layers.{l}.mlp.gate_up_proj.{leaf}",
}
"""Names of LLaMA with gate and up in one matrix."""


def _read(fields: Fields) -> dict[str, FieldValue]:
    # Of LongRoPE alone, which read_rope refuses.
    fields.get("original_max_position_embeddings", None)
    return {"window": fields.get("sliding_window", None)}


FAMILY = Family(
    name="phi3",
    architecture="Phi3ForCausalLM",
    tensors={
        **{name: template for name, template in GATE_UP.items() if not name.startswith("blocks/attention/")},
        "blocks/attention/qkv": "model.layers.{l}.self_attn.qkv_proj.{leaf}",
        "blocks/attention/output": llama.TENSORS["blocks/attention/output"],
    },
    sizes={
        **{field: size for field, size in llama.SIZES.items() if field != "head_dim"},
        "norm_eps": ("rms_norm_eps", 1e-5),
    },
    fixed=llama.FIXED,
    wants=(
        *exactly(norm="rmsnorm", gated_mlp=True, positions="rope", parallel_residual=False),
        *llama.PRE,
        *exactly(bias=False, qkv_bias=False, rope_scaling="none"),
        Want("head_dim", lambda cfg: cfg.key_dim * cfg.num_heads == cfg.d_model, "head_dim=d_model/num_heads"),
    ),
    rope=Rope(rotated=1.0),
    read=_read,
    write=lambda cfg: {"original_max_position_embeddings": cfg.max_seq_len, "sliding_window": cfg.window},
    forms={"blocks/attention/qkv": "fused rows", "blocks/mlp/gate_up": "fused rows"},
    gguf="phi3",
)
