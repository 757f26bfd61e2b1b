"""Adapters over their base: each form that the pinned PEFT writes gives the tensors of PEFT's own merge."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.adapters import CONFIG, WEIGHTS, read_adapter
from bornbiased_jax.checkpoints.by_role import read_by_names, read_by_role
from bornbiased_jax.checkpoints.families import FAMILIES
from bornbiased_jax.derive.peft import merge_adapter
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import flatten
from tests.checkpoints.architectures import MODELS, auto_class, transformers_config

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore")

NO_SUCH_BIAS = {"lora_bias": True}
VARIANTS = {
    "plain": {},
    "rank-stabilized": {"use_rslora": True},
    "DoRA": {"use_dora": True, "use_rslora": True, "rank_pattern": {"q_proj": 2}},
    "modules to save": {"modules_to_save": ["embed_tokens", "lm_head"]},
    "patterns": {"rank_pattern": {"q_proj": 2}, "alpha_pattern": {"layers.1.self_attn.v_proj": 3}},
    "tables": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "tokens": {"trainable_token_indices": [3, 5]},
    "all linear": {"target_modules": "all-linear", "bias": "all"},
    "parameters": {"target_modules": [], "target_parameters": ["layers.0.mlp.gate_proj.weight"]},
    "PiSSA": {"init_lora_weights": "pissa"},
    "OLoRA": {"init_lora_weights": "olora"},
}


def _train(folder, name="llama", **options):
    """Write a base and an adapter of it with random factors; return PEFT's merge of the two by name."""
    peft = pytest.importorskip("peft")  # seconds to import, which collecting need not wait for
    torch.manual_seed(0)
    model = auto_class(name).from_config(transformers_config(name))
    model.save_pretrained(folder / "base")
    model = auto_class(name).from_pretrained(folder / "base")
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    adapted = peft.get_peft_model(model, peft.LoraConfig(**{**settings, "task_type": "CAUSAL_LM", **options}))
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.05 * torch.randn_like(parameter))
    adapted.save_pretrained(folder / "adapter")
    if options == NO_SUCH_BIAS:
        return {}
    adapted.merge_and_unload().save_pretrained(folder / "merged")
    return load_file(folder / "merged" / "model.safetensors")


def _distance(source, folder):
    merged = read_by_names(folder)
    assert [role.path for role in source.roles] == [role.path for role in merged.roles]
    pairs = zip(source.roles, merged.roles, strict=True)
    return max(np.abs(source.read(role) - merged.read(merged_role)).max() for role, merged_role in pairs)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_adapter_is_opened_over_its_base_as_peft_merges_it(tmp_path, variant):
    _train(tmp_path, **VARIANTS[variant])
    assert _distance(read_by_names(tmp_path / "base"), tmp_path / "merged") > 0.01
    source = read_by_role(tmp_path / "adapter")
    assert _distance(source, tmp_path / "merged") < 1e-5
    assert "adapter" in source.description
    _assert_merged_into_parameters(tmp_path)


def _assert_merged_into_parameters(folder):
    base = open_checkpoint(folder / "base")
    merged = flatten(merge_adapter(base.cfg, base.params(), read_adapter(folder / "adapter")))
    for path, leaf in flatten(open_checkpoint(folder / "merged").params()).items():
        np.testing.assert_allclose(merged[path], leaf, atol=1e-5)


@pytest.mark.parametrize("module", ["embed_tokens", "lm_head"])
def test_a_tied_table_and_its_replacement_come_apart(tmp_path, module):
    _train(tmp_path, "gemma", modules_to_save=[module])
    base, adapter = open_checkpoint(tmp_path / "base"), read_adapter(tmp_path / "adapter")
    assert base.cfg.tie_embeddings
    tables = dict.fromkeys(("embed_tokens", "lm_head"), base.read("embed/embedding"))
    tables[module] = next(tensor for name, tensor in adapter.tensors.items() if module in name)
    merged = flatten(merge_adapter(base.cfg, base.params(), adapter))
    np.testing.assert_array_equal(merged["embed/embedding"], tables["embed_tokens"])
    np.testing.assert_array_equal(merged["head/kernel"], tables["lm_head"].T)
    source = read_by_role(tmp_path / "adapter")
    found = {role.name.split(".")[-2]: source.read(role) for role in source.roles if role.block is None}
    np.testing.assert_array_equal(found["embed_tokens"], tables["embed_tokens"])
    np.testing.assert_array_equal(found["lm_head"], tables["lm_head"].T)


@pytest.mark.parametrize(
    ("name", "modules"), [("gpt2", ["c_attn", "c_proj", "c_fc"]), ("phi3", ["qkv_proj"]), ("gpt_bigcode", ["c_attn"])]
)
def test_adapters_of_other_architectures_are_opened_as_peft_merges_them(tmp_path, name, modules):
    _train(tmp_path, name, target_modules=modules, fan_in_fan_out=name == "gpt2")
    assert name in MODELS
    assert _distance(read_by_role(tmp_path / "adapter"), tmp_path / "merged") < 1e-5
    if name in FAMILIES:
        _assert_merged_into_parameters(tmp_path)


def test_names_without_the_prefix_of_the_model_are_those_of_an_embedding_model(tmp_path):
    _train(tmp_path)
    weights = tmp_path / "adapter" / WEIGHTS
    tensors = {name.replace("model.model.", "model."): tensor for name, tensor in load_file(weights).items()}
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, weights)
    assert _distance(read_by_role(tmp_path / "adapter"), tmp_path / "merged") < 1e-5


def test_the_head_of_a_reward_models_adapter_is_left_out_and_said(tmp_path, capsys):
    _train(tmp_path)
    weights = tmp_path / "adapter" / WEIGHTS
    factors = {
        f"base_model.model.score.lora_{name}.weight": np.ones(shape)
        for name, shape in {"A": (4, 4), "B": (1, 4)}.items()
    }
    # Adapted in place of being replaced.
    place = tmp_path / "factors"
    shutil.copytree(tmp_path / "adapter", place)
    save_file(load_file(weights) | factors, place / WEIGHTS)
    assert read_by_role(place).notes[-1] == "left out of the adapter, as no part of a language model: score.weight"
    score = {"base_model.model.score.weight": np.ones((1, 4), np.float32)}
    save_file(load_file(weights) | score, weights)
    source = read_by_role(tmp_path / "adapter")
    assert _distance(source, tmp_path / "merged") < 1e-5
    note = "left out of the adapter, as no part of a language model: score.weight"
    assert source.notes == (f"the adapter {tmp_path / 'adapter'} is merged into {tmp_path / 'base'}", note)
    assert note in capsys.readouterr().err
    _assert_merged_into_parameters(tmp_path)
    assert f"{tmp_path / 'adapter'}: {note}" in capsys.readouterr().err
    # A module of the language model that the base lacks is no head of another kind.
    save_file(load_file(weights) | {"base_model.model.model.scorer.weight": np.ones((1, 4), np.float32)}, weights)
    with pytest.raises(InputError, match=r"adapts model\.scorer\.weight, which is no matrix of"):
        read_by_role(tmp_path / "adapter")


def test_weights_of_an_adapter_in_a_file_of_torch_are_read(tmp_path):
    _train(tmp_path)
    weights = tmp_path / "adapter" / WEIGHTS
    tensors = {name: torch.tensor(tensor) for name, tensor in load_file(weights).items()}
    torch.save(tensors, weights.with_name("adapter_model.bin"))
    weights.unlink()
    source = read_by_role(tmp_path / "adapter")
    assert source.files[-1].name == "adapter_model.bin"
    assert _distance(source, tmp_path / "merged") < 1e-5


OTHERS = {
    "mlx": (
        {"model": "acme/tiny", "fine_tune_type": "lora", "lora_parameters": {"rank": 4}},
        "merge it with mlx_lm.fuse",
    ),
    "IA3": ({"feedforward_modules": ["down_proj"], "peft_type": "IA3"}, "peft_type='IA3'.*merge it with PEFT"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_adapters_of_other_kinds_are_refused_with_what_merges_them(tmp_path, kind):
    config, words = OTHERS[kind]
    (tmp_path / CONFIG).write_text(json.dumps(config))
    save_file({"model.layers.0.mlp.up_proj.lora_a": np.ones((4, 2), np.float32)}, tmp_path / "adapters.safetensors")
    with pytest.raises(InputError, match=words):
        read_by_role(tmp_path)


def test_an_adapter_of_all_experts_together_is_refused_as_that(tmp_path):
    peft = pytest.importorskip("peft")
    model = auto_class("mixtral").from_config(transformers_config("mixtral"))
    settings = peft.LoraConfig(r=2, target_modules=[], target_parameters=["mlp.experts.gate_up_proj"])
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    with pytest.raises(InputError, match=r"layers\.0\.mlp\.experts by target_parameters.*merge it with PEFT"):
        read_adapter(tmp_path / "adapter")


def test_an_adapter_that_cannot_be_opened_is_refused_with_the_remedy(tmp_path):
    _train(tmp_path, **NO_SUCH_BIAS)
    with pytest.raises(InputError, match=r"proj\.bias, which is no matrix of"):
        read_by_role(tmp_path / "adapter")
    with pytest.raises(InputError, match=r"is an adapter, no model of its own.*derive BASE --change lora:"):
        open_checkpoint(tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter" / CONFIG).read_text())
    # The second is a name that no folder can have.
    for base in ("someone/elsewhere", "a" * 300):
        (tmp_path / "adapter" / CONFIG).write_text(json.dumps(config | {"base_model_name_or_path": base}))
        with pytest.raises(InputError, match=rf"{base[:17]}.*is no folder here.*derive BASE --change lora:"):
            read_by_role(tmp_path / "adapter")
    (tmp_path / "adapter" / CONFIG).write_text(json.dumps(config | {"init_lora_weights": "corda"}))
    with pytest.raises(InputError, match="init_lora_weights='corda'"):
        read_by_role(tmp_path / "adapter")
