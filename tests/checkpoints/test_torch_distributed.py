"""Checkpoints that ``torch.distributed.checkpoint`` itself writes, read for comparison; nothing of them is executed."""

import pickle
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.checkpoints.formats.torch_distributed import locate
from bornbiased_jax.errors import InputError
from tests.fixtures.pickles import Harmful

torch = pytest.importorskip("torch", exc_type=ImportError)
transformers = pytest.importorskip("transformers", exc_type=ImportError)
dcp = pytest.importorskip("torch.distributed.checkpoint", exc_type=ImportError)

SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model as safetensors, and as a trainer's checkpoint: below a name, next to the optimizer's state."""
    folder = tmp_path_factory.mktemp("trainer")
    config = transformers.LlamaConfig(**SIZES, vocab_size=64, max_position_embeddings=64)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder / "model")
    moments = {f"{name}.exp_avg": torch.zeros_like(value) for name, value in model.state_dict().items()}
    state = {"model": model.state_dict(), "optim": {"state": moments, "lr": 0.1}, "step": 7}
    with pytest.warns(UserWarning, match="single process"):
        dcp.save(state, checkpoint_id=folder / "step-7", no_dist=True)
    return folder


def test_folder_of_shards_is_the_model_that_was_saved(saved):
    (saved / "step-7" / "config.json").write_text((saved / "model" / "config.json").read_text())
    assert open_checkpoint(saved / "step-7").digest() == open_checkpoint(saved / "model").digest()
    (saved / "step-7" / "config.json").unlink()
    named, native = read_by_role(saved / "step-7"), read_by_role(saved / "model")
    assert named.naming == "names" and not named.unread and len(named.roles) == len(native.roles)
    for mine, other in zip(named.roles, native.roles, strict=True):
        np.testing.assert_array_equal(named.read(mine), native.read(other), err_msg=mine.path)


@pytest.mark.slow
def test_tensors_in_parts_of_several_processes_are_put_together(tmp_path):
    """Rows of one matrix, columns of the other, saved by two processes."""
    script = f"""
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor
dist.init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=int(sys.argv[1]), world_size=2)
mesh = DeviceMesh("cpu", [0, 1])
whole = torch.arange(35.0).reshape(5, 7)
parts = {{
    "rows": distribute_tensor(whole, mesh, [Shard(0)]),
    "columns": distribute_tensor(whole.bfloat16(), mesh, [Shard(1)]),
}}
dcp.save(parts, checkpoint_id="{tmp_path}/saved")
"""
    ranks = [subprocess.Popen([sys.executable, "-c", script, str(rank)]) for rank in range(2)]
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    described = dcp.FileSystemReader(tmp_path / "saved").read_metadata().state_dict_metadata
    assert {name: len(tensor.chunks) for name, tensor in described.items()} == {"rows": 2, "columns": 2}
    tensors = locate(tmp_path / "saved" / ".metadata")
    assert {name: tensor.kind for name, tensor in tensors.items()} == {"rows": "F32", "columns": "BF16"}
    for tensor in tensors.values():
        np.testing.assert_array_equal(tensor.read().astype(np.float32), np.arange(35.0).reshape(5, 7))


def test_description_that_would_run_code_is_refused_and_runs_none(tmp_path):
    (tmp_path / ".metadata").write_bytes(pickle.dumps({"state_dict_metadata": Harmful(tmp_path / "written")}))
    with pytest.raises(InputError, match="could run code"):
        read_by_role(tmp_path)
    assert not (tmp_path / "written").exists()


def test_an_enumeration_that_is_looked_up_by_name_is_read_and_other_attributes_are_not(saved, tmp_path, monkeypatch):
    """Python 3.11.0 to 3.11.3 write members of enumerations as calls of getattr."""
    kind = dcp.metadata._MEM_FORMAT_ENCODING
    monkeypatch.setattr(kind, "__reduce_ex__", lambda member, _: (getattr, (kind, member.name)))
    shutil.copytree(saved / "step-7", tmp_path / "step")
    metadata = tmp_path / "step" / ".metadata"
    metadata.write_bytes(pickle.dumps(pickle.loads(metadata.read_bytes())))
    assert b"getattr" in metadata.read_bytes()
    assert locate(metadata).keys() == locate(saved / "step-7" / ".metadata").keys()
    monkeypatch.setattr(kind, "__reduce_ex__", lambda *_: (getattr, (dcp.metadata.Metadata, "__init__")))
    metadata.write_bytes(pickle.dumps(pickle.loads(metadata.read_bytes())))
    with pytest.raises(InputError, match="corrupted"):
        locate(metadata)


def test_missing_and_short_shards_are_named(saved, tmp_path):
    for name, content in ((path.name, path.read_bytes()) for path in (saved / "step-7").iterdir()):
        (tmp_path / name).write_bytes(content)
    (shard,) = tmp_path.glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:-300])
    with pytest.raises(InputError, match=rf"{shard.name} is cut short"):
        read_by_role(tmp_path)
    shard.unlink()
    with pytest.raises(InputError, match=rf"{shard.name} is missing.*fetch that shard"):
        read_by_role(tmp_path)
    # A name that no file can have.
    content = pickle.loads((tmp_path / ".metadata").read_bytes())
    for place in content.storage_data.values():
        place.relative_path = "a" * 300
    (tmp_path / ".metadata").write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match="is missing.*fetch that shard"):
        read_by_role(tmp_path)


def _in_parts(folder, shape, parts, *, is_one_place=False):
    """Describe a tensor of such parts (offsets and sizes), each in a place of its own or all in one."""
    folder.mkdir()
    kinds = dcp.metadata
    values = [torch.full(sizes, float(index)) for index, (_, sizes) in enumerate(parts)]
    places, content = [], b""
    for value in values:
        torch.save(value, folder / "part")
        places.append((len(content), (folder / "part").stat().st_size))
        content += (folder / "part").read_bytes()
    (folder / "part").unlink()
    if is_one_place:
        places, content = places[:1] * len(places), content[: places[0][1]]
    (folder / "shard.distcp").write_bytes(content)
    chunks = [kinds.ChunkStorageMetadata(torch.Size(at), torch.Size(sizes)) for at, sizes in parts]
    tensor = kinds.TensorStorageMetadata(kinds.TensorProperties(), torch.Size(shape), chunks)
    storage = {
        kinds.MetadataIndex("w", chunk.offsets): dcp.filesystem._StorageInfo("shard.distcp", *place)
        for chunk, place in zip(chunks, places, strict=True)
    }
    (folder / ".metadata").write_bytes(pickle.dumps(kinds.Metadata({"w": tensor}, storage_data=storage)))
    return locate(folder / ".metadata")


def test_parts_fill_a_tensor_whatever_their_cuts(tmp_path):
    """Four parts around a fifth, which no grid has, and one of no numbers."""
    around = [([0, 0], [1, 2]), ([0, 2], [2, 1]), ([2, 1], [1, 2]), ([1, 0], [2, 1])]
    center, empty = ([1, 1], [1, 1]), ([3, 0], [0, 3])
    tensor = _in_parts(tmp_path / "whole", [3, 3], [*around, center, empty])["w"]
    assert tensor.read().tolist() == [[0, 0, 1], [3, 4, 1], [3, 2, 2]]
    # The second has as many numbers as the tensor: what no part holds would be whatever lies in memory.
    for index, part in enumerate((empty, ([0, 0], [2, 1]), ([1, 1], [1, 2]))):
        parts = [*around[:3], part, center] if index == 1 else [*around, part]
        with pytest.raises(InputError, match="does not describe tensors") as raised:
            _in_parts(tmp_path / str(index), [3, 3], parts)
        assert str(raised.value.__cause__) == "parts overlap or are missing"


def test_parts_in_one_place_ask_for_no_large_array(tmp_path):
    """Kilobytes of a shard as a tensor of any size: each part alone fits its file."""
    parts = [([at, 0], [1, 64]) for at in range(40)]
    with pytest.raises(InputError, match="does not describe tensors") as raised:
        _in_parts(tmp_path / "step", [40, 64], parts, is_one_place=True)
    assert str(raised.value.__cause__) == "parts in one place"


@pytest.mark.slow
def test_mutated_descriptions_are_refused_in_one_sentence(saved, tmp_path):
    for name, content in ((path.name, path.read_bytes()) for path in (saved / "step-7").iterdir()):
        (tmp_path / name).write_bytes(content)
    metadata = tmp_path / ".metadata"
    sound, draws, refused = metadata.read_bytes(), random.Random(5), 0
    for _ in range(200):
        content = bytearray(sound)
        for _ in range(draws.randrange(1, 4)):
            content[draws.randrange(len(content))] = draws.randrange(256)
        metadata.write_bytes(content[: draws.randrange(len(content))] if draws.random() < 0.2 else content)
        try:
            for tensor in locate(metadata).values():
                tensor.read()
        except InputError as error:
            refused += 1
            assert "\n" not in str(error) and ": " in str(error)
    assert refused > 50
