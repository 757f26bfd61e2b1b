"""Qwen 1.5 and 2 with a mixture of experts in every layer, and an expert that every token visits.

- ``d_ff`` is the width of one routed expert, ``shared_expert_width`` that of the shared one.
- The shared expert's output is weighted by a sigmoid of the token's own and added to the routed experts' sum.
- Weights of a token's experts are probabilities over all experts, made to sum to 1 where the file says so.
- Windows are those of every second layer below ``max_window_layers``, unless the file lists the kinds of layers.

Source: Qwen2 technical report (2407.10671) and transformers' configuration of ``qwen2_moe``.
"""

from bornbiased_jax.checkpoints.families import llama, qwen3_moe
from bornbiased_jax.checkpoints.families.family import Family, Want, exactly
from bornbiased_jax.checkpoints.families.mixtral import MIXTURE
from bornbiased_jax.checkpoints.families.reading import Fields, read_layer_windows, write_layer_windows, write_pattern
from bornbiased_jax.config import FieldValue, ModelConfig


def _read(fields: Fields) -> dict[str, FieldValue]:
    qwen3_moe.refuse_dense_layers(fields)
    windows = read_layer_windows(fields, lambda layer, end: layer % 2 == 0 and layer < end)
    return {**windows, "normalize_expert_weights": fields.get("norm_topk_prob", False)}


def _write(cfg: ModelConfig) -> dict[str, object]:
    pattern = cfg.attention_pattern or ("g" if cfg.window is None else "l")
    return write_layer_windows(cfg) | {
        "layer_types": write_pattern(cfg.replace(attention_pattern=pattern)),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": cfg.normalize_expert_weights,
    }


FAMILY = Family(
    name="qwen2_moe",
    architecture="Qwen2MoeForCausalLM",
    tensors={
        **qwen3_moe.FAMILY.tensors,
        "blocks/mlp/shared_expert/gate": "model.layers.{l}.mlp.shared_expert.gate_proj.{leaf}",
        "blocks/mlp/shared_expert/up": "model.layers.{l}.mlp.shared_expert.up_proj.{leaf}",
        "blocks/mlp/shared_expert/down": "model.layers.{l}.mlp.shared_expert.down_proj.{leaf}",
        "blocks/mlp/shared_expert_gate": "model.layers.{l}.mlp.shared_expert_gate.{leaf}",
    },
    sizes={
        **llama.SIZES,
        "num_kv_heads": ("num_key_value_heads", 16),
        "d_ff": ("moe_intermediate_size", 1408),
        "shared_expert_width": ("shared_expert_intermediate_size", 5632),
        "num_experts": ("num_experts", 60),
        "experts_per_token": ("num_experts_per_tok", 4),
    },
    fixed=llama.FIXED,
    wants=(
        *MIXTURE,
        Want("shared_expert_width", lambda cfg: cfg.shared_expert_width is not None, "shared_expert_width set"),
        *exactly(qk_norm=False, bias=False),
    ),
    bias_flags={"qkv": ("qkv_bias", True)},
    read=_read,
    write=_write,
    opts=frozenset(["attention_pattern"]),
    gguf="qwen2moe",
)
