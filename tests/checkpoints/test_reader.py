"""Reading weights tensor by tensor gives what opening the whole model gives."""

from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.checkpoints.reader import open_reader, params_reader
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import flatten, parameter_table
from bornbiased_jax.training import PretrainConfig, pretrain

HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
FAMILIES = sorted(path.parent.name for path in HF.glob("*/config.json"))


def assert_reads_the_same(ref):
    reader, opened = open_reader(ref), open_checkpoint(ref)
    assert reader.cfg == opened.cfg
    for path, leaf in flatten(opened.params).items():
        whole = np.asarray(leaf)
        if parameter_table(reader.cfg)[path].is_stacked:
            for layer in range(len(whole)):
                np.testing.assert_array_equal(reader.read(path, layer), whole[layer], err_msg=path)
        else:
            np.testing.assert_array_equal(reader.read(path), whole, err_msg=path)
    return reader


@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_directories(family):
    reader = assert_reads_the_same(HF / family)
    assert not reader.is_birth and reader.files


def test_births_are_drawn_parameter_by_parameter():
    reader = assert_reads_the_same("seed:7@gpt2-tiny,num_layers=2,d_model=16,num_heads=2,d_ff=24,vocab_size=60")
    assert reader.is_birth and reader.seed == 7


def test_trained_models(reference_model):
    for name in ("llama2xs/model.bin", "stories260K/stories260K.bin"):
        assert not assert_reads_the_same(reference_model(name)).is_birth


@pytest.mark.slow
def test_runs_are_read_one_parameter_at_a_time(tmp_path):
    cfg = preset("llama-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=24, vocab_size=256)
    settings = dict(steps=1, batch_size=2, context=8, tensorboard=False, token_cache=str(tmp_path / "cache"))
    pretrain(PretrainConfig(cfg, "builtin:prose", str(tmp_path / "run"), seeds=(1, 2), **settings))
    for seed in (1, 2):
        reader = assert_reads_the_same(f"{tmp_path / 'run'}@seed={seed}")
        assert not reader.is_birth and reader.seed == seed
    assert open_reader(f"{tmp_path / 'run'}@seed=1,step=0").is_birth
    with pytest.raises(InputError, match="has seeds 1, 2"):
        open_reader(tmp_path / "run")


def test_damage_is_refused_when_it_is_read(tmp_path):
    opened = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=24,vocab_size=60")
    flat = flatten(opened.params)
    broken = np.array(flat["blocks/mlp/up/kernel"])
    broken[0, 3, 4] = np.nan
    opened.params["blocks"]["mlp"]["up"]["kernel"] = broken
    export_hugging_face(opened.cfg, opened.params, tmp_path / "hf")
    reader = open_reader(tmp_path / "hf")
    reader.read("blocks/mlp/down/kernel", 0)
    with pytest.raises(InputError, match="up_proj.*holds NaN"):
        reader.read("blocks/mlp/up/kernel", 0)


def test_what_the_architecture_has_not_cannot_be_read():
    opened = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=24,vocab_size=60")
    reader = params_reader(opened.cfg, opened.params)
    assert reader.has("head/kernel") and not reader.has("positions/embedding")
    for path, layer in (("positions/embedding", None), ("blocks/mlp/up/kernel", 1), ("blocks/mlp/up/kernel", None)):
        with pytest.raises(KeyError):
            reader.read(path, layer)


def assert_first_rows(reader, rows=3):
    for path, law in parameter_table(reader.cfg).items():
        for layer in range(law.shape[0]) if law.is_stacked else (None,):
            whole = reader.read(path, layer)
            wanted = whole if whole.ndim == 1 else whole[:rows]
            np.testing.assert_array_equal(reader.read_first(path, layer, rows), wanted, err_msg=f"{path} {layer}")


@pytest.mark.parametrize("family", FAMILIES)
def test_the_first_rows_of_a_directory_are_those_of_the_whole(family):
    assert_first_rows(open_reader(HF / family))


def test_the_first_rows_of_other_sources():
    assert_first_rows(open_reader("seed:7@llama-tiny,num_layers=2,d_model=16,num_heads=2,d_ff=24,vocab_size=60"))
    opened = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=24,vocab_size=60")
    assert_first_rows(params_reader(opened.cfg, opened.params))


def test_a_file_is_read_in_part_and_leaves_no_mapping(tmp_path, monkeypatch):
    opened = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=24,vocab_size=60")
    export_hugging_face(opened.cfg, opened.params, tmp_path / "hf")
    reader = open_reader(tmp_path / "hf")
    reader.read("head/kernel")
    maps = Path("/proc/self/maps")
    assert not maps.exists() or "model.safetensors" not in maps.read_text()
    monkeypatch.delattr(np, "fromfile")  # what reads a tensor whole
    assert reader.read_first("head/kernel", None, 2).shape == (2, 60)
    assert not maps.exists() or "model.safetensors" not in maps.read_text()
