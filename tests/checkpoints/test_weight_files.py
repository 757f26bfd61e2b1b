"""Which files are a model's weights, pickles read as data, and decoded storage types."""

import json
import os
import pickle
import re
import shutil
import zipfile
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_names, read_by_role
from bornbiased_jax.checkpoints.formats.torch_file import Rules, read_pickle
from bornbiased_jax.checkpoints.quantization_files import SettingsError
from bornbiased_jax.checkpoints.quantized import FP4, decode
from bornbiased_jax.checkpoints.tensors import NamedTensors, Tensor
from bornbiased_jax.checkpoints.weight_files import choose_weights, locate_tensors
from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.audit import audit_folder
from tests.fixtures.configs import edit_config
from tests.fixtures.four_bits import pack_words, quantized_nf4
from tests.fixtures.pickles import Harmful
from tests.fixtures.suites import initialization, write

torch = pytest.importorskip("torch")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def test_two_sets_of_weights_are_refused_with_both_names_and_file_chooses(tmp_path):
    tensors = {"a": np.ones(3, np.float32)}
    for name in ("model.safetensors", "model-00001-of-00001.safetensors"):
        safetensors.numpy.save_file(tensors, tmp_path / name)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model-00001-of-00001.safetensors"}}))
    with pytest.raises(InputError, match=r"model\.safetensors and model\.safetensors\.index\.json.*--file"):
        choose_weights(tmp_path)
    assert choose_weights(tmp_path, index.name).paths == [tmp_path / "model-00001-of-00001.safetensors"]
    (tmp_path / "model-00001-of-00001.safetensors").unlink()
    stale = choose_weights(tmp_path)
    assert stale.paths == [tmp_path / "model.safetensors"]
    assert "stale" in stale.notes[0]


def test_pipes_and_links_that_lead_nowhere_are_no_weights(tmp_path):
    os.mkfifo(tmp_path / "pipe.safetensors")
    (tmp_path / "model.safetensors").symlink_to("model.safetensors")
    (tmp_path / "pytorch_model.bin").symlink_to("nowhere")
    with pytest.raises(InputError, match="has neither model.safetensors nor"):
        choose_weights(tmp_path)


def test_index_naming_a_tensor_that_no_file_holds_is_reported(tmp_path, capsys):
    shutil.copytree(Path(__file__).parent.parent / "fixtures" / "hf" / "llama-sharded-bfloat16", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    shard = next(iter(index["weight_map"].values()))
    before = open_checkpoint(tmp_path / "model").digest()
    assert capsys.readouterr().err == ""
    index["weight_map"] |= {"model.layers.9.extra": shard, "model.layers.9.more": shard}
    path.write_text(json.dumps(index))
    for _ in range(2):
        assert open_checkpoint(tmp_path / "model").digest() == before
    (line,) = capsys.readouterr().err.splitlines()
    assert "model.safetensors.index.json names model.layers.9.extra and 1 more, which no file holds" in line


def test_names_of_tensors_that_are_refused_stand_on_one_line(tmp_path):
    shutil.copytree(Path(__file__).resolve().parent.parent / "fixtures" / "hf" / "llama", tmp_path / "model")
    tensors = safetensors.numpy.load_file(tmp_path / "model" / "model.safetensors")
    tensors["first\nsecond" * 100] = np.ones(3, np.float32)
    safetensors.numpy.save_file(tensors, tmp_path / "model" / "model.safetensors")
    with pytest.raises(InputError, match="has a tensor first second.*… that an architecture") as raised:
        open_checkpoint(tmp_path / "model")
    assert "\n" not in str(raised.value)


def test_torch_files_give_the_tensors_that_torch_saved(tmp_path):
    torch.manual_seed(0)
    base = torch.randn(6, 4)
    tensors = {
        "plain": base,
        "turned": base.T,
        "part": base[2:, 1:3],
        "half": base.to(torch.bfloat16),
        "parameter": torch.nn.Parameter(base.double()),
        "empty": torch.zeros(0, 3),
    }
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "pytorch_model.bin")
    source = locate_tensors(tmp_path, choose_weights(tmp_path))
    assert source.shapes == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        assert np.array_equal(source.read(name).astype(np.float64), tensor.detach().double().numpy())
    assert source.types["half"] == "BF16"


def test_numbers_that_torch_negates_when_it_reads_them_are_refused(tmp_path):
    """The imaginary part of a conjugate: its storage has the other sign."""
    parts = torch.complex(torch.ones(3), torch.ones(3)).conj().imag
    assert parts.is_neg()
    torch.save({"weight": parts}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="corrupted: save the model again"):
        locate_tensors(tmp_path, choose_weights(tmp_path))


@pytest.mark.parametrize("protocol", [2, 4])
def test_pickle_that_would_run_code_is_refused_and_runs_none(tmp_path, protocol):
    data = pickle.dumps({"weight": Harmful(tmp_path / "written")}, protocol)
    with zipfile.ZipFile(tmp_path / "pytorch_model.bin", "w") as archive:
        archive.writestr("archive/data.pkl", data)
    with pytest.raises(InputError, match="could run code"):
        locate_tensors(tmp_path, choose_weights(tmp_path))
    assert not (tmp_path / "written").exists()


def test_small_files_of_torch_ask_for_no_large_array(tmp_path):
    rows = torch.zeros(20).as_strided((10, 11), (1, 1))
    torch.save({"weight": rows}, tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match="reaches beyond its storage"):
        locate_tensors(tmp_path, choose_weights(tmp_path))


@pytest.mark.parametrize(
    ("is_encrypted", "sentence"), [(True, "is compressed or encrypted"), (False, "into a part of a number")]
)
def test_archives_that_torch_does_not_write_are_refused(tmp_path, is_encrypted, sentence):
    path = tmp_path / "pytorch_model.bin"
    torch.save({"weight": torch.zeros(3)}, tmp_path / "saved")
    with zipfile.ZipFile(tmp_path / "saved") as saved, zipfile.ZipFile(path, "w") as changed:
        for name in saved.namelist():
            changed.writestr(name, saved.read(name) + b"x" * name.endswith("/data/0"))
    if is_encrypted:
        data = bytearray(path.read_bytes())
        data[data.index(b"PK\x01\x02") + 8] |= 1
        path.write_bytes(data)
    with pytest.raises(InputError, match=sentence):
        locate_tensors(tmp_path, choose_weights(tmp_path)).read("weight")


def test_a_pickle_of_many_marks_is_looked_through_once():
    """Each mark was searched for from the bottom: hours for a file of a megabyte."""
    assert read_pickle(b"\x80\x02" + b"(t" * 100_000 + b".", "here", Rules(frozenset(), tuple)) == ()


def test_a_dict_that_holds_itself_holds_no_tensors(tmp_path):
    content = {}
    content["model"] = {"state_dict": content}
    for state in (content, content["model"]):
        torch.save(state, tmp_path / "pytorch_model.bin")
        with pytest.raises(InputError, match="holds no tensors by name"):
            locate_tensors(tmp_path, choose_weights(tmp_path))


def _decoded(arrays, config=None):
    kinds = {"float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0", "int8": "I8", "uint8": "U8", "int32": "I32"}
    tensors = {
        name: Tensor(kinds.get(array.dtype.name, "F32"), array.shape, partial(arrays.__getitem__, name))
        for name, array in arrays.items()
    }
    return decode(NamedTensors("here", tensors), {} if config is None else {"quantization_config": config})


def _float8(tensor):
    return tensor.to(torch.float8_e4m3fn).view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)


def test_float8_times_scales_of_blocks_as_torch_computes_it():
    """Scales of tensors and channels are those of ``test_quantized_libraries``; blocks at the edges are cut."""
    torch.manual_seed(0)
    weight, scale = torch.randn(70, 40).to(torch.float8_e4m3fn), torch.rand(3, 2)
    arrays = {"m.weight": _float8(weight.float()), "m.weight_scale_inv": scale.numpy()}
    tensors = _decoded(arrays, {"weight_block_size": [32, 32]})
    scale = scale.repeat_interleave(32, 0)[:70].repeat_interleave(32, 1)[:, :40]
    assert np.array_equal(tensors.read("m.weight"), (weight.float() * scale).numpy())
    assert list(tensors.shapes) == ["m.weight"]
    assert tensors.types["m.weight"] == "float8"


@pytest.mark.parametrize("scale, activation", [("scale", None), ("qscale_weight", "qscale_act")])
def test_float8_with_the_names_of_deepseek_and_mistral_for_scales(scale, activation):
    weight_OI = torch.randn(6, 10).to(torch.float8_e4m3fn)
    arrays = {"m.weight": _float8(weight_OI.float()), f"m.{scale}": np.array(0.5, np.float32)}
    tensors = _decoded(arrays | ({} if activation is None else {f"m.{activation}": np.ones((), np.float32)}))
    assert tensors.shapes == {"m.weight": (6, 10)}
    assert np.array_equal(tensors.read("m.weight"), (weight_OI.float() * 0.5).numpy())


def test_float8_of_stacked_experts_has_scales_of_their_columns():
    """As transformers writes Llama 4 with fbgemm; the scales of down_proj are turned, also where that fits rows."""
    torch.manual_seed(0)
    for rows in (6, 10):
        weight_EIO, scale_E1O = torch.randn(2, rows, 10).to(torch.float8_e4m3fn), torch.rand(2, 1, 10)
        arrays = {f"experts.{name}": _float8(weight_EIO.float()) for name in ("gate_up_proj", "down_proj")}
        arrays |= {"experts.gate_up_proj_scale": scale_E1O.numpy()}
        arrays |= {"experts.down_proj_scale": scale_E1O.mT.contiguous().numpy()}
        tensors = _decoded(arrays, {"quant_method": "fbgemm_fp8"})
        for name in ("gate_up_proj", "down_proj"):
            assert np.array_equal(tensors.read(f"experts.{name}"), (weight_EIO.float() * scale_E1O).numpy())


def test_float8_of_stacked_experts_may_have_one_scale_each():
    """As ModelOpt writes Llama 4, with names that stand next to no "weight"."""
    weight_EIO = torch.randn(2, 6, 10).to(torch.float8_e4m3fn)
    arrays = {"experts.down_proj": _float8(weight_EIO.float()), "experts.down_proj_weight_scale": np.float32(0.5)}
    tensors = _decoded(arrays | {"experts.down_proj_input_scale": np.float32(2.0)})
    assert list(tensors.shapes) == ["experts.down_proj"]
    assert np.array_equal(tensors.read("experts.down_proj"), (weight_EIO.float() * 0.5).numpy())


@pytest.mark.parametrize("is_typed", [True, False])
@pytest.mark.parametrize("kind", ["mxfp8", "fp4 in int8", "fp4 in uint8", "compressed-tensors"])
def test_scales_that_are_powers_of_two_as_transformers_decodes_them(rng, kind, is_typed):
    """MXFP8, and four bits in bytes as of DeepSeek V4, Quark and compressed-tensors; not bytes as numbers."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    scale = rng.integers(110, 140, (6, 4), dtype=np.uint8)
    if kind == "mxfp8":
        packed = _float8(torch.randn(6, 128))
        stored = torch.tensor(packed.view(np.uint8)).view(torch.float8_e4m3fn)
    else:
        packed = rng.integers(0, 256, (6, 64), dtype=np.uint8)
        stored = torch.tensor(packed.view(np.int8))
    expected = Fp8Dequantize(None)._dequantize_one(stored, torch.tensor(scale), torch.float32).numpy()
    name = "m.weight_packed" if kind == "compressed-tensors" else "m.weight"
    arrays = {name: packed.view(np.int8) if kind == "fp4 in int8" else packed}
    arrays["m.weight_scale"] = scale.view(ml_dtypes.float8_e8m0fnu) if is_typed else scale
    tensors = _decoded(arrays, {"weight_block_size": [1, 32]} if kind == "mxfp8" else {})
    assert tensors.shapes == {"m.weight": (6, 128)}
    values = tensors.read("m.weight")
    assert np.array_equal(values, expected) and np.ptp(values) > 100


def test_four_bits_of_another_type_are_refused():
    arrays = {"m.weight_packed": np.ones((4, 16), np.uint8), "m.weight_scale": np.ones((4, 1), np.uint8)}
    assert _decoded(arrays, {"data_type": "mx_fp"}).read("m.weight").shape == (4, 32)
    with pytest.raises(InputError, match="m.weight_packed of here is of type 'mx_int4', which is not read"):
        _decoded(arrays, {"data_type": "mx_int4"}).read("m.weight")


def test_integers_of_eight_bits_next_to_powers_of_two_are_not_taken_for_four_bits():
    arrays = {"m.weight": np.ones((4, 64), np.int8), "m.weight_scale": np.ones((4, 2), np.uint8)}
    with pytest.raises(InputError, match="m.weight of here may be of type MXINT8, as each scale is that of 32 bytes"):
        _decoded(arrays).read("m.weight")
    assert _decoded(arrays, {"data_type": "mx_fp4"}).read("m.weight").shape == (4, 128)
    # A scale of the whole tensor is of no group.
    for shape in ((), (1,)):
        whole = {"m.weight": np.ones((4, 32), np.int8), "m.weight_scale": np.full(shape, 127, np.uint8)}
        assert _decoded(whole).read("m.weight").shape == (4, 64)


def test_mxfp4_as_transformers_and_gguf_decode_it(rng):
    from gguf.quants import MXFP4
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks = rng.integers(0, 256, (3, 10, 2, 16), dtype=np.uint8)
    scales = rng.integers(100, 140, (3, 10, 2), dtype=np.uint8)
    tensors = _decoded({"e.gate_up_proj_blocks": blocks, "e.gate_up_proj_scales": scales})
    values = tensors.read("e.gate_up_proj")
    assert values.shape == tensors.shapes["e.gate_up_proj"] == (3, 64, 10)
    expected = convert_moe_packed_tensors(torch.tensor(blocks), torch.tensor(scales), dtype=torch.float32)
    assert np.array_equal(values, expected.numpy())
    powers = scales.view(ml_dtypes.float8_e8m0fnu)
    assert np.array_equal(_decoded({"e.up_blocks": blocks, "e.up_scales": powers}).read("e.up"), values)
    # gguf keeps the numbers of a block in two halves and not in pairs.
    nibbles = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(-1, 32)
    halves = nibbles[:, :16] | (nibbles[:, 16:] << 4)
    packed = np.concatenate([scales.reshape(-1, 1), halves], axis=1)
    assert np.array_equal(MXFP4.dequantize_blocks(packed).reshape(3, 10, 64).swapaxes(1, 2), values)


def test_numbers_of_three_bits_are_refused():
    """They lie across words."""
    arrays = {"m.qweight": np.zeros((6, 32), np.int32), "m.qzeros": np.zeros((4, 3), np.int32)}
    arrays["m.scales"] = np.ones((4, 32), np.float16)
    with pytest.raises(SettingsError, match="quantized to 3 bits, of which only 2, 4 and 8 are read"):
        _decoded(arrays, {"bits": 3})
    with pytest.raises(InputError, match="contradict each other"):
        _decoded(arrays).read("m.weight")


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_zeros_of_gptq_borrow_from_their_neighbors_in_a_word(rng, bits):
    """gptqmodel subtracts one from all zeros of a word at once: convert_gptq_v2_to_v1_format_module."""
    q_IO, z_GO = rng.integers(0, 2**bits, (64, 32)), rng.integers(0, 2**bits, (4, 32))
    z_GO[:, ::5] = 0
    ones_GO = pack_words(np.ones_like(z_GO), 1, bits=bits)
    with np.errstate(over="ignore"):
        qzeros_GO = pack_words(z_GO, 1, bits=bits) - ones_GO
    arrays = {"m.qweight": pack_words(q_IO, 0, bits=bits), "m.qzeros": qzeros_GO, "m.scales": np.ones((4, 32))}
    expected_IO = q_IO - z_GO[np.arange(64) // 16]
    assert np.array_equal(_decoded(arrays, {"bits": bits}).read("m.weight"), expected_IO.T)


def test_nvfp4_of_modelopt_by_the_published_formula(rng):
    q_OI = rng.integers(0, 16, (6, 32))
    packed = (q_OI[:, ::2] | (q_OI[:, 1::2] << 4)).astype(np.uint8)
    local = _float8(torch.rand(6, 2) * 100)
    arrays = {"m.weight": packed, "m.weight_scale": local, "m.weight_scale_2": np.float32(0.25)[None]}
    expected = FP4[q_OI].astype(np.float64) * np.repeat(local.astype(np.float64) * 0.25, 16, axis=1)
    assert np.array_equal(_decoded(arrays).read("m.weight"), expected.astype(np.float32))


def test_groups_of_layers_have_their_own_bits(rng):
    """A recipe of compressed-tensors may quantize some layers to four bits and others to eight."""
    arrays, expected = {}, {}
    for name, bits in (("few", 4), ("many", 8)):
        q_OI = rng.integers(0, 2**bits, (6, 32))
        arrays |= {
            f"{name}.weight_packed": pack_words(q_OI, 1, bits=bits),
            f"{name}.weight_scale": np.ones((6, 1), np.float32),
            f"{name}.weight_shape": np.array([6, 32], np.int64),
        }
        expected[name] = (q_OI - 2 ** (bits - 1)).astype(np.float32)
    groups = {f"group_{bits}": {"weights": {"num_bits": bits}} for bits in (4, 8)}
    for settings in ({"config_groups": groups}, {"config_groups": dict(reversed(groups.items()))}, None):
        tensors = _decoded(arrays, settings)
        assert all(np.array_equal(tensors.read(f"{name}.weight"), values) for name, values in expected.items())
    with pytest.raises(
        SettingsError, match=r"said to be quantized to 4 bits, but many.weight_packed has the shape of 8"
    ):
        _decoded(arrays, {"config_groups": {"group_4": groups["group_4"]}})


def test_numbers_of_bitsandbytes_in_the_order_of_a_gpu_are_refused(rng):
    """Rows one after the other are the format 0; those of GPUs came after a forward pass."""
    numbers, largest = rng.integers(-127, 128, (5, 6)).astype(np.int8), rng.uniform(1, 2, 5).astype(np.float32)
    plain, in_rows, in_tiles = (
        _decoded({"m.weight": numbers, "m.SCB": largest, **order})
        for order in ({}, *({"m.weight_format": np.array(number, np.uint8)} for number in (0, 2)))
    )
    assert np.array_equal(in_rows.read("m.weight"), plain.read("m.weight"))
    with pytest.raises(InputError, match="has its numbers in the order of a GPU"):
        in_tiles.read("m.weight")


def test_a_model_in_nf4_is_read_by_names(tmp_path):
    """Decoded numbers are those of ``test_quantized_libraries``."""
    folder = Path(__file__).resolve().parent.parent / "fixtures" / "hf" / "llama"
    base = safetensors.numpy.load_file(folder / "model.safetensors")
    tensors = {}
    for name, array in base.items():
        tensors |= quantized_nf4(name, array) if "_proj" in name else {name: array}
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": settings}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = read_by_role(tmp_path)
    assert source.unread == () and source.naming == "names"
    assert [role.path for role in source.roles] == [role.path for role in read_by_names(folder).roles]
    packed = [role for role in source.roles if "_proj" in role.name]
    assert packed and {source.stored_as(role) for role in packed} == {"nf4"}
    for role in packed:
        # Half the largest step of the table, of a block's largest number, and the rounding of that.
        difference = np.abs(source.read(role) - base[role.name].T).max()
        assert 0 < difference < 0.17 * np.abs(base[role.name]).max()


def test_a_kind_of_model_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": ["llama"]}')
    safetensors.numpy.save_file({"unknown": np.ones((2, 2), np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="no convention of names fits"):
        read_by_role(tmp_path)


def test_integers_without_scales_are_refused():
    with pytest.raises(InputError, match="no scales"):
        _decoded({"m.weight": np.ones((2, 2), np.int8)}).read("m.weight")


def write_gptq(folder, rng, *, bits=4, group_size=16, name="gptq_model-4bit-16g.safetensors"):
    """Write a model as AutoGPTQ did: settings in a file of their own, packed matrices under a name of their own."""
    base = write(folder.parent / "float", "base", initialization(1))
    tensors, expected = {}, {}
    for key, array in safetensors.numpy.load_file(base / "model.safetensors").items():
        if "_proj" not in key:
            tensors[key] = expected[key] = array
            continue
        module, (out, into) = key.removesuffix(".weight"), array.shape
        q_IO, group_I = rng.integers(0, 2**bits, (into, out)), rng.permutation(np.arange(into) // group_size)
        z_GO = rng.integers(0, 2**bits - 1, (group_I.max() + 1, out))
        scale_GO = rng.uniform(0.01, 0.1, z_GO.shape).astype(np.float16)
        tensors |= {
            f"{module}.qweight": pack_words(q_IO, 0, bits=bits),
            f"{module}.qzeros": pack_words(z_GO, 1, bits=bits),
            f"{module}.scales": scale_GO,
            f"{module}.g_idx": group_I.astype(np.int32),
        }
        expected[key] = (scale_GO.astype(np.float32)[group_I] * (q_IO - z_GO[group_I] - 1).astype(np.float32)).T
    folder.mkdir(parents=True)
    shutil.copy(base / "config.json", folder)
    if name.endswith(".bin"):
        torch.save({key: torch.from_numpy(array.copy()) for key, array in tensors.items()}, folder / name)
    else:
        safetensors.numpy.save_file({key: np.ascontiguousarray(array) for key, array in tensors.items()}, folder / name)
    settings = {"bits": bits, "group_size": group_size, "damp_percent": 0.01, "desc_act": True, "sym": False}
    settings |= {"true_sequential": True, "model_name_or_path": None, "model_file_base_name": Path(name).stem}
    (folder / "quantize_config.json").write_text(json.dumps(settings))
    return expected


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("gptq_model-4bit-16g.safetensors", 4),
        ("gptq_model-8bit-16g.safetensors", 8),
        ("model.safetensors", 8),
        ("gptq_model-8bit-16g.bin", 8),
        ("weights of my own.bin", 4),
    ],
)
def test_settings_of_autogptq_are_read_from_their_own_file(tmp_path, rng, capsys, name, bits):
    expected = write_gptq(tmp_path / "model", rng, bits=bits, name=name)
    source = read_by_role(tmp_path / "model")
    assert source.unread == () and source.naming == "names"
    for role in source.roles:
        if role.name in expected and role.leaf == "kernel":
            np.testing.assert_array_equal(source.read(role), expected[role.name].T)
    with pytest.raises(InputError, match=r"quantize_config\.json.*save it dequantized first"):
        open_checkpoint(tmp_path / "model")
    # The digest is that of the same settings inside config.json.
    digests = []
    for place in ("beside", "inside"):
        if place == "inside":
            settings = json.loads((tmp_path / "model" / "quantize_config.json").read_text())
            edit_config(tmp_path / "model", quantization_config=settings)
        assert run(["digest", str(tmp_path / "model")]) == 0
        digests.append(capsys.readouterr().out)
    assert digests[0] == digests[1]
    report = audit_folder(tmp_path / "model")
    assert report["clean"] and report["checkpoints"][0]["opened"]


@pytest.mark.parametrize("packing", ["GPTQ", "AWQ", "compressed-tensors"])
def test_a_last_group_may_be_shorter(rng, packing):
    inputs, outputs, size = 80, 64, 32
    group_I = np.arange(inputs) // size
    q_IO = rng.integers(0, 16, (inputs, outputs))
    z_GO = rng.integers(0, 15, (3, outputs))
    scale_GO = rng.uniform(0.01, 0.1, z_GO.shape).astype(np.float16)
    settings = {"bits": 4, "group_size": size, "checkpoint_format": "gptq_v2"}
    if packing == "GPTQ":
        arrays = {"m.qweight": pack_words(q_IO, 0), "m.qzeros": pack_words(z_GO, 1), "m.scales": scale_GO}
    elif packing == "AWQ":
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        arrays = {name: pack_words(part, 1, order) for name, part in (("m.qweight", q_IO), ("m.qzeros", z_GO))}
        arrays["m.scales"] = scale_GO
    else:
        z_GO[:] = 8
        arrays = {"m.weight_packed": pack_words(q_IO.T, 1), "m.weight_scale": scale_GO.T}
        arrays["m.weight_shape"] = np.array([outputs, inputs])
        settings = {"config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": size}}}}
    expected_OI = (scale_GO.astype(np.float32)[group_I] * (q_IO - z_GO[group_I]).astype(np.float32)).T
    np.testing.assert_array_equal(_decoded(arrays, settings).read("m.weight"), expected_OI)
    # Nothing else says where a group of 80 / 3 numbers ends.
    for stated in ({}, {"bits": 4, "group_size": 64}):
        with pytest.raises(InputError, match=r"m.* of here has 3 groups for 80 inputs.*group_size"):
            _decoded(arrays, stated).read("m.weight")


@pytest.mark.parametrize("command", [("digest",), ("fingerprint", "--out", "a.fingerprint"), ("seedprint",)])
@pytest.mark.parametrize("kind", ["config.json", "shapes", "no object", "quant_config.json"])
def test_settings_that_contradict_each_other_are_one_sentence(tmp_path, rng, refused, monkeypatch, command, kind):
    monkeypatch.chdir(tmp_path)
    write_gptq(tmp_path / "model", rng, bits=8)
    place = tmp_path / "model" / "quantize_config.json"
    settings = json.loads(place.read_text())
    if kind == "config.json":
        edit_config(tmp_path / "model", quantization_config=settings | {"bits": 4})
        words = (
            r"quantize_config.json has bits=8, but .*config.json \(quantization_config\) has bits=4: remove the file"
        )
    elif kind == "shapes":
        place.write_text(json.dumps(settings | {"bits": 2}))
        words = "said to be quantized to 2 bits, but .*qweight has the shape of 8: give it the settings"
    elif kind == "no object":
        place.write_text("[4, 128]")
        words = "quantize_config.json"
    else:
        (place.parent / "quant_config.json").write_text('{"w_bit": 8, "q_group_size": 128}')
        words = "quant_config.json has group_size=128, but .*quantize_config.json has group_size=16"
    more = ("model",) if command == ("seedprint",) else ()
    error = refused([command[0], "model", *more, *command[1:]])
    assert error.count("\n") == 1 and re.search(words, error), error


def test_settings_next_to_weights_that_are_not_packed_change_nothing(tmp_path):
    base = Path(__file__).resolve().parent.parent / "fixtures" / "hf" / "llama"
    shutil.copytree(base, tmp_path / "model")
    (tmp_path / "model" / "quantize_config.json").write_text('{"bits": 4, "group_size": 128}')
    assert open_checkpoint(tmp_path / "model").digest() == open_checkpoint(base).digest()
