"""What the page of a verdict says of both models."""

import json
import os
from html import unescape

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bornbiased_jax import __version__, record
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed, parameter_shapes
from tests.fixtures.gguf_files import convert

CFG = preset("llama-tiny", num_layers=2, d_model=32, d_ff=64, num_heads=2, vocab_size=64)
SMALL = "llama-tiny,num_layers=2,d_model=32,d_ff=64,num_heads=2,vocab_size=64"
# Of 2022-05-06, 12:00 UTC.
CHANGED = 1_651_838_400
NUM_PARAMETERS = sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(CFG)))


@pytest.fixture
def folder(tmp_path):
    """A model in two files, of which one is older."""
    path = tmp_path / "published"
    export_hugging_face(CFG, init_seed(CFG, 1), path)
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    names, shards = sorted(tensors), {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        shard = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, path / shard, metadata={"format": "pt"})
        shards |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": sum(x.nbytes for x in tensors.values())}, "weight_map": shards}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    # What trainers leave next to the weights is none of them.
    (path / "training_args.bin").write_bytes(b"0" * 1000)
    os.utime(path / "model-00001-of-00002.safetensors", (CHANGED, CHANGED))
    os.utime(path / "model-00002-of-00002.safetensors", (CHANGED + 86_400, CHANGED + 86_400))
    return path


def page_of(base, suspect, tmp_path):
    place = tmp_path / "page.html"
    assert run(["seedprint", str(base), str(suspect), "--quiet", "--page", str(place)]) == 0
    return place.read_text()


@pytest.mark.slow
def test_a_page_names_models_files_dates_digests_and_versions_the_same_every_time(folder, tmp_path, capsys):
    page = page_of(folder, f"seed:2@{SMALL}", tmp_path)
    assert "2 files, model-00001-of-00002.safetensors to model-00002-of-00002.safetensors" in page
    assert f"{sum(file.stat().st_size for file in folder.glob('*.safetensors')):,}" in page
    assert "2022-05-06 to 2022-05-07" in page
    assert "2 blocks, width 32, 64 neurons in each MLP, 2 heads, 2 key/value heads, 64 tokens" in page
    assert page.count(f"{NUM_PARAMETERS:,}") >= 2
    capsys.readouterr()
    for model, word in ((folder, "base"), (f"seed:2@{SMALL}", "suspect")):
        assert run(["digest", str(model), "--json", str(tmp_path / "digest.json")]) == 0
        digest = json.loads((tmp_path / "digest.json").read_text())["digest"]
        assert f"Digest of the {word}&#39;s weights: {digest}." in page
    # How often such a verdict is wrong, and what it does not show.
    assert "at most one pair of unrelated models in 10,000" in page and "it cannot say who copied from whom" in page
    # Versions and machine that compared them.
    assert f"Compared by bornbiased-jax {__version__} (" in page
    assert f"jax {jax.__version__}" in page and f"numpy {np.__version__}" in page
    processor = record.cpu()
    assert f"on {processor['cores']} cores of {processor['cpu']}." in unescape(page)
    # The same every time.
    assert page_of(folder, f"seed:2@{SMALL}", tmp_path) == page


@pytest.mark.slow
def test_a_stored_fingerprint_tells_what_it_holds(folder, tmp_path):
    stored = tmp_path / "a.fingerprint"
    # Of another model, next to which the fingerprint happens to lie.
    (tmp_path / "config.json").write_text('{"model_type": "gpt_bigcode"}')
    assert run(["fingerprint", str(folder), "--out", str(stored), "--quiet"]) == 0
    page = page_of(stored, f"seed:2@{SMALL}", tmp_path)
    assert "What is this evidence worth?" not in page and "gpt_bigcode" not in page
    assert "a.fingerprint" in page and page.count(f"{NUM_PARAMETERS:,}") >= 2


def test_a_suspect_of_other_storage_is_listed_with_its_types(folder, tmp_path):
    half = tmp_path / "half"
    half.mkdir()
    for file in folder.iterdir():
        if file.suffix == ".safetensors":
            tensors = {name: x.astype(np.float16) for name, x in load_file(file).items()}
            save_file(tensors, half / file.name, metadata={"format": "pt"})
        else:
            (half / file.name).write_bytes(file.read_bytes())
    page = page_of(folder, half, tmp_path)
    assert "float32 (" in page and "float16 (" in page


@pytest.mark.slow
def test_a_configuration_next_to_a_gguf_file_may_be_anything(tmp_path):
    export_hugging_face(CFG, init_seed(CFG, 1), tmp_path / "hf")
    convert(tmp_path / "model.gguf", tmp_path / "hf")
    for content in ("[1]", '{"model_type": 7}', "{"):
        (tmp_path / "config.json").write_text(content)
        assert "the same weights, tensor by tensor" in page_of(tmp_path / "model.gguf", tmp_path / "hf", tmp_path)
