"""Checkpoints by name, from a server on this machine that speaks the hub's protocol; some transfers break off."""

import json
import sys
import types
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, models

from bornbiased_jax import hub as hub_rule
from bornbiased_jax.checkpoints import hub, open_checkpoint, parse_ref
from bornbiased_jax.checkpoints.weight_files import INDEX, WEIGHTS
from bornbiased_jax.errors import InputError
from tests.fixtures.hub_server import INVALID_TOKEN, point_to, serving
from tests.fixtures.suites import initialization, write

NAME = "hf:owner/tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory with a tokenizer and, next to the weights, what is not to be fetched."""
    folder = write(tmp_path_factory.mktemp("models"), "tiny", initialization(1))
    words = Tokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    (folder / "tokenizer.json").write_text(words.to_str())
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04 a pickle")
    (folder / "consolidated.safetensors").write_bytes(b"the same weights again")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "model.safetensors").write_bytes(b"others")
    return folder


@pytest.fixture
def server(tmp_path, monkeypatch):
    with serving() as started:
        point_to(started, tmp_path / "cache", monkeypatch)
        # Retries wait a second each.
        monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda seconds: None)
        yield started


@pytest.fixture
def remote(server, model):
    server.add("owner/tiny", "main", model)
    return server


@pytest.mark.slow
def test_a_name_is_fetched_once_and_then_read_without_a_network(remote, model, tmp_path):
    there, here = open_checkpoint(NAME), open_checkpoint(model)
    assert there.digest() == here.digest()
    assert there.kind == "huggingface" and there.tokenizer.vocab_size == 2
    commit = remote.refs["owner/tiny"]["main"]
    assert there.description == f"llama model of hf:owner/tiny (commit {commit[:10]})"
    assert sorted(path.rpartition("/")[2] for path in remote.fetched() if "/api/" not in path) == [
        "config.json",
        WEIGHTS,
        "tokenizer.json",
    ]
    assert all(Path(file).is_relative_to(tmp_path / "cache") for file in there.files)
    remote.asked.clear()
    assert open_checkpoint(NAME).digest() == here.digest()
    assert open_checkpoint(f"{NAME}@{commit}").digest() == here.digest()
    assert remote.asked == []


def test_a_revision_is_another_model(remote, model, tmp_path):
    other = write(tmp_path, "other", initialization(2))
    remote.add("owner/tiny", "step100", other)
    assert (
        open_checkpoint(f"{NAME}@step100").digest() == open_checkpoint(other).digest() != open_checkpoint(NAME).digest()
    )
    # What a name meant when it was fetched it means until the cache is cleared.
    remote.add("owner/tiny", "main", other)
    assert open_checkpoint(NAME).digest() == open_checkpoint(model).digest()


def test_nothing_is_asked_before_a_name_is_opened(remote):
    assert parse_ref(f"{NAME}@step1").remote == hub.HubName("owner/tiny", "step1")
    open_checkpoint("seed:1@gpt2-tiny,num_layers=1,vocab_size=16")
    assert remote.asked == []


def test_tokenizer_fetched_for_weights_that_another_program_fetched(remote, tmp_path, monkeypatch):
    open_checkpoint(NAME)
    next((tmp_path / "cache").rglob("tokenizer.json")).unlink()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert open_checkpoint(NAME).tokenizer is None
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    assert open_checkpoint(NAME).tokenizer.vocab_size == 2
    # That the hub has none is asked once.
    remote.add("owner/bare", "main", write(tmp_path, "bare", initialization(1)))
    open_checkpoint("hf:owner/bare")
    remote.asked.clear()
    assert open_checkpoint("hf:owner/bare").tokenizer is None and remote.asked == []


def test_shards_are_those_of_the_index(remote, model, tmp_path):
    folder = tmp_path / "sharded"
    folder.mkdir()
    tensors = load_file(model / WEIGHTS)
    names = sorted(tensors)
    shards = {f"model-0000{part + 1}-of-00002.safetensors": names[part::2] for part in range(2)}
    for file, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    index = {"weight_map": {name: file for file, members in shards.items() for name in members}}
    (folder / INDEX).write_text(json.dumps(index))
    (folder / "config.json").write_bytes((model / "config.json").read_bytes())
    remote.add("owner/sharded", "main", folder)
    # The second shard does not come: the first is kept, and the checkpoint is not taken for whole.
    second = sorted(shards)[1]
    remote.cuts[second] = 1000
    with pytest.raises(InputError, match="call again"):
        open_checkpoint("hf:owner/sharded")
    assert hub.find_cached(hub.HubName("owner/sharded")) is None
    remote.cuts.clear()
    remote.asked.clear()
    assert open_checkpoint("hf:owner/sharded").digest() == open_checkpoint(model).digest()
    assert [path.rpartition("/")[2] for path in remote.fetched(".safetensors")] == [second]
    del index["weight_map"][shards[second][0]]
    (folder / INDEX).write_text(json.dumps({"weight_map": {**index["weight_map"], "x": "training.bin"}}))
    remote.add("owner/sharded", "odd", folder)
    with pytest.raises(InputError, match="lacks training.bin"):
        open_checkpoint("hf:owner/sharded@odd")
    (folder / "training.bin").write_bytes(b"\x80\x04")
    remote.add("owner/sharded", "pickled", folder)
    with pytest.raises(InputError, match="training.bin, which is no safetensors file"):
        open_checkpoint("hf:owner/sharded@pickled")
    assert not remote.fetched("training.bin")


def test_shards_in_a_folder_below_their_index_are_fetched(remote, model, tmp_path):
    folder = tmp_path / "below"
    (folder / "shards").mkdir(parents=True)
    tensors = load_file(model / WEIGHTS)
    save_file(tensors, folder / "shards" / "first.safetensors")
    # What other folders hold is neither a tokenizer nor weights of this model.
    (folder / "shards" / "tokenizer.json").write_text("{}")
    (folder / "config.json").write_bytes((model / "config.json").read_bytes())
    for place in ("shards/", "../shards/"):
        index = {"weight_map": dict.fromkeys(tensors, f"{place}first.safetensors")}
        (folder / INDEX).write_text(json.dumps(index))
        remote.add("owner/below", "main" if place == "shards/" else "odd", folder)
    assert open_checkpoint("hf:owner/below").digest() == open_checkpoint(model).digest()
    assert not remote.fetched("shards/tokenizer.json")
    with pytest.raises(InputError, match="names ../shards/first.safetensors, which is not in its folder"):
        open_checkpoint("hf:owner/below@odd")


def test_a_transfer_that_breaks_off_resumes(remote, model):
    remote.cuts[WEIGHTS] = 2
    assert open_checkpoint(NAME).digest() == open_checkpoint(model).digest()
    assert len(remote.fetched(WEIGHTS)) == 3 and not remote.cuts[WEIGHTS]


def test_incomplete_download_not_cached(remote, tmp_path):
    remote.cuts[WEIGHTS] = 1000
    with pytest.raises(InputError, match=r"^hf:owner/tiny cannot be loaded: .* \(check the connection"):
        open_checkpoint(NAME)
    assert not list((tmp_path / "cache").rglob(WEIGHTS)) and not list((tmp_path / "cache").rglob("*.incomplete"))


def test_corrupted_download_not_cached(remote, tmp_path):
    remote.damaged.add(WEIGHTS)
    with pytest.raises(InputError, match=f"{WEIGHTS} of {NAME} came corrupted, and was not kept: call again"):
        open_checkpoint(NAME)
    assert not list((tmp_path / "cache").rglob(WEIGHTS))
    remote.damaged.clear()
    assert open_checkpoint(NAME).cfg.num_layers == 2


def test_pickles_are_not_fetched(server, model, tmp_path):
    folder = tmp_path / "old"
    folder.mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (folder / name).write_bytes((model / name).read_bytes())
    server.add("owner/old", "main", folder)
    with pytest.raises(InputError, match="pytorch_model.bin of hf:owner/old is a pickle, which is never fetched"):
        open_checkpoint("hf:owner/old")
    (folder / "pytorch_model.bin").unlink()
    server.add("owner/old", "empty", folder)
    with pytest.raises(InputError, match="neither model.safetensors nor"):
        open_checkpoint("hf:owner/old@empty")
    assert not server.fetched(".bin") and not list((tmp_path / "cache").rglob("*.bin"))


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("hf:owner/none", None, "none of this name"),
        ("hf:owner/tiny@none", None, "no such revision: name a branch"),
        ("hf:owner/tiny", "GatedRepo", "its owner asks for consent"),
        ("hf:owner/tiny", INVALID_TOKEN, "the hub does not take your token: `hf auth login` with a new one"),
    ],
)
def test_hub_refusal_reported_in_one_sentence(remote, refused, name, code, said):
    if code is not None:
        remote.refuses["owner/tiny"] = code
    message = refused(["digest", name])
    assert message.count("\n") == 1 and said in message and name in message


def test_reason_is_first_line_with_words():
    with pytest.raises(InputError, match="^hf:x cannot be loaded: no such builder$"), hub_rule.asking("hf:x"):
        raise RuntimeError("\n\nno such builder\n")


def test_no_connection_blamed_without_a_configuration(server, tmp_path):
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf" / "tiny.gguf").write_bytes(b"GGUF")
    server.add("owner/gguf", "main", tmp_path / "gguf")
    with pytest.raises(InputError, match="hf:owner/gguf has no config.json.* `hf download owner/gguf`"):
        open_checkpoint("hf:owner/gguf")


def test_offline_the_cache_is_read_and_nothing_else(remote, monkeypatch, model):
    open_checkpoint(NAME)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    remote.asked.clear()
    assert open_checkpoint(NAME).digest() == open_checkpoint(model).digest()
    with pytest.raises(InputError, match="HF_HUB_OFFLINE is set: unset that"):
        open_checkpoint(f"{NAME}@step100")
    assert remote.asked == []


def test_disk_space_checked_before_download(remote, monkeypatch):
    full = types.SimpleNamespace(free=20_000)
    monkeypatch.setattr("bornbiased_jax.checkpoints.hub.shutil.disk_usage", lambda path: full)
    with pytest.raises(InputError, match="has room for 0.0 GB: make room, or set HF_HUB_CACHE"):
        open_checkpoint(NAME)
    assert not remote.fetched(WEIGHTS)


@pytest.mark.parametrize("text", ["hf:", "hf:tiny", "hf:a/b/c", "hf:owner/tiny@", "hf:owner/tiny@a b", "hf:../tiny"])
def test_other_forms_are_refused(remote, text):
    with pytest.raises(InputError, match="is not of the form hf:OWNER/NAME"):
        open_checkpoint(text)
    assert remote.asked == []


def test_the_library_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"is on the Hugging Face hub: pip install 'bornbiased-jax\[hub\]'"):
        open_checkpoint(NAME)
