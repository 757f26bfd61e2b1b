"""Models that ``bornbiased seedprint`` cannot compare: one sentence each, or "undefined" with its reason."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.cli.main import run

SMALL = "llama-tiny,num_layers=1,num_heads=2,d_model=16,d_ff=32"
BASE = f"seed:1@{SMALL},vocab_size=64"


@pytest.fixture
def exported(tmp_path):
    """Writes a model as a Hugging Face directory, its tensors edited."""

    def export(ref=f"seed:2@{SMALL},vocab_size=64", edit=None):
        opened = open_checkpoint(ref)
        export_hugging_face(opened.cfg, opened.params(), tmp_path / "model")
        if edit is not None:
            tensors = load_file(tmp_path / "model" / "model.safetensors")
            edit(tensors)
            save_file(tensors, tmp_path / "model" / "model.safetensors", {"format": "pt"})
        return tmp_path / "model"

    return export


@pytest.fixture
def sentence(capsys):
    """Return the one line of a call that must fail."""

    def call(*arguments):
        assert run(["seedprint", *arguments, "--quiet"]) == 2
        lines = capsys.readouterr().err.strip().splitlines()
        assert len(lines) == 1
        return lines[0]

    return call


def spoiled(tensors):
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = np.where(np.arange(tensors[name].size).reshape(tensors[name].shape) == 7, np.nan, tensors[name])


@pytest.mark.slow
@pytest.mark.parametrize("test", ["auto", "weights", "permutation"])
def test_numbers_that_are_not_finite(exported, sentence, test):
    message = sentence(BASE, str(exported(edit=spoiled)), "--test", test)
    assert "up_proj.weight" in message and "NaN or infinite values" in message


@pytest.mark.parametrize("test", ["auto", "weights"])
def test_a_truncated_file(exported, sentence, test):
    folder = exported()
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert str(folder) in sentence(BASE, str(folder), "--test", test)


def test_a_shard_that_is_cut_short_or_missing(exported, sentence):
    folder = exported()
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"model-1.safetensors": names[:4], "model-2.safetensors": names[4:]}
    for shard, part in shards.items():
        save_file({name: tensors[name] for name in part}, folder / shard, {"format": "pt"})
    table = {name: shard for shard, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": table}))
    last = folder / "model-2.safetensors"
    last.write_bytes(last.read_bytes()[:-100])
    assert "model-2.safetensors" in sentence(BASE, str(folder))
    last.unlink()
    assert "fetch that shard" in sentence(BASE, str(folder))


@pytest.mark.slow
def test_unequal_widths_are_undefined_but_in_token_space(seedprint):
    wide = f"seed:2@{SMALL},vocab_size=64".replace("d_model=16", "d_model=24")
    for arguments in (["--test", "weights"], ["--test", "permutation"]):
        result = seedprint(BASE, wide, *arguments)
        assert (result["verdict"], result["p_value"]) == ("undefined", None)
        assert "the widths differ (16 and 24)" in result["reason"]
    rows = {row["name"]: row for row in seedprint(BASE, wide)["tests"]}
    assert rows["coordinates"]["verdict"] == "undefined" and rows["neurons in token space"]["verdict"] == "unrelated"


@pytest.mark.parametrize(
    "words", [["--test", "auto"], ["--test", "weights"], ["--test", "permutation", "--num-inputs", "40"]]
)
def test_identical_base_and_suspect_reported(seedprint, words):
    result = seedprint(BASE, BASE, *words)
    assert result["verdict"] == "same-lineage"
    message = " ".join([result["reason"], *result["notes"]]).lower()
    assert (
        "the base is the suspect: both are the initialization of seed 1" in message
        or "identical weights, bit for bit" in message
    )


def test_base_of_equal_bytes_reported(seedprint, exported, tmp_path):
    folder = exported()
    shutil.copytree(folder, tmp_path / "copy")
    for words in ([], ["--test", "weights"]):
        result = seedprint(str(folder), str(tmp_path / "copy"), *words)
        message = " ".join([result["reason"], *result["notes"]]).lower()
        assert "the two models' weight files are the same, byte for byte" in message
        assert result["verdict"] == "same-lineage"
