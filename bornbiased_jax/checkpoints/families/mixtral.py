"""Mixtral: Mistral whose MLP is a mixture of experts, of which a router chooses some for each token.

Source: Mixtral of Experts (2401.04088) and transformers' configuration of ``mixtral``.
"""

from bornbiased_jax.checkpoints.families import llama
from bornbiased_jax.checkpoints.families.family import Family, Want, exactly
from bornbiased_jax.checkpoints.families.llama_like import MISTRAL
from bornbiased_jax.checkpoints.families.reading import Rope

MIXTURE = (
    *llama.RMSNORM,
    *exactly(norm_position="pre"),
    Want("num_experts", lambda cfg: cfg.num_experts is not None, "num_experts set"),
)
"""Conditions of families with experts."""

FAMILY = Family(
    name="mixtral",
    architecture="MixtralForCausalLM",
    tensors={
        **llama.TENSORS,
        "blocks/mlp/router": "model.layers.{l}.block_sparse_moe.gate.{leaf}",
        "blocks/mlp/gate": "model.layers.{l}.block_sparse_moe.experts.{e}.w1.{leaf}",
        "blocks/mlp/up": "model.layers.{l}.block_sparse_moe.experts.{e}.w3.{leaf}",
        "blocks/mlp/down": "model.layers.{l}.block_sparse_moe.experts.{e}.w2.{leaf}",
    },
    sizes={
        **MISTRAL.sizes,
        "norm_eps": ("rms_norm_eps", 1e-5),
        "num_experts": ("num_local_experts", 8),
        "experts_per_token": ("num_experts_per_tok", 2),
    },
    fixed={**llama.FIXED, "normalize_expert_weights": True},
    wants=(*MIXTURE, *exactly(normalize_expert_weights=True, qk_norm=False, bias=False, qkv_bias=False)),
    rope=Rope(base=1_000_000.0),
    read=lambda fields: {"window": fields.get("sliding_window", None)},
    write=MISTRAL.write,
    gguf="llama",
    interleaved=True,
)
