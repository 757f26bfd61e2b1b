"""Hugging Face directories that we write: the same model comes back, or the field in the way is named."""

import functools
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.checkpoints import digest, export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.export import check_folder
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed, parameter_shapes
from bornbiased_jax.io import MARKER, REPLACED
from bornbiased_jax.model import apply
from bornbiased_jax.parameters import flatten, unflatten
from bornbiased_jax.text import train_bpe
from bornbiased_jax.text.sentence_piece import SentencePieceTokenizer
from tests.fixtures.sentence_pieces import sentence_piece_model
from tests.tiers import NIGHTLY

HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
SMALL = dict(num_layers=2, d_model=24, d_ff=20, num_heads=4, vocab_size=31, max_seq_len=40)
GPT2 = dict(positions="learned", activation="gelu_tanh")
# The model type, the preset it starts from, and what is changed.
TABLE: list[tuple[str, str, dict]] = [
    ("gpt2", "gpt2-tiny", GPT2),
    (
        "gpt2",
        "gpt2-tiny",
        dict(positions="learned", activation="relu", bias=False, qkv_bias=True, tie_embeddings=False),
    ),
    ("gpt_neox", "gpt2-tiny", dict(bias=False, activation="tanh", norm_eps=1e-3)),
    ("gpt_neox", "neox-tiny", dict(rotary_fraction=0.34, rope_theta=300.0)),
    ("llama", "llama-tiny", dict(num_kv_heads=2)),
    ("llama", "llama-tiny", dict(bias=True, head_dim=10, tie_embeddings=True)),
    ("llama", "llama-tiny", dict(rope_scaling="linear", rope_scaling_factor=3.0, rope_theta=300.0)),
    (
        "llama",
        "llama-tiny",
        dict(rope_scaling="llama3", rope_scaling_factor=4.0, rope_original_max_seq_len=16, rope_theta=300.0),
    ),
    ("mistral", "llama-tiny", dict(window=5)),
    ("qwen2", "qwen-tiny", dict(window=6, head_dim=10)),
    ("qwen3", "qwen3-tiny", dict(qkv_bias=True, window=6, tie_embeddings=True)),
    ("olmo2", "olmo2-tiny", dict(num_kv_heads=2, head_dim=8, qkv_bias=True)),
]


def everywhere_random(cfg: ModelConfig, seed: int):
    """Weights as after a life: no scale is 1, no bias 0, unless the class of transformers has no such bias."""
    flat = flatten(parameter_shapes(cfg))
    draws = np.random.default_rng(seed)
    for path, leaf in flat.items():
        flat[path] = jnp.asarray(path.endswith("scale") + 0.3 * draws.normal(size=leaf.shape), jnp.float32)
    return unflatten(flat)


def _name(row):
    return "-".join([row[0], *map(str, row[2])])


@pytest.fixture(params=TABLE, ids=_name)
def model(request):
    family, name, changes = request.param
    cfg = preset(name, **{**SMALL, **changes})
    return family, cfg, everywhere_random(cfg, 7)


def logits(cfg, params):
    tokens = np.random.default_rng(0).integers(0, cfg.vocab_size, (2, 17), dtype=np.int32)
    return tokens, np.asarray(jax.jit(functools.partial(apply, cfg))(params, tokens).logits_BTV)


def test_a_written_model_comes_back(model, tmp_path):
    family, cfg, params = model
    assert export_hugging_face(cfg, params, tmp_path / "hf") == family
    back = open_checkpoint(tmp_path / "hf")
    for path, leaf in flatten(params).items():
        np.testing.assert_array_equal(np.asarray(leaf), np.asarray(flatten(back.params())[path]), err_msg=path)
    extra = set(flatten(back.params())) - set(flatten(params))
    assert all(path.endswith("bias") and not np.any(np.asarray(flatten(back.params())[path])) for path in extra)
    unlike = dict(init=cfg.init, bias=cfg.bias, qkv_bias=cfg.qkv_bias)
    assert back.cfg.replace(**unlike) == cfg.replace(**_unused_reset(cfg))
    # Else the model is the same by its weights and its configuration. Additions of zero may be fused otherwise.
    if extra:
        expected, found = (logits(*pair)[1] for pair in ((cfg, params), (back.cfg, back.params())))
        assert np.abs(found - expected).max() <= 1e-5 * expected.std()


def _unused_reset(cfg):
    """Fields without effect that a Hugging Face configuration has no place for."""
    return {} if cfg.positions == "rope" else dict(rope_theta=ModelConfig().rope_theta)


# Where another row has the same class, one of them is for the night.
@pytest.mark.parametrize(
    "model",
    [pytest.param(row, marks=NIGHTLY if index in (0, 2, 4, 6, 8) else ()) for index, row in enumerate(TABLE)],
    indirect=True,
    ids=map(_name, TABLE),
)
def test_transformers_computes_the_same_logits(model, tmp_path):
    pytest.importorskip("torch", exc_type=ImportError)
    pytest.importorskip("transformers", exc_type=ImportError)
    from bornbiased_jax.evaluation.parity import transformers_logits

    _, cfg, params = model
    export_hugging_face(cfg, params, tmp_path / "hf")
    tokens, actual = logits(cfg, params)
    reference, _ = transformers_logits(tmp_path / "hf", tokens)
    assert reference.std() > 0.1
    assert np.abs(actual - reference).max() <= 1e-4


@pytest.mark.parametrize("name", sorted(path.name for path in HF.iterdir()))
def test_models_of_transformers_survive_the_round_trip(name, tmp_path):
    """The configuration too, with its keys in the order of transformers."""
    before = open_checkpoint(HF / name)
    export_hugging_face(before.cfg, before.params(), tmp_path / "hf")
    after = open_checkpoint(tmp_path / "hf")
    assert after.cfg == before.cfg
    assert after.digest() == before.digest()
    for folder in (HF / name, tmp_path / "hf"):
        text = (folder / "config.json").read_text()
        assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_file_keeps_the_type_of_the_weights(dtype, tmp_path):
    cfg = preset("llama-tiny", **SMALL)
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), init_seed(cfg, 1))
    export_hugging_face(cfg, params, tmp_path / "hf")
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["torch_dtype"] == dtype
    assert open_checkpoint(tmp_path / "hf").digest() == digest(params)


@pytest.mark.parametrize(
    "name, changes, field",
    [
        ("gpt2-tiny", dict(residual=False), "residual"),
        ("gpt2-tiny", dict(attention=False), "attention"),
        ("gpt2-tiny", dict(mlp=False), "mlp"),
        ("gpt2-tiny", dict(norm="none"), "norm"),
        ("gpt2-tiny", dict(positions="none"), "positions"),
        ("gpt2-tiny", dict(gated_mlp=True), "gated_mlp"),
        ("gpt2-tiny", dict(positions="learned", num_kv_heads=2), "num_kv_heads"),
        ("gpt2-tiny", dict(positions="learned", head_dim=8), "head_dim"),
        ("gpt2-tiny", dict(norm_position="post"), "norm_position"),
        ("gpt2-tiny", dict(qk_norm=True), "qk_norm"),
        ("gpt2-tiny", dict(positions="learned", window=4), "window"),
        ("gpt2-tiny", dict(**GPT2, parallel_residual=True), "parallel_residual"),
        ("llama-tiny", dict(gated_mlp=False), "gated_mlp"),
        ("llama-tiny", dict(positions="learned"), "positions"),
        ("llama-tiny", dict(rotary_fraction=0.5, head_dim=8), "head_dim"),
        ("llama-tiny", dict(parallel_residual=True), "parallel_residual"),
        ("llama-tiny", dict(norm_position="post"), "norm_position"),
        ("llama-tiny", dict(bias=True, window=4), "window"),
        ("llama-tiny", dict(bias=True, num_heads=5, num_kv_heads=5, head_dim=6), "num_heads"),
        ("qwen3-tiny", dict(qk_norm_scope="projection"), "qk_norm_scope"),
        ("olmo2-tiny", dict(window=4), "window"),
        ("llama-tiny", dict(sink_logit="learned"), "sink_logit"),
    ],
)
def test_export_of_field_without_transformers_class_refused(name, changes, field, tmp_path):
    cfg = preset(name, **{**SMALL, **changes})
    with pytest.raises(InputError, match=f"no class for {field}="):
        export_hugging_face(cfg, init_seed(cfg, 1), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_a_bias_without_a_place_is_refused_unless_zero(tmp_path):
    cfg = preset("qwen3-tiny", **SMALL, bias=True)
    export_hugging_face(cfg, init_seed(cfg, 1), tmp_path / "zero")
    with pytest.raises(InputError, match="qwen3 has no blocks/mlp/down/bias"):
        export_hugging_face(cfg, everywhere_random(cfg, 1), tmp_path / "random")
    assert not (tmp_path / "random").exists()


def test_failed_swap_keeps_previous_export(tmp_path, monkeypatch):
    cfg = preset("llama-tiny", **SMALL)
    params = init_seed(cfg, 1)
    export_hugging_face(cfg, params, tmp_path / "hf")
    rename = os.rename

    def fails(source, target):
        if Path(target) == tmp_path / "hf" and not Path(source).name.endswith(REPLACED):
            raise OSError(5, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(InputError, match="Input/output error"):
        export_hugging_face(cfg, init_seed(cfg, 2), tmp_path / "hf")
    assert open_checkpoint(tmp_path / "hf").digest() == digest(params)
    assert os.listdir(tmp_path) == ["hf"]


def test_foreign_model_replaced_only_with_overwrite(tmp_path):
    cfg = preset("llama-tiny", **SMALL)
    export_hugging_face(cfg, init_seed(cfg, 1), tmp_path / "hf")
    export_hugging_face(cfg, init_seed(cfg, 2), tmp_path / "changed")
    (tmp_path / "hf" / MARKER).unlink()
    (tmp_path / "changed" / "config.json").write_text((tmp_path / "changed" / "config.json").read_text() + "\n")
    for folder, reason in (("hf", "no export of this program wrote"), ("changed", "was changed since")):
        before = {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()}
        with pytest.raises(InputError, match=f"{reason}.*--overwrite"):
            export_hugging_face(cfg, init_seed(cfg, 3), tmp_path / folder)
        assert {path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} == before
        export_hugging_face(cfg, init_seed(cfg, 3), tmp_path / folder, overwrite=True)
        assert open_checkpoint(tmp_path / folder).digest() == digest(init_seed(cfg, 3))
    (tmp_path / "hf" / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="index.json, which no export wrote"):
        export_hugging_face(cfg, init_seed(cfg, 3), tmp_path / "hf", overwrite=True)


def test_a_model_is_not_exported_onto_itself(tmp_path, capsys):
    cfg = preset("llama-tiny", **SMALL)
    export_hugging_face(cfg, init_seed(cfg, 1), tmp_path / "hf")
    (tmp_path / "link").symlink_to("hf")
    for target in ("hf", "link", "hf/../hf", "."):
        with pytest.raises(InputError, match="holds the model that is to be exported"):
            check_folder(tmp_path / target, str(tmp_path / "hf"), overwrite=True)
    with pytest.raises(InputError, match="empty path"):
        check_folder("", "seed:1@llama-tiny")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        export_hugging_face(cfg, init_seed(cfg, 1), tmp_path / "file")
    export_hugging_face(cfg, init_seed(cfg, 2), tmp_path / "link")
    assert (tmp_path / "link").is_symlink() and open_checkpoint(tmp_path / "hf").digest() == digest(init_seed(cfg, 2))


@pytest.mark.parametrize("preset_name", ["llama-tiny", "llama-tiny,qk_norm=true"])
def test_transformers_cuts_words_as_the_exported_tokenizer(preset_name, tmp_path):
    """Qwen's class, which the model's type would choose, cuts numbers into digits."""
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    tokenizer, text = train_bpe(["in 2024 and 2024, 2024"], 261), "in 2024 and 2024"
    initial = open_checkpoint(f"seed:1@{preset_name},num_layers=1,d_model=16,num_heads=2,vocab_size=261")
    export_hugging_face(initial.cfg, initial.params(), tmp_path, tokenizer=tokenizer)
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert opened.encode(text) == tokenizer.encode(text).tolist() and opened.eos_token_id == tokenizer.eos_id


@pytest.mark.parametrize("has_prefix", [True, False])
def test_transformers_cuts_words_as_an_exported_sentence_piece_model(has_prefix, tmp_path, capsys):
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    options = {"add_dummy_prefix": has_prefix, "user_defined_symbols": ["<user>"]}
    model = sentence_piece_model(["the quick brown fox jumps over the lazy dog"] * 50, 301, **options)
    tokenizer = SentencePieceTokenizer("tokenizer.model", model)
    initial = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,vocab_size=301")
    export_hugging_face(initial.cfg, initial.params(), tmp_path, tokenizer=tokenizer)
    opened = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("the quick fox", " the fox", "  a\nb  the ", "é漢 x", "the <user> fox", "\u2581the", ""):
        ids = tokenizer.encode(text).tolist()
        assert opened.encode(text, add_special_tokens=False) == ids
        assert opened.decode(ids) == text.replace("\u2581", " ")
    reread = open_checkpoint(tmp_path).tokenizer
    assert (reread.bos_id, reread.eos_id, opened.bos_token_id, opened.eos_token_id) == (1, 2, 1, 2)
    assert not capsys.readouterr().err


def test_a_sentence_piece_model_that_changes_the_text_is_exported_with_a_warning(tmp_path, capsys):
    lines = ["the quick brown fox jumps over the lazy dog"] * 50
    model = sentence_piece_model(lines, 300, normalization_rule_name="nmt_nfkc")
    initial = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,vocab_size=300")
    tokenizer = SentencePieceTokenizer("tokenizer.model", model)
    export_hugging_face(initial.cfg, initial.params(), tmp_path, tokenizer=tokenizer)
    assert (tmp_path / "tokenizer.model").read_bytes() == model and not (tmp_path / "tokenizer.json").exists()
    assert "transformers may cut text otherwise than tokenizer.model" in capsys.readouterr().err


@pytest.mark.slow
def test_an_export_knows_the_context_of_its_training(tmp_path):
    initial = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=32,vocab_size=64")
    export_hugging_face(initial.cfg, initial.params(), tmp_path / "trained", context=48)
    export_hugging_face(initial.cfg, initial.params(), tmp_path / "born")
    assert open_checkpoint(tmp_path / "trained").info == {"context": 48}
    assert open_checkpoint(tmp_path / "born").info == {}
    row = json.loads((tmp_path / "trained" / "config.json").read_text())
    for value in (0, -3, "48", True, None):
        (tmp_path / "trained" / "config.json").write_text(json.dumps({**row, "training_context": value}))
        assert open_checkpoint(tmp_path / "trained").info == {}
