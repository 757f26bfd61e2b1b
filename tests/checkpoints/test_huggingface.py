"""Hugging Face directories: the logits of transformers, and refusals that name what is wrong."""

import functools
import json
import pickle
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.checkpoints.families import FAMILIES
from bornbiased_jax.errors import InputError
from bornbiased_jax.model import apply
from bornbiased_jax.parameters import flatten
from tests.fixtures.configs import edit_config
from tests.tiers import nightly_except

HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
NAMES = sorted(path.name for path in HF.iterdir())


def logits_of(checkpoint, tokens):
    return np.asarray(jax.jit(functools.partial(apply, checkpoint.cfg))(checkpoint.params(), tokens).logits_BTV)


def edit_weights(folder, change):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.fixture
def copy(tmp_path):
    def make(name):
        return Path(shutil.copytree(HF / name, tmp_path / name))

    return make


def expected_of(name):
    """The tokens of a fixture, and the logits that transformers computes in float64 alone."""
    with np.load(HF / name / "expected.npz") as file:
        return file["tokens"], file["logits"]


# Of each family one fixture's logits in float32, in float64 what further ones have or its only one's.
PLAIN = [name for name in NAMES if "-" not in name]
FURTHER = [name for name in NAMES if "-" in name or f"{name}-" not in " ".join(NAMES)]


@pytest.mark.parametrize("name", nightly_except(NAMES, *PLAIN))
def test_logits_equal_those_of_transformers(name):
    tokens, expected = expected_of(name)
    logits = logits_of(open_checkpoint(HF / name), tokens)
    assert np.abs(logits - expected).max() <= 1e-5 * expected.std()
    # The comparison has something to compare: logits vary far more than the tolerance.
    assert expected.std() > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(NAMES, *FURTHER))
def test_formulas_are_those_of_transformers(name, monkeypatch):
    """Without the rounding of float32, in norms and softmax too, nothing but another formula makes other logits."""
    tokens, expected = expected_of(name)
    checkpoint = open_checkpoint(HF / name)
    params = jax.tree.map(lambda weight: np.asarray(weight, np.float64), checkpoint.params())
    monkeypatch.setattr(jnp, "float32", jnp.float64)
    with jax.enable_x64(True):
        logits = np.asarray(jax.jit(functools.partial(apply, checkpoint.cfg))(params, tokens).logits_BTV)
    assert logits.dtype == np.float64
    assert np.abs(logits - expected).max() <= 1e-12 * expected.std()


def test_every_family_and_way_of_saving_is_among_the_fixtures():
    configs = {name: json.loads((HF / name / "config.json").read_text()) for name in NAMES}
    assert {config["model_type"] for config in configs.values()} == set(FAMILIES)
    assert {config["dtype"] for config in configs.values()} == {"float32", "float16", "bfloat16"}
    assert {config["tie_word_embeddings"] for config in configs.values()} == {True, False}


@pytest.mark.parametrize("name", ["llama-scaled-3", "llama-scaled-linear", "qwen2", "gpt_neox-sequential"])
def test_rope_fields_of_older_versions_say_the_same(copy, name):
    folder = copy(name)
    rope = json.loads((folder / "config.json").read_text())["rope_parameters"]
    theta, fraction = rope.pop("rope_theta"), rope.pop("partial_rotary_factor", None)
    rope["type"] = rope.pop("rope_type")
    old = {"rope_parameters": ..., "rope_scaling": rope if rope["type"] != "default" else None}
    old |= {"rope_theta": theta} if fraction is None else {"rotary_emb_base": theta, "rotary_pct": fraction}
    edit_config(folder, **old)
    assert open_checkpoint(folder).cfg == open_checkpoint(HF / name).cfg


def test_missing_optional_fields_take_the_defaults_of_transformers(copy):
    folder = copy("llama-biases")
    kept = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    config = json.loads((folder / "config.json").read_text())
    minimal = {key: config[key] for key in kept} | {"max_position_embeddings": 40, "num_key_value_heads": 2}
    (folder / "config.json").write_text(json.dumps(minimal | {"head_dim": 10}))
    edit_weights(folder, lambda t: [t.pop(key) for key in list(t) if key.endswith("bias")])
    cfg = open_checkpoint(folder).cfg
    assert (cfg.rope_theta, cfg.norm_eps, cfg.activation, cfg.bias) == (10_000.0, 1e-6, "silu", False)
    assert not cfg.tie_embeddings


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_dtype_is_the_one_asked_for(dtype):
    wide = flatten(open_checkpoint(HF / "llama").params())
    narrow = flatten(open_checkpoint(HF / "llama", dtype=dtype).params())
    for path, leaf in narrow.items():
        assert leaf.dtype == jnp.dtype(dtype)
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(wide[path]).astype(jnp.dtype(dtype)))


def test_base_model_names_and_old_buffers_are_understood(copy):
    folder = copy("gpt2")

    def rename(tensors):
        for name in list(tensors):
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = np.tril(np.ones((1, 1, 40, 40), np.uint8))
        tensors["h.1.attn.masked_bias"] = np.asarray(-1e4, np.float32)

    edit_weights(folder, rename)
    assert open_checkpoint(folder).digest() == open_checkpoint(HF / "gpt2").digest()


FORMS = {
    "float64": lambda tensors: {name: tensor.astype(np.float64) for name, tensor in tensors.items()},
    "value head": lambda tensors: {**tensors, "v_head.summary.weight": np.ones((1, 36), np.float32)},
    "classifier": lambda tensors: {**tensors, "score.weight": np.ones((1, 36), np.float32)},
    "reward": lambda tensors: {**tensors, "reward_head.weight": np.ones((1, 36), np.float32)},
    "tied table under the name of the head": lambda tensors: {
        {"model.embed_tokens.weight": "lm_head.weight"}.get(name, name): tensor for name, tensor in tensors.items()
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_transformers_opens_are_the_same_model(copy, form, capsys):
    folder = copy("llama")
    save_file(FORMS[form](load_file(folder / "model.safetensors")), folder / "model.safetensors")
    assert open_checkpoint(folder).digest() == open_checkpoint(HF / "llama").digest()
    # Only what is left out is mentioned.
    assert ("left out" in capsys.readouterr().err) == (form in ("value head", "classifier", "reward"))


def test_names_with_a_prefix_are_refused_with_a_tensor_that_is_there(copy):
    folder = copy("llama")
    wrapped = {f"_orig_mod.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(wrapped, folder / "model.safetensors")
    with pytest.raises(InputError, match=r"no tensor model\.(.*), which .* \(it has _orig_mod\.model\.\1\).*seedprint"):
        open_checkpoint(folder)


def test_a_copy_of_a_tied_embedding_is_taken_only_if_it_is_one(copy):
    folder = copy("llama")

    def tie(tensors, plus=0.0):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + np.float32(plus)

    edit_weights(folder, tie)
    assert open_checkpoint(folder).digest() == open_checkpoint(HF / "llama").digest()
    edit_weights(folder, lambda tensors: tie(tensors, 1.0))
    with pytest.raises(InputError, match="lm_head.weight .* tie_word_embeddings"):
        open_checkpoint(folder)


REFUSED = {
    "llama": [
        (dict(model_type="bloom"), "model_type='bloom'"),
        (dict(model_type=...), "model_type=None"),
        (dict(flux_capacitor=True), "flux_capacitor=True"),
        (dict(quantization_config={"bits": 4}), "quantization_config"),
        (dict(quantization={"group_size": 64, "bits": 4}), "quantization=.*, so save it dequantized first"),
        (dict(hidden_act="mish"), "hidden_act='mish'"),
        (dict(hidden_size=...), "'hidden_size'"),
        (dict(hidden_size="wide"), "hidden_size='wide', but input should be a valid integer"),
        (
            dict(num_hidden_layers=10**9),
            "num_hidden_layers=1000000000, but input should be less than or equal to 10000",
        ),
        (dict(rope_theta=0), "rope_theta=0, but input should be greater than or equal to 1"),
        (dict(rope_parameters={"rope_type": "linear", "factor": "x"}), "rope_parameters.factor='x'"),
        (dict(attention_bias="yes"), "attention_bias='yes'"),
        (dict(num_attention_heads=5), "num_kv_heads=2 does not divide"),
        (dict(rope_interleaved=True), "rope_interleaved"),
        # transformers lets every family see later tokens where the field is false or null.
        (dict(is_causal=False), "is_causal=False, but only True"),
        (dict(is_causal=None), "is_causal=None, but only True"),
        (dict(rope_parameters={"rope_type": "yarn", "factor": 2.0}), "rope_parameters.rope_type='yarn'"),
        (dict(rope_parameters={"rope_type": "linear"}), "without factor"),
        (dict(rope_parameters={"rope_type": "default", "mrope_section": [1]}), "rope_parameters.mrope_section"),
        (dict(rope_scaling={"type": "linear", "factor": 2.0}), "rope_scaling.*rope_parameters"),
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor"),
    ],
    "qwen2-window": [
        (dict(use_sliding_window=True, layer_types=["full_attention"] * 3), "does not list 2 layers"),
        (dict(use_sliding_window=True, layer_types=["full_attention", "chunked_attention"]), "layer_types"),
        (dict(use_sliding_window=False, layer_types=["sliding_attention"] * 2), "layer_types"),
        (dict(layer_types="full_attention"), "layer_types"),
        (dict(max_window_layers="many"), "max_window_layers='many'"),
    ],
    "gemma3_text": [
        (dict(use_bidirectional_attention=True), "use_bidirectional_attention"),
        (dict(attn_logit_softcapping=50.0), "attn_logit_softcapping"),
        (dict(query_pre_attn_scalar=0), "query_pre_attn_scalar=0, but input should be greater than 0"),
        (dict(query_pre_attn_scalar="wide"), "query_pre_attn_scalar='wide'"),
        (dict(layer_types=None, sliding_window_pattern=10**12), "sliding_window_pattern=1000000000000"),
    ],
    "cohere": [(dict(use_qk_norm=True), "use_qk_norm")],
    "olmo": [(dict(clip_qkv=8.0), "clip_qkv")],
    "smollm3": [
        (dict(use_sliding_window=True), "use_sliding_window"),
        (dict(no_rope_layers=[1, 0]), "does not list 3 layers"),
        (dict(no_rope_layers=[1, 0, 2]), "no_rope_layers"),
    ],
    "phi3": [(dict(rope_parameters=dict(rope_type="longrope", short_factor=[1.0])), "longrope")],
    "granite": [(dict(logits_scaling=0.0), "logits_scaling"), (dict(residual_multiplier=-1), "residual_multiplier")],
    "qwen3_moe": [
        (dict(mlp_only_layers=[0]), "mlp_only_layers"),
        (dict(decoder_sparse_step=2), "decoder_sparse_step"),
        (dict(norm_topk_prob="yes"), "norm_topk_prob='yes'"),
    ],
    "qwen2_moe": [
        (dict(mlp_only_layers=[1]), r"mlp_only_layers=\[1\], but only models with experts in every layer"),
        (dict(decoder_sparse_step=2), "decoder_sparse_step=2, but only models with experts in every layer"),
        (dict(norm_topk_prob="yes"), "norm_topk_prob='yes'"),
        (dict(shared_expert_intermediate_size=0), "shared_expert_intermediate_size=0"),
        (dict(layer_types=["full_attention", "chunked_attention"]), "layer_types"),
        (dict(layer_types=["full_attention", "sliding_attention"]), "layer_types.* but no sliding window"),
        (dict(layer_types=["sliding_attention"] * 2, use_sliding_window=True), "window=0 is not"),
    ],
    "gpt2": [
        (dict(scale_attn_by_inverse_layer_idx=True), "scale_attn_by_inverse_layer_idx"),
        (dict(scale_attn_weights=False), "scale_attn_weights"),
        (dict(add_cross_attention=True), "add_cross_attention"),
    ],
}


@pytest.mark.parametrize("name, change, words", [(name, *row) for name, rows in REFUSED.items() for row in rows])
def test_fields_that_are_not_understood_are_refused_by_name(copy, name, change, words):
    folder = copy(name)
    edit_config(folder, **change)
    with pytest.raises(InputError, match=words):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "name, change",
    [
        ("llama", dict(is_causal=True)),
        ("llama", dict(sliding_window=None, num_experts=None, custom_pipelines={}, max_sequence_length=2048)),
        ("llama", dict(layer_types=["full_attention"] * 2, use_mrope=False, auto_map={"AutoConfig": "x.Y"})),
        ("gpt2", dict(n_special=0, predict_special_tokens=True, output_past=True, _num_labels=1)),
        ("gpt_neox", dict(rotary_pct=0.25, partial_rotary_factor=0.25)),
        ("gemma2", dict(cache_implementation="hybrid", hidden_act="gelu_pytorch_tanh", sliding_window_size=5)),
        ("qwen3_moe", dict(max_window_layers=48)),
        ("starcoder2", dict(activation_function="gelu", mlp_type="default", norm_type="layer_norm")),
    ],
)
def test_fields_of_published_configurations_that_change_nothing_are_accepted(copy, name, change):
    folder = copy(name)
    before = open_checkpoint(folder)
    edit_config(folder, **change)
    after = open_checkpoint(folder)
    assert (after.cfg, after.digest()) == (before.cfg, before.digest())


@pytest.mark.parametrize("end, pattern", [(2, "lgg"), (3, "lg"), (0, None)])
def test_windows_of_qwen2_moe_are_those_of_every_second_layer_of_the_first(copy, end, pattern):
    """In a file without kinds of layers, the first, the third … of ``max_window_layers`` layers are local."""
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    folder = copy("qwen2_moe-window")
    edit_config(folder, max_window_layers=end, layer_types=...)
    cfg = open_checkpoint(folder).cfg
    assert (cfg.attention_pattern, cfg.window) == (pattern, 5 if pattern else None)
    kinds = transformers.AutoConfig.from_pretrained(folder).layer_types
    assert tuple(kind == "sliding_attention" for kind in kinds) == (cfg.is_local or (False,) * 3)


@pytest.mark.parametrize(
    "change",
    [
        dict(use_sliding_window=True, sliding_window=7, max_window_layers=1, layer_types=...),
        dict(use_sliding_window=True, layer_types=["full_attention", "sliding_attention"]),
    ],
)
def test_mixed_windows_are_a_pattern_of_layers(copy, change):
    folder = copy("qwen2-window")
    edit_config(folder, **change)
    cfg = open_checkpoint(folder).cfg
    assert (cfg.window, cfg.attention_pattern, cfg.is_local) == (7, "gl", (False, True))


@pytest.mark.parametrize(
    "name, place, value, words",
    [
        ("model.layers.1.mlp.up_proj.weight", (3, 4), np.nan, "model.layers.1.mlp.up_proj.weight .* NaN or infinite"),
        ("model.norm.weight", [0, 1], [-np.inf, np.inf], "model.norm.weight .* NaN or infinite"),
        (
            "model.layers.0.self_attn.q_proj.weight",
            None,
            np.ones((36, 35), np.float32),
            r"q_proj.weight .* shape \[36, 35\].*\[36, 36\]",
        ),
        ("model.layers.1.mlp.down_proj.weight", None, None, "has no tensor model.layers.1.mlp.down_proj.weight"),
        ("model.layers.2.mlp.down_proj.weight", None, np.ones((36, 25), np.float32), "has a tensor model.layers.2.mlp"),
        ("model.norm.weight", None, np.ones(36, np.int32), "model.norm.weight .* type I32"),
    ],
    ids=["nan", "infinite", "shape", "missing", "extra", "integers"],
)
def test_wrong_weights_are_refused_by_name(copy, name, place, value, words):
    folder = copy("llama")

    def change(tensors):
        if place is not None:
            tensors[name][place] = value
        elif value is None:
            del tensors[name]
        else:
            tensors[name] = value

    edit_weights(folder, change)
    with pytest.raises(InputError, match=words):
        open_checkpoint(folder).params()


def test_finite_weights_whose_sum_is_not_are_accepted(copy):
    folder = copy("llama")

    def huge(tensors):
        tensors["model.norm.weight"][:] = 3e38

    edit_weights(folder, huge)
    assert np.all(np.asarray(open_checkpoint(folder).params()["final_norm"]["scale"]) == np.float32(3e38))
    with pytest.raises(InputError, match="does not fit in float16"):
        open_checkpoint(folder, dtype="float16").params()


def test_bfloat16_nan_is_found(copy):
    folder = copy("llama")

    def narrow(tensors):
        for name in tensors:
            tensors[name] = tensors[name].astype(ml_dtypes.bfloat16)
        tensors["model.norm.weight"][2] = np.nan

    edit_weights(folder, narrow)
    with pytest.raises(InputError, match="model.norm.weight"):
        open_checkpoint(folder).read("final_norm/scale")


@pytest.mark.parametrize("model_type", ["llama", "unknown"])
def test_float64_beyond_float32_is_refused_by_name(copy, model_type):
    folder = copy("llama")

    def widen(tensors):
        for name in tensors:
            tensors[name] = tensors[name].astype(np.float64)
        tensors["model.norm.weight"][2] = 1e39

    edit_weights(folder, widen)
    edit_config(folder, model_type=model_type)
    source = read_by_role(folder)
    assert source.naming == ("native" if model_type == "llama" else "names")
    with pytest.raises(InputError, match=r"model\.norm\.weight.*holds numbers beyond float32"):
        [source.read(role) for role in source.roles]


@pytest.mark.parametrize("keep", [0, 5, 8, 100, 3000, -1, "text"])
def test_truncated_files_are_refused(copy, keep):
    path = copy("llama") / "model.safetensors"
    text = b"these are not the weights you are looking for\n" * 99
    path.write_bytes(text if keep == "text" else path.read_bytes()[:keep])
    words = "is no safetensors file .*: save the model again" if keep == "text" else "is cut short: fetch it again"
    for call in (open_checkpoint, read_by_role):
        with pytest.raises(InputError, match=f"model.safetensors.* {words}"):
            call(path.parent)


@pytest.mark.parametrize(
    "damage, words", [("missing", "{} is missing"), ("index", "weight_map"), ("twice", "more than one file")]
)
def test_corrupted_shards_are_refused_by_name(copy, damage, words):
    folder = copy("llama-sharded-bfloat16")
    first, second = sorted(folder.glob("model-*.safetensors"))[:2]
    if damage == "missing":
        second.unlink()
    elif damage == "index":
        (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')
    else:
        shutil.copy(first, second)
    for call in (open_checkpoint, read_by_role):
        with pytest.raises(InputError, match=words.format(second.name)):
            call(folder)


def test_shards_may_lie_in_a_folder_below_their_index_and_not_elsewhere(copy):
    folder = copy("llama-sharded-bfloat16")
    before = open_checkpoint(folder).digest()
    index = folder / "model.safetensors.index.json"
    table = json.loads(index.read_text())["weight_map"]
    (folder / "shards").mkdir()
    for shard in folder.glob("model-*.safetensors"):
        shard.rename(folder / "shards" / shard.name)
    for place, words in (
        ("shards/", None),
        ("../", "is not in its folder"),
        (f"{folder}/shards/", "not in its folder"),
    ):
        index.write_text(json.dumps({"weight_map": {name: place + shard for name, shard in table.items()}}))
        if words is None:
            assert open_checkpoint(folder).digest() == before
        else:
            with pytest.raises(InputError, match=words):
                open_checkpoint(folder)


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


PICKLES = {
    "pytorch_model.bin": ("no archive as torch.save writes it", "name its folder, which has the model's config.json"),
    "model.pt": ("only model.pt: choose it with --file model.pt", "name its folder with --file model.pt"),
}


@pytest.mark.parametrize("name", PICKLES)
def test_pickles_are_never_unpickled(copy, name):
    folder = copy("llama")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps(Bomb()))
    (folder / "training_args.bin").write_bytes(pickle.dumps(Bomb()))
    for ref, words in zip((folder, folder / name), PICKLES[name], strict=True):
        with pytest.raises(InputError, match=words):
            open_checkpoint(ref)
    (folder / name).unlink()
    with pytest.raises(InputError, match="neither model.safetensors nor"):
        open_checkpoint(folder)


@pytest.mark.parametrize("form", ["one file", "shards", "chosen"])
def test_files_of_torch_are_the_same_model(copy, form):
    torch = pytest.importorskip("torch")
    folder = copy("llama")
    tensors = {name: torch.tensor(tensor) for name, tensor in load_file(folder / "model.safetensors").items()}
    (folder / "model.safetensors").unlink()
    if form == "shards":
        names = sorted(tensors)
        parts = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
        for file, members in parts.items():
            torch.save({name: tensors[name] for name in members}, folder / file)
        table = {name: file for file, members in parts.items() for name in members}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))
    else:
        torch.save({"model": tensors, "step": 3}, folder / ("ckpt.pt" if form == "chosen" else "pytorch_model.bin"))
    reader = open_checkpoint(folder, file="ckpt.pt" if form == "chosen" else None)
    assert reader.digest() == open_checkpoint(HF / "llama").digest()


UNREADABLE = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "pointer of Git LFS"),
    "before 1.6": (
        b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.",
        "before PyTorch 1.6.*save it as safetensors",
    ),
    "cut": (b"PK\x03\x04" + bytes(50), "is cut short: fetch it again"),
    "text": (b"not found", "no archive as torch.save writes it"),
}


@pytest.mark.parametrize("content, words", UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_wrong_with_a_file_of_torch_is_said(copy, content, words):
    """Also where the model is read by names: the file is at fault, and no conversion helps."""
    folder = copy("llama")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(content)
    for call in (open_checkpoint, read_by_role):
        with pytest.raises(InputError, match=words):
            call(folder)


def test_a_directory_without_weights_or_configuration_is_refused(copy):
    folder = copy("llama")
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match="config.json does not exist"):
        open_checkpoint(folder)
    folder = copy("gpt2")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="neither model.safetensors nor"):
        open_checkpoint(folder)
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "config.json").write_text("[]")
    with pytest.raises(InputError, match="not a JSON object"):
        open_checkpoint(folder)
