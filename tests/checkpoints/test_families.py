"""What a file leaves unsaid is what transformers takes it to be."""

import dataclasses
import importlib
import math
import pkgutil
from typing import Any

import numpy as np
import pytest

from bornbiased_jax.checkpoints import families, open_checkpoint
from bornbiased_jax.checkpoints.families import FAMILIES
from bornbiased_jax.checkpoints.formats.hf_config import read_config
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import distribution
from bornbiased_jax.model.layers import HUGGING_FACE
from bornbiased_jax.parameters import parameter_table

# Enough heads for the default numbers of key/value heads, and a depth that no window's default begins within.
REQUIRED = {"num_layers": 2, "num_heads": 32, "d_model": 512, "d_ff": 64, "vocab_size": 31, "max_seq_len": 64}
LLAMA = dict(
    norm_eps=1e-6, rope_theta=10_000.0, rotary_fraction=1.0, window=None, tie_embeddings=False, activation="silu",
    kv_heads=32, key_dim=16, parallel_residual=False, bias=False, qkv_bias=False, rope_local_theta=None,
    attention_pattern=None, attention_scale=None, embedding_scale=1.0, num_experts=None, experts_per_token=2,
    normalize_expert_weights=True, attention_softcap=None, logit_softcap=None, logit_scale=1.0,
    residual_scale=1.0, shared_norm=False, norm_parameters="all", rope_pattern=None,
    shared_expert_width=None,
)  # fmt: skip
# As transformers 5.23.0 has them.
FROZEN: dict[str, dict[str, Any]] = {
    "gpt2": LLAMA | dict(norm_eps=1e-5, tie_embeddings=True, activation="gelu_tanh", bias=True),
    "llama": LLAMA,
    "mistral": LLAMA | dict(kv_heads=8, window=4096),
    "qwen2": LLAMA | dict(qkv_bias=True),
    "qwen3": LLAMA | dict(key_dim=128),
    "gpt_neox": LLAMA | dict(norm_eps=1e-5, rotary_fraction=0.25, activation="gelu", parallel_residual=True, bias=True),
    "olmo2": LLAMA | dict(norm_eps=1e-5),
    "gemma3_text": LLAMA
    | dict(
        rope_theta=1_000_000.0,
        window=4096,
        tie_embeddings=True,
        activation="gelu_tanh",
        kv_heads=4,
        key_dim=256,
        rope_local_theta=10_000.0,
        attention_pattern="lllllg",
        attention_scale=1 / 16,
        embedding_scale=math.sqrt(512),
    ),
    "mixtral": LLAMA | dict(kv_heads=8, norm_eps=1e-5, rope_theta=1_000_000.0, num_experts=8),
    "qwen3_moe": LLAMA | dict(kv_heads=4, num_experts=128, experts_per_token=8, normalize_expert_weights=False),
    "qwen2_moe": LLAMA
    | dict(
        kv_heads=16,
        qkv_bias=True,
        num_experts=60,
        experts_per_token=4,
        normalize_expert_weights=False,
        shared_expert_width=5632,
    ),
    "starcoder2": LLAMA | dict(kv_heads=2, norm_eps=1e-5, activation="gelu_tanh", tie_embeddings=True, bias=True),
    "gemma": LLAMA
    | dict(kv_heads=16, key_dim=256, activation="gelu_tanh", tie_embeddings=True, embedding_scale=math.sqrt(512)),
    "phi3": LLAMA | dict(norm_eps=1e-5),
    "glm4": LLAMA | dict(kv_heads=2, key_dim=128, norm_eps=1.5625e-07, rotary_fraction=0.5, qkv_bias=True),
    "granite": LLAMA | dict(attention_scale=1.0),
    "cohere": LLAMA
    | dict(
        norm_eps=1e-5,
        rope_theta=500_000.0,
        tie_embeddings=True,
        logit_scale=0.0625,
        norm_parameters="scale",
        parallel_residual=True,
        shared_norm=True,
    ),
    "olmo": LLAMA | dict(norm_eps=1e-5, norm_parameters="none"),
    "smollm3": LLAMA | dict(kv_heads=4, rope_theta=2_000_000.0, tie_embeddings=True, rope_pattern=None),
    "gemma2": LLAMA
    | dict(
        window=4096,
        tie_embeddings=True,
        activation="gelu_tanh",
        kv_heads=4,
        key_dim=256,
        attention_pattern="lg",
        attention_scale=1 / 16,
        attention_softcap=50.0,
        logit_softcap=30.0,
        embedding_scale=math.sqrt(512),
    ),
}


def smallest(name: str) -> dict[str, Any]:
    """A ``config.json`` with nothing that has a default."""
    sizes = FAMILIES[name].sizes
    entries = {reference: REQUIRED[actual] for actual, (reference, default) in sizes.items() if default is ...}
    return entries | {"model_type": name}


@pytest.mark.parametrize("name", FAMILIES)
def test_family_defaults_equal_transformers_defaults(name):
    cfg = read_config(smallest(name), "config.json").cfg
    assert {field: getattr(cfg, field) for field in LLAMA} == FROZEN[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_defaults_are_those_of_transformers(name):
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    cfg = read_config(smallest(name), "config.json").cfg
    values = {key: value for key, value in smallest(name).items() if key != "model_type"}
    reference = transformers.AutoConfig.for_model(name, **values)
    for actual, (key, default) in FAMILIES[name].sizes.items():
        if default is ...:
            continue
        value = getattr(reference, key, None)
        if actual == "activation":
            value = HUGGING_FACE[value]
        if value is None:
            # Their models take it from the other sizes, as ours do.
            value = {"num_kv_heads": 32, "head_dim": 16, "d_ff": 4 * 512}[actual]
        assert getattr(cfg, actual) == value, key
    if name == "gemma3_text":
        by_kind = reference.rope_parameters
        assert cfg.rope_theta == by_kind["full_attention"]["rope_theta"]
        assert cfg.rope_local_theta == by_kind["sliding_attention"]["rope_theta"]
        assert cfg.attention_scale == reference.query_pre_attn_scalar**-0.5
        kinds = ["sliding_attention" if is_local else "full_attention" for is_local in cfg.is_local or ()]
        assert kinds == reference.layer_types
    elif name != "gpt2":
        assert cfg.rope_theta == reference.rope_parameters["rope_theta"]
        assert cfg.rotary_fraction == reference.rope_parameters.get("partial_rotary_factor", 1.0)
    if cfg.num_experts is not None:
        count = getattr(reference, "num_local_experts", None) or reference.num_experts
        assert (cfg.num_experts, cfg.experts_per_token) == (count, reference.num_experts_per_tok)
        assert cfg.normalize_expert_weights == getattr(reference, "norm_topk_prob", True)
    always = name in ("mistral", "mixtral", "gemma3_text", "starcoder2", "gemma2", "phi3")
    window = reference.sliding_window if always or getattr(reference, "use_sliding_window", False) else None
    assert cfg.window == window


# Large enough to measure a standard deviation, by what each family calls its sizes.
COMMON = {
    "hidden_size": 64, "num_hidden_layers": 3, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 211,
    "max_position_embeddings": 64,
}  # fmt: skip
BUILT = dict.fromkeys(FAMILIES, COMMON | {"num_key_value_heads": 2, "head_dim": 16}) | {
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 211, "n_positions": 64},
    "gpt_neox": COMMON,
    "phi3": COMMON | {"num_key_value_heads": 2, "pad_token_id": 0},
    **dict.fromkeys(
        ["cohere", "olmo", "smollm3"], COMMON | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0}
    ),
    "glm4": COMMON | {"num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0},
}
BUILT["mixtral"] = BUILT["mixtral"] | {"num_local_experts": 4}
BUILT["qwen3_moe"] = BUILT["qwen3_moe"] | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
# The gate of a shared expert has as many numbers as a block has coordinates.
BUILT["qwen2_moe"] = BUILT["qwen3_moe"] | {"hidden_size": 256, "shared_expert_intermediate_size": 80}


@pytest.mark.parametrize("stated", [None, 0.05])
@pytest.mark.parametrize("name", FAMILIES)
def test_initialization_is_that_of_transformers(name, stated, tmp_path):
    """A model as transformers builds it has the standard deviations of the scheme that its file is read to state."""
    pytest.importorskip("torch", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    sizes = BUILT[name] if stated is None else BUILT[name] | {"initializer_range": stated}
    transformers.set_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(name, **sizes))
    model.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.cfg.init == ("gpt2-scaled" if name == "gpt2" else "normal-0.02")
    for path, row in parameter_table(checkpoint.cfg).items():
        drawn = distribution(checkpoint.cfg, row)
        if drawn.constant is None:
            measured = np.std([checkpoint.read(path, layer) for layer in (range(3) if row.is_stacked else [None])])
            assert measured == pytest.approx(drawn.std, rel=0.06), path


def test_silent_file_keeps_the_default_scheme():
    assert read_config(smallest("llama"), "config.json").cfg.init == ModelConfig().init


def test_every_file_of_a_family_is_in_the_list():
    names = {module.name for module in pkgutil.iter_modules(families.__path__)} - {"family", "reading"}
    modules = [importlib.import_module(f"{families.__name__}.{name}") for name in names]
    listed = {value.name for module in modules for value in vars(module).values() if isinstance(value, families.Family)}
    assert names - {"llama_like"} < set(FAMILIES)
    assert listed == set(FAMILIES)
    # Files of Mistral call themselves llama, and are read as that.
    assert {family.name for family in FAMILIES.values() if family.gguf is None} == {"mistral"}
    assert families.GGUF["llama"].name == "llama"
    assert all(dataclasses.is_dataclass(family) for family in FAMILIES.values())
