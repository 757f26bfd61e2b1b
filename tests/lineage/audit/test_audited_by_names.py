"""Checkpoints whose configuration no forward pass is here for: audited by names, as others are."""

import itertools
import json
import shutil

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.audit import audit_folder
from bornbiased_jax.results.lineage_reports import Audit
from tests.fixtures.configs import edit_config
from tests.fixtures.gguf_files import convert
from tests.fixtures.suites import CFG, drifted, initialization, kinds, only, trajectory, write
from tests.tiers import nightly_except

STEPS = (0, 100, 200, 300)
GPT2 = preset("gpt2-tiny", num_layers=2, num_heads=2, d_model=32, d_ff=48, vocab_size=96, max_seq_len=32)
SIDE = 16
FLOAT8 = {"quant_method": "fp8", "weight_block_size": [SIDE, SIDE]}
# A model that runs, and what makes its configuration one that does not.
KINDS = {
    "gpt2": (GPT2, {"scale_attn_by_inverse_layer_idx": True}),
    "yarn": (CFG, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}),
    "float8": (CFG, {"quantization_config": FLOAT8}),
}


def read(place):
    return safetensors.numpy.load_file(place / "model.safetensors")


def save(place, tensors, config):
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(config))
    tensors = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(tensors, place / "model.safetensors", {"format": "pt"})


def as_float8(tensors):
    """Return tensors with matrices of blocks in FP8, and the numbers that these stand for."""
    stored, numbers = {}, {}
    for name, array in tensors.items():
        stored[name] = numbers[name] = array
        if array.ndim == 2 and ".layers." in name:
            rows, columns = array.shape
            tiles = np.abs(array).reshape(rows // SIDE, SIDE, columns // SIDE, SIDE)
            scale = np.float32(tiles.max(axis=(1, 3)) / 448)
            scale_OI = scale.repeat(SIDE, axis=0).repeat(SIDE, axis=1)
            stored[name] = (array / scale_OI).astype(ml_dtypes.float8_e4m3fn)
            stored[f"{name}_scale_inv"] = scale
            numbers[name] = stored[name].astype(np.float32) * scale_OI
    return stored, numbers


def twins(kind, folder, flats):
    """Write checkpoints twice: as this package runs them, and with what it does not run."""
    cfg, fields = KINDS[kind]
    for name, flat in flats.items():
        place = write(folder / "native", name, flat, cfg)
        config, tensors = json.loads((place / "config.json").read_text()), read(place)
        stored, numbers = as_float8(tensors) if kind == "float8" else (tensors, tensors)
        save(place, numbers, config)
        save(folder / "refused" / name, stored, config | fields)
        with pytest.raises(InputError):
            open_checkpoint(folder / "refused" / name)
    return folder / "native", folder / "refused"


def named(flats):
    return {f"step{step}": flat for step, flat in flats.items()}


def said(report):
    return [(finding["kind"], finding["subjects"]) for finding in report["findings"]]


@pytest.mark.slow
@pytest.mark.parametrize("kind", nightly_except(KINDS, "float8"))
def test_a_clean_run_is_clean_and_its_ties_are_those_of_its_native_twin(kind, tmp_path):
    native, refused = map(audit_folder, twins(kind, tmp_path, named(trajectory(1, cfg=KINDS[kind][0], steps=STEPS))))
    assert native["clean"] and refused["clean"] and said(native) == said(refused) == []
    assert all(row["opened"] and "read by names" in row["note"] for row in refused["checkpoints"])
    assert all(pair["tied"] for pair in refused["pairs"])
    for pair, twin in zip(refused["pairs"], native["pairs"], strict=True):
        assert pair["checkpoints"] == twin["checkpoints"] and pair["reason"] == twin["reason"]
        np.testing.assert_allclose(pair["z"], twin["z"], rtol=1e-6)
    # What is not looked at is said once.
    assert Audit(refused).markdown().count("by the names of tensors") == 1 and "by the names" not in native["basis"]


def defective(kind, defect):
    cfg = KINDS[kind][0]
    flats = trajectory(1, cfg=cfg, steps=(*STEPS, 400, 500, 600))
    if defect == "copied step":
        flats[600] = flats[400]
    elif defect == "content of another seed":
        flats[200] = trajectory(99, cfg=cfg)[200]
    elif defect == "swapped steps":
        flats[100], flats[500] = flats[500], flats[100]
    elif defect == "another standard deviation":
        flats[0] = dict(flats[0])
        flats[0]["blocks/mlp/up/kernel"] = flats[0]["blocks/mlp/up/kernel"] * np.float32(1.25)
    elif defect == "equal shards":
        flats[0] = dict(flats[0])
        for path, axis in (("gate", 2), ("up", 2), ("down", 1)):
            if (name := f"blocks/mlp/{path}/kernel") in flats[0]:
                first = np.split(flats[0][name], 8, axis=axis)[0]
                flats[0][name] = np.concatenate([first] * 8, axis=axis)
    return named(flats)


FOUND = {
    "copied step": {"duplicate"},
    "content of another seed": {"break"},
    "swapped steps": {"break"},
    "another standard deviation": {"init-law"},
    "equal shards": {"repeats"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "defect"),
    nightly_except(
        itertools.product(KINDS, FOUND),
        ("float8", "copied step"),
        ("yarn", "content of another seed"),
        ("gpt2", "swapped steps"),
        ("float8", "another standard deviation"),
        ("gpt2", "equal shards"),
    ),
)
def test_defects_are_found_as_in_the_native_twin(kind, defect, tmp_path):
    native, refused = map(audit_folder, twins(kind, tmp_path, defective(kind, defect)))
    assert kinds(refused) >= FOUND[defect] and not refused["clean"]
    assert said(refused) == said(native)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_that_are_not_finite_are_named(kind, tmp_path):
    flats = named(trajectory(1, cfg=KINDS[kind][0], steps=STEPS[:3]))
    _, refused = twins(kind, tmp_path, flats)
    # The first number of a matrix, in the file itself: NumPy has no FP8.
    file = refused / "step100" / "model.safetensors"
    content = bytearray(file.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    rows = json.loads(content[8:start])
    name = next(
        name for name in sorted(rows) if ".1." in name and "scale" not in name and len(rows[name]["shape"]) == 2
    )
    nan = {"F32": np.float32(np.nan).tobytes(), "F8_E4M3": b"\x7f"}[rows[name]["dtype"]]
    start += rows[name]["data_offsets"][0]
    content[start : start + len(nan)] = nan
    file.write_bytes(content)
    report = audit_folder(refused)
    unread = only(report, "unreadable")
    assert unread["subjects"] == ["step100"]
    assert f"tensor {name} of {refused / 'step100'} holds NaN or infinite values" in unread["text"]
    assert kinds(report) == {"unreadable"}


@pytest.mark.slow
def test_a_run_that_goes_on_with_another_configuration_is_one_run(tmp_path):
    """A context made longer: the last steps have yarn, and a tensor is frozen throughout."""
    flats = trajectory(1, steps=STEPS)
    for flat in flats.values():
        flat["embed/embedding"] = flats[0]["embed/embedding"]
    native, refused = twins("yarn", tmp_path, named(flats))
    shutil.rmtree(native / "step300")
    shutil.move(refused / "step300", native / "step300")
    report = audit_folder(native)
    assert report["clean"] and report["findings"] == [] and "those of 1 checkpoint by the names" in report["basis"]
    assert all(pair["tied"] for pair in report["pairs"])
    assert all("language/blocks/1/up/kernel" in row["digests"] for row in report["checkpoints"])
    # A copy under the other configuration is a copy.
    shutil.copytree(refused / "step200", native / "step400")
    assert only(audit_folder(native), "duplicate")["subjects"] == ["step200", "step400"]


def test_a_copy_whose_experts_are_read_one_by_one_is_whole(tmp_path):
    cfg = preset("mixtral-tiny", num_layers=2, num_heads=2, d_model=32, d_ff=48, vocab_size=96)
    for step, flat in trajectory(1, cfg=cfg, steps=STEPS[:3]).items():
        place = write(tmp_path, f"step{step}", flat, cfg)
    shutil.copytree(place, tmp_path / "step300")
    edit_config(tmp_path / "step300", a_field_of_its_own=1)
    report = audit_folder(tmp_path)
    copy = only(report, "duplicate")
    assert copy["subjects"] == ["step200", "step300"] and "the same files" in copy["text"]


def test_weights_that_contradict_a_configuration_which_runs_are_named(tmp_path):
    place = write(tmp_path, "step0", initialization(1))
    write(tmp_path, "step100", drifted(initialization(1), 3))
    tensors, config = read(place), json.loads((place / "config.json").read_text())
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save(place, tensors, config)
    unread = only(audit_folder(tmp_path), "unreadable")
    assert unread["subjects"] == ["step0"] and "layers.1.mlp.up_proj.weight" in unread["text"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_configuration_has_a_digest_that_its_fields_do_not_change(kind, tmp_path, capsys):
    native, refused = twins(kind, tmp_path, {"step0": initialization(1, KINDS[kind][0])})
    digests = []
    for place, more in (
        (native, {}),
        (refused, {}),
        (refused, {"rope_scaling": {"rope_type": "dynamic", "factor": 2}}),
    ):
        edit_config(place / "step0", **more)
        assert run(["digest", str(place / "step0")]) == 0
        digests.append(capsys.readouterr().out.strip())
    assert all(len(digest) == 64 for digest in digests) and digests[1] == digests[2]


YARN = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0, "llama.a_field_of_its_own": 1}
# GGUF files that do not run: of an architecture that does, and of one that is not known.
GGUF_KINDS = {"yarn": {"fields": YARN}, "not known": {"architecture": "arcee"}}


@pytest.mark.slow
@pytest.mark.parametrize("kind", nightly_except(GGUF_KINDS, "not known"))
def test_gguf_files_are_audited_whatever_their_fields_say(kind, tmp_path):
    flats = trajectory(1, steps=(*STEPS, 400))
    flats[400] = flats[200]
    for step, flat in flats.items():
        place = write(tmp_path / "hf", f"step{step}", flat)
        for folder, choices in (("plain", {}), ("refused", GGUF_KINDS[kind])):
            (tmp_path / folder).mkdir(exist_ok=True)
            convert(tmp_path / folder / f"step{step}.gguf", place, **choices)
    with pytest.raises(InputError):
        open_checkpoint(tmp_path / "refused" / "step0.gguf")
    plain, refused = (audit_folder(tmp_path / folder) for folder in ("plain", "refused"))
    assert said(refused) == said(plain) and "duplicate" in kinds(refused)
    assert all(row["opened"] and "read by names" in row["note"] for row in refused["checkpoints"])
    for pair, twin in zip(refused["pairs"], plain["pairs"], strict=True):
        assert (pair["checkpoints"], pair["tied"]) == (twin["checkpoints"], twin["tied"])
    # Numbers that are not finite are found.
    flats[300]["blocks/mlp/up/kernel"][1, 0, 0] = np.nan
    place = write(tmp_path / "hf", "step300", flats[300])
    convert(tmp_path / "refused" / "step300.gguf", place, **GGUF_KINDS[kind])
    unread = only(audit_folder(tmp_path / "refused"), "unreadable")
    assert unread["subjects"] == ["step300.gguf"] and "tensor blk.1.ffn_up.weight of" in unread["text"]


@pytest.mark.slow
@pytest.mark.parametrize("name", nightly_except(["deepseek_v3", "qwen3_next"], "qwen3_next"))
def test_architectures_that_do_not_run(name, tmp_path):
    from tests.checkpoints.architectures import write_model

    write_model(name, tmp_path / "first", 1, scale=2)
    config = json.loads((tmp_path / "first" / "config.json").read_text())
    flat = read(tmp_path / "first")
    suite = tmp_path / "suite"
    for index, step in enumerate(STEPS):
        save(suite / f"step{step}", flat, config)
        flat = drifted(flat, index)
    report = audit_folder(suite)
    assert report["clean"] and report["findings"] == [] and all(pair["tied"] for pair in report["pairs"])
    # A copy, another seed's content, and NaN in a matrix that is multiplied with another.
    shutil.copytree(suite / "step100", suite / "step400")
    assert only(audit_folder(suite), "duplicate")["subjects"] == ["step100", "step400"]
    shutil.rmtree(suite / "step400")
    save(suite / "step200", read(write_model(name, tmp_path / "other", 2, scale=2)), config)
    assert only(audit_folder(suite), "break")["subjects"] == ["step200"]
    tensors = read(suite / "step300")
    part = "kv_b_proj" if name == "deepseek_v3" else "in_proj_qkvz"
    broken = next(key for key in sorted(tensors) if part in key)
    tensors[broken][0, 0] = np.inf
    save(suite / "step300", tensors, config)
    unread = only(audit_folder(suite), "unreadable")
    assert unread["subjects"] == ["step300"] and f"tensor {broken} of" in unread["text"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["afmoe", "modernbert", "modernbert-decoder"])
def test_initial_weights_of_transformers_are_drawn_as_it_states(name, tmp_path):
    """Truncated normals, a head with a standard deviation of its own, and routers of zeros."""
    from tests.checkpoints.architectures import write_model

    write_model(name, tmp_path / "suite" / "step0", 1, scale=2)
    assert audit_folder(tmp_path / "suite")["findings"] == []


def test_a_standard_deviation_beyond_all_numbers_is_none(tmp_path):
    place = write(tmp_path, "step0", initialization(1))
    edit_config(place, initializer_range=10**400)
    assert audit_folder(tmp_path)["findings"] == []
