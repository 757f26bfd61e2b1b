"""LoRA adapters in PEFT's layout: merged as applied, and refused in one sentence where they are corrupted."""

import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.adapters import CONFIG, WEIGHTS, read_adapter
from bornbiased_jax.cli.main import run
from bornbiased_jax.derive.peft import merge_adapter, write_adapter
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.adapters import adapter_shapes, lora
from bornbiased_jax.parameters import flatten

SIZES = "num_layers=2,num_heads=4,d_model=16,d_ff=24,vocab_size=64"
LLAMA = f"seed:3@qwen-tiny,{SIZES},num_kv_heads=2"
GPT2 = f"seed:3@gpt2-tiny,{SIZES},positions=learned,activation=gelu_tanh"
RANK, ALPHA = 3, 5.0


def adapter(folder, sizes, *, rank=RANK, **config):
    """An adapter of modules by name with (out, in)."""
    draws = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    plain = {"peft_type": "LORA", "r": rank, "lora_alpha": ALPHA, "bias": "none", "use_rslora": False}
    (folder / CONFIG).write_text(json.dumps(plain | {"target_modules": [], "fan_in_fan_out": False} | config))
    tensors = {}
    for module, (out, into) in sizes.items():
        for factor, shape in (("A", (rank, into)), ("B", (out, rank))):
            drawn = draws.standard_normal(shape).astype(np.float32)
            tensors[f"base_model.model.{module}.lora_{factor}.weight"] = drawn
    save_file(tensors, folder / WEIGHTS)
    return {name.removeprefix("base_model.model."): tensor for name, tensor in tensors.items()}


def product(tensors, module):
    return tensors[f"{module}.lora_B.weight"] @ tensors[f"{module}.lora_A.weight"]


@pytest.mark.slow
def test_merged_is_applied(tmp_path):
    """x W + (α/r) (x Aᵀ) Bᵀ, to 1e−5."""
    query, down = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"
    tensors = adapter(tmp_path / "lora", {query: (16, 16), down: (16, 24)})
    assert run(["derive", LLAMA, "--change", f"lora:{tmp_path / 'lora'}", "--out", str(tmp_path / "merged")]) == 0
    before, after = (flatten(open_checkpoint(where).params()) for where in (LLAMA, str(tmp_path / "merged")))
    draws = np.random.default_rng(1)
    for module, path, layer in ((query, "blocks/attention/query/kernel", 1), (down, "blocks/mlp/down/kernel", 0)):
        x = draws.standard_normal((5, before[path].shape[1])).astype(np.float32)
        low = x @ tensors[f"{module}.lora_A.weight"].T @ tensors[f"{module}.lora_B.weight"].T
        applied = x @ np.asarray(before[path][layer]) + ALPHA / RANK * low
        np.testing.assert_allclose(x @ np.asarray(after[path][layer]), applied, atol=1e-5 * np.abs(applied).max())
        np.testing.assert_array_equal(after[path][1 - layer], before[path][1 - layer])
    changed = [path for path in before if not np.array_equal(before[path], after[path])]
    assert changed == ["blocks/attention/query/kernel", "blocks/mlp/down/kernel"]


def test_an_adapter_of_fused_matrices_is_merged_where_another_family_is_exported(tmp_path):
    """A Phi-3 is written as a LLaMA, whose matrices have other names; its adapters have those of Phi-3."""
    fused, gate_up = "model.layers.1.self_attn.qkv_proj", "model.layers.0.mlp.gate_up_proj"
    reference = f"seed:3@llama-tiny,{SIZES},num_kv_heads=2"
    tensors = adapter(tmp_path / "lora", {fused: (32, 16), gate_up: (48, 16)})
    cfg, params = (opened := open_checkpoint(reference)).cfg, opened.params()
    before, after = flatten(params), flatten(merge_adapter(cfg, params, read_adapter(tmp_path / "lora")))
    parts = {
        "query": (fused, 1, 0, 16), "key": (fused, 1, 16, 24), "value": (fused, 1, 24, 32),
        "gate": (gate_up, 0, 0, 24), "up": (gate_up, 0, 24, 48),
    }  # fmt: skip
    for name, (module, layer, start, stop) in parts.items():
        path = f"blocks/{'mlp' if module == gate_up else 'attention'}/{name}/kernel"
        expected = np.asarray(before[path][layer]) + ALPHA / RANK * product(tensors, module)[start:stop].T
        np.testing.assert_allclose(after[path][layer], expected, atol=1e-5)
        np.testing.assert_array_equal(after[path][1 - layer], before[path][1 - layer])


def test_a_rank_above_the_width_is_merged_as_any_other(tmp_path):
    """PEFT sets no limit; files of fused matrices hold the ranks of several modules together."""
    module, rank = "model.layers.1.self_attn.q_proj", 17
    tensors = adapter(tmp_path, {module: (16, 16)}, rank=rank)
    opened = open_checkpoint(LLAMA)
    merged = flatten(merge_adapter(opened.cfg, opened.params(), read_adapter(tmp_path)))
    path = "blocks/attention/query/kernel"
    expected = np.asarray(flatten(opened.params())[path][1]) + ALPHA / rank * product(tensors, module).T
    np.testing.assert_allclose(merged[path][1], expected, atol=1e-5)


@pytest.mark.parametrize("adapted", [("embed_tokens",), ("lm_head",), ("embed_tokens", "lm_head")])
def test_factors_of_a_tied_models_embedding_are_not_its_heads(tmp_path, adapted):
    """PEFT applies them to the one module or the other; files need not repeat the base's table."""
    draws = np.random.default_rng(0)
    a, b = (draws.standard_normal(shape).astype(np.float32) for shape in ((RANK, 64), (16, RANK)))
    names = {"embed_tokens": ("model.embed_tokens.lora_embedding_A", "model.embed_tokens.lora_embedding_B", a, b),
             "lm_head": ("lm_head.lora_A.weight", "lm_head.lora_B.weight", b.T, a.T)}  # fmt: skip
    adapter(tmp_path, {})
    tensors = {}
    for first, second, *factors in map(names.get, adapted):
        pairs = zip((first, second), factors, strict=True)
        tensors |= {f"base_model.model.{name}": np.ascontiguousarray(factor) for name, factor in pairs}
    save_file(tensors, tmp_path / WEIGHTS)
    opened = open_checkpoint(f"{LLAMA},tie_embeddings=true")
    table = np.asarray(opened.read("embed/embedding"))
    merged = flatten(merge_adapter(opened.cfg, opened.params(), read_adapter(tmp_path)))
    changed = table + ALPHA / RANK * (b @ a).T
    embedding, head = (changed if name in adapted else table for name in ("embed_tokens", "lm_head"))
    np.testing.assert_allclose(merged["embed/embedding"], embedding, atol=1e-5)
    np.testing.assert_allclose(merged["head/kernel"], head.T, atol=1e-5)


QUERY = {"model.layers.0.self_attn.q_proj": (16, 16)}


@pytest.mark.parametrize(
    ("sizes", "config", "sentence"),
    [
        (QUERY, {"r": 4}, "does not fit its rank 4"),
        (QUERY, {"r": 0}, "r=0, but input should be greater than or equal to 1"),
        (QUERY, {"lora_alpha": None}, "lora_alpha=None, but input should be a valid number"),
        (QUERY, {"rank_pattern": {"(?i)Q_PROJ": RANK}}, "has the pattern '(?i)Q_PROJ', which is no regular expression"),
        (QUERY, {"use_dora": True}, "no lora_magnitude_vector of"),
        (QUERY, {"layer_replication": [[0, 2], [1, 2]]}, "a field that is not understood"),
        (QUERY, {"peft_type": "PREFIX_TUNING"}, "peft_type='PREFIX_TUNING', but only"),
        (QUERY, {"shiny": 1}, "shiny=1, a field that is not understood"),
        ({"model.layers.0.self_attn.q_proj": (16, 32)}, {}, "it is another model's adapter"),
        ({"model.layers.9.self_attn.q_proj": (16, 16)}, {}, "which is no matrix of this"),
        ({}, {}, "holds no matrix"),
    ],
)
def test_mismatched_peft_adapter_refused_in_one_sentence(sizes, config, sentence, tmp_path, refused):
    adapter(tmp_path / "lora", sizes, **config)
    message = refused(["derive", LLAMA, "--change", f"lora:{tmp_path / 'lora'}", "--out", str(tmp_path / "merged")])
    assert sentence in message and message.count("\n") == 1


def test_no_adapter_is_written_beside_a_model(tmp_path):
    """Tests of weights would read the adapter and its base there, commands that compute the model."""
    opened = open_checkpoint(LLAMA)
    export_hugging_face(opened.cfg, opened.params(), tmp_path / "model")
    factors = lora(2, None, ("query",))
    trained = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), adapter_shapes(opened.cfg, factors))
    write_adapter(opened.cfg, factors, trained, tmp_path / "adapter", base=LLAMA)
    for overwrite in (False, True):
        with pytest.raises(InputError, match="holds a model"):
            write_adapter(opened.cfg, factors, trained, tmp_path / "model", base=LLAMA, overwrite=overwrite)
    assert not (tmp_path / "model" / CONFIG).exists() and (tmp_path / "adapter" / CONFIG).exists()


def test_corrupted_adapter_refused_in_one_sentence(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        read_adapter(tmp_path / "nowhere")
    adapter(tmp_path, QUERY)
    content = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(content[:-20])
    with pytest.raises(InputError, match="is cut short: fetch it again"):
        read_adapter(tmp_path)
    save_file({"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": np.ones((3, 16), np.float32)},
              tmp_path / WEIGHTS)  # fmt: skip
    with pytest.raises(InputError, match="only lora_A"):
        read_adapter(tmp_path)
    (tmp_path / WEIGHTS).rename(tmp_path / "adapter_model.bin")
    with pytest.raises(InputError, match="no archive as torch.save writes it"):
        read_adapter(tmp_path)
    (tmp_path / "adapter_model.bin").unlink()
    with pytest.raises(InputError, match="has no adapter_model.safetensors"):
        read_adapter(tmp_path)
