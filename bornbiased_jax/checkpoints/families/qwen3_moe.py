"""Qwen 3 with a mixture of experts in every layer; ``d_ff`` is the width of one expert.

Source: Qwen3 technical report (2505.09388) and transformers' configuration of ``qwen3_moe``.
"""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, exactly
from bornbiased_jax.checkpoints.families.mixtral import MIXTURE
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.config import FieldValue, ModelConfig


def refuse_dense_layers(fields: Fields) -> None:
    """Refuse files of which some layers have no experts.

    Raises:
        InputError: such a file, with the field that says so.
    """
    dense = fields.get("mlp_only_layers", None)
    if dense or fields.get("decoder_sparse_step", 1) != 1:
        name = "mlp_only_layers" if dense else "decoder_sparse_step"
        raise fields.refuse(name, fields.get(name), "but only models with experts in every layer are supported")
    # The width of the dense layers, of which there are none.
    fields.get("intermediate_size", None)


def _read(fields: Fields) -> dict[str, FieldValue]:
    refuse_dense_layers(fields)
    # Published files state it, and every layer has the window all the same.
    fields.get("max_window_layers", None)
    is_windowed = fields.get("use_sliding_window", False)
    window = fields.get("sliding_window", 4096 if is_windowed else None)
    # Older files say num_experts where newer ones say num_local_experts.
    count = fields.get("num_local_experts", fields.get("num_experts", 128))
    return {
        "window": window if is_windowed else None,
        "num_experts": count,
        "normalize_expert_weights": fields.get("norm_topk_prob", False),
    }


def _write(cfg: ModelConfig) -> dict[str, object]:
    return {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": cfg.normalize_expert_weights,
        "num_experts": cfg.num_experts,
        "sliding_window": cfg.window,
        "use_sliding_window": cfg.window is not None,
    }


FAMILY = Family(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    tensors={
        **llama.TENSORS,
        "blocks/mlp/router": "model.layers.{l}.mlp.gate.{leaf}",
        "blocks/mlp/gate": "model.layers.{l}.mlp.experts.{e}.gate_proj.{leaf}",
        "blocks/mlp/up": "model.layers.{l}.mlp.experts.{e}.up_proj.{leaf}",
        "blocks/mlp/down": "model.layers.{l}.mlp.experts.{e}.down_proj.{leaf}",
    },
    sizes={
        **llama.SIZES,
        "num_kv_heads": ("num_key_value_heads", 4),
        "d_ff": ("moe_intermediate_size", 768),
        "experts_per_token": ("num_experts_per_tok", 8),
    },
    fixed={**llama.FIXED, "qk_norm": True},
    wants=(*MIXTURE, *exactly(qk_norm=True, qk_norm_scope="head")),
    bias_flags=llama.ATTENTION_BIAS,
    read=_read,
    write=_write,
    opts=frozenset(["num_experts"]),
    gguf="qwen3moe",
)
