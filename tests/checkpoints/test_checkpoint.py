"""Lazy checkpoints: tensors are those of the loaded model, digests identify weights, memory holds no second copy."""

import json
import tracemalloc
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.checkpoints import Checkpoint, digest, export_hugging_face, open_checkpoint, tensor_digests, tensors
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.evaluation.generation import generate_text
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import flatten, parameter_table, unflatten
from bornbiased_jax.text.bpe import train_bpe
from bornbiased_jax.text.byte_level import ByteTokenizer
from tests.fixtures.programs import run_python

SMALL = dict(num_layers=3, d_model=32, d_ff=24, num_heads=4, vocab_size=300)
HF = Path(__file__).resolve().parent.parent / "fixtures" / "hf"
FAMILIES = sorted(path.parent.name for path in HF.glob("*/config.json"))


def test_untrained_model_has_the_weights_of_its_seed():
    checkpoint = open_checkpoint("seed:42@llama-tiny,num_layers=2,vocab_size=99")
    cfg = preset("llama-tiny", num_layers=2, vocab_size=99)
    assert checkpoint.cfg == cfg
    assert checkpoint.digest() == digest(init_seed(cfg, 42))
    assert checkpoint.digest() != open_checkpoint("seed:43@llama-tiny,num_layers=2,vocab_size=99").digest()
    assert (checkpoint.kind, checkpoint.tokenizer) == ("birth", None)


def test_seeds_out_of_range_are_refused():
    with pytest.raises(InputError, match="seed=4294967296"):
        open_checkpoint("seed:4294967296@llama-tiny")


def test_digest_depends_on_every_bit_of_weights_alone():
    params = init_seed(preset("llama-tiny", **SMALL), 1)
    flat = flatten(params)
    full, each = digest(params), tensor_digests(params)
    assert len(each) == 3 * sum(path.startswith("blocks/") for path in flat) + 3
    backwards = unflatten({path: np.asfortranarray(flat[path]) for path in reversed(flat)})
    assert (digest(backwards), tensor_digests(backwards)) == (full, each)

    path = "blocks/mlp/up/kernel"
    changed = np.array(flat[path])
    changed[1, 2, 3] = np.nextafter(changed[1, 2, 3], np.float32(9))
    other = unflatten({**flat, path: changed})
    assert digest(other) != full
    different = {name for name, value in tensor_digests(other).items() if value != each[name]}
    assert different == {f"{path}/1"}
    transposed = unflatten({**flat, path: np.asarray(flat[path]).reshape(3, 24, 32)})
    assert digest(transposed) != full
    zeros = {dtype: digest({"x": np.zeros(4, dtype)}) for dtype in ("float32", "int32")}
    assert zeros["float32"] != zeros["int32"]


def test_digests_pair_tensors_with_their_names():
    first, second = np.ones(3, np.float32), np.zeros(3, np.float32)
    assert digest({"a": first, "b": second}) != digest({"a": second, "b": first})


def test_tokenizer_read_on_first_access(tmp_path):
    cfg = preset("llama-tiny", **SMALL)
    export_hugging_face(cfg, init_seed(cfg, 1), tmp_path / "hf", tokenizer=ByteTokenizer())
    checkpoint = open_checkpoint(tmp_path / "hf")
    assert checkpoint.tokenizer == ByteTokenizer()
    (tmp_path / "hf" / "tokenizer.bytes.json").write_text("{")
    with pytest.raises(InputError, match="tokenizer.bytes.json"):
        open_checkpoint(tmp_path / "hf").tokenizer  # noqa: B018


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path):
    cfg = preset("llama-tiny", **{**SMALL, "vocab_size": 99})
    export_hugging_face(cfg, init_seed(cfg, 1), tmp_path / "hf", tokenizer=ByteTokenizer())
    with pytest.raises(InputError, match="has 256 ids, its model only 99"):
        open_checkpoint(tmp_path / "hf").tokenizer  # noqa: B018


def test_token_added_after_training_needs_no_row_of_the_model(tmp_path):
    """``add_special_tokens({"pad_token": "[PAD]"})`` without resizing: one id more than the model has."""
    trained = train_bpe(["a word and another word"] * 3, 270)
    cfg = preset("llama-tiny", **{**SMALL, "vocab_size": trained.vocab_size})
    content = json.loads(trained.json_text)
    pad = {"id": cfg.vocab_size, "content": "[PAD]", "special": True, "normalized": False}
    content["added_tokens"].append({**pad, "single_word": False, "lstrip": False, "rstrip": False})
    export_hugging_face(cfg, init_seed(cfg, 1), tmp_path / "hf", tokenizer=trained)
    (tmp_path / "hf" / "tokenizer.json").write_text(json.dumps(content))
    checkpoint = open_checkpoint(tmp_path / "hf")
    assert checkpoint.tokenizer.vocab_size == cfg.vocab_size + 1
    ids, text = generate_text(checkpoint, "a word", 0)
    assert text == "a word" and max(ids) < cfg.vocab_size
    # The token itself has no embedding.
    with pytest.raises(InputError, match=f"token id {cfg.vocab_size} is outside"):
        generate_text(checkpoint, "a [PAD]", 1)


def peak_of(load):
    """NumPy's peak."""
    tracemalloc.start()
    try:
        loaded = load()
        return tracemalloc.get_traced_memory()[1], loaded
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_loading_never_holds_a_second_copy(tmp_path):
    """At most the weights once, and the largest parameter twice more; opening, blocks and digests take far less.

    One is being filled, one is a tensor of the file. The CPU backend may keep NumPy's buffers as its own, so the
    weights count.
    """
    cfg = preset("llama-tiny", num_layers=12, d_model=64, d_ff=172, num_heads=4, vocab_size=64)
    params = init_seed(cfg, 1)
    sizes = [leaf.nbytes for leaf in flatten(params).values()]
    export_hugging_face(cfg, params, tmp_path / "hf")
    open_checkpoint(tmp_path / "hf").params()
    peak, checkpoint = peak_of(lambda: open_checkpoint(tmp_path / "hf"))
    # Names, entries and Python objects: some hundred bytes for each of the 112 tensors.
    assert peak < 500_000 < sum(sizes) / 4
    assert peak_of(checkpoint.digest)[0] < 500_000
    assert max(sizes) / sum(sizes) < 0.25
    peak, loaded = peak_of(checkpoint.params)
    assert peak <= sum(sizes) + 2 * max(sizes) + 400_000
    assert peak < 2 * sum(sizes)
    assert checkpoint.params() is loaded
    del loaded
    # In half precision half of it.
    peak, _ = peak_of(open_checkpoint(tmp_path / "hf", dtype="bfloat16").params)
    assert peak <= sum(sizes) / 2 + 2 * max(sizes) + 400_000


SHARDED = """
import json, sys
import jax
from jax.sharding import NamedSharding, PartitionSpec as P
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.parameters import flatten, parameter_table
from bornbiased_jax import parallel

mesh = jax.make_mesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
def sharding(row):
    path = row.path
    if path.endswith("mlp/up/kernel"):
        return NamedSharding(mesh, P("a", None, "b"))
    if path.endswith("query/kernel"):
        return NamedSharding(mesh, P(None, "b", "a"))
    if path == "embed/embedding":
        return NamedSharding(mesh, P(None, ("a", "b")))
    return NamedSharding(mesh, P())
digests = {}
for ref in sys.argv[1:]:
    checkpoint = open_checkpoint(ref, sharding=sharding)
    leaves = flatten(checkpoint.params())
    for path, leaf in leaves.items():
        assert leaf.sharding == sharding(parameter_table(checkpoint.cfg)[path]), path
        assert len(leaf.addressable_shards) == 4
    assert leaves["blocks/mlp/up/kernel"].addressable_shards[0].data.size * 4 == leaves["blocks/mlp/up/kernel"].size
    digests[ref] = checkpoint.digest()
    cut = parallel.build_mesh(parallel.parse_mesh("fsdp=4"))
    checkpoint = open_checkpoint(ref, sharding=parallel.shardings(cut))
    for path, leaf in flatten(checkpoint.params()).items():
        held = sum(shard.data.size for shard in leaf.addressable_shards)
        assert held == leaf.size * (1 if path.endswith(("kernel", "embedding")) else 4), path
    placed = parallel.place_params(checkpoint.cfg, checkpoint.params(), cut)
    before, after = flatten(checkpoint.params()), flatten(placed)
    assert all(after[path] is leaf for path, leaf in before.items())
    assert checkpoint.digest() == digests[ref]
print(json.dumps(digests))
"""


@pytest.mark.slow
def test_weights_go_straight_to_their_shards(tmp_path):
    cfg = preset("llama-tiny", **{**SMALL, "num_layers": 4})
    export_hugging_face(cfg, init_seed(cfg, 5), tmp_path / "hf")
    refs = [str(tmp_path / "hf"), "seed:5@llama-tiny,num_layers=4,d_model=32,d_ff=24,num_heads=4,vocab_size=300"]
    output = json.loads(run_python(SHARDED, *refs, JAX_NUM_CPU_DEVICES="4", JAX_PLATFORMS="cpu"))
    assert output == {ref: open_checkpoint(ref).digest() for ref in refs}
    assert len(set(output.values())) == 1


def test_sharding_on_one_device_places_every_parameter():
    device = jax.devices()[0]
    target = jax.sharding.SingleDeviceSharding(device)
    requests = []

    def sharding(row):
        requests.append((row.path, row.shape))
        return target

    checkpoint = open_checkpoint(HF / "gpt_neox", dtype=jnp.bfloat16, sharding=sharding)
    placed = flatten(checkpoint.params())
    assert sorted(requests) == [(path, leaf.shape) for path, leaf in placed.items()]
    assert all(leaf.sharding == target and leaf.dtype == jnp.bfloat16 for leaf in placed.values())
    # The digest is that of the file, however it is read.
    assert checkpoint.digest() == digest(open_checkpoint(HF / "gpt_neox").params())


@pytest.mark.slow
def test_loading_makes_no_copy_of_a_parameter(monkeypatch, tmp_path):
    """On a CPU: else every parameter is there twice for a moment, the largest too."""
    result, real = [], tensors.aligned_zeros
    monkeypatch.setattr(tensors, "aligned_zeros", lambda *some: result.append(real(*some)) or result[-1])
    cfg = preset("llama-tiny", num_layers=2, d_model=24, num_heads=2, d_ff=40, vocab_size=61)
    export_hugging_face(cfg, init_seed(cfg, 0), tmp_path / "model")
    params = open_checkpoint(tmp_path / "model").params()
    held = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(params)}
    assert held == {buffer.ctypes.data for buffer in result} and len(result) > 5


def assert_reads_the_same(ref):
    """Tensor by tensor and all at once."""
    reader = open_checkpoint(ref)
    for path, leaf in flatten(reader.params()).items():
        full = np.asarray(leaf)
        if parameter_table(reader.cfg)[path].is_stacked:
            for layer in range(len(full)):
                np.testing.assert_array_equal(reader.read(path, layer), full[layer], err_msg=path)
        else:
            np.testing.assert_array_equal(reader.read(path), full, err_msg=path)
    return reader


@pytest.mark.parametrize("family", FAMILIES)
def test_hugging_face_directories(family):
    reader = assert_reads_the_same(HF / family)
    assert not reader.is_initial and reader.files


@pytest.mark.slow
def test_untrained_models_are_drawn_parameter_by_parameter():
    reader = assert_reads_the_same("seed:7@gpt2-tiny,num_layers=2,d_model=16,num_heads=2,d_ff=24,vocab_size=60")
    assert reader.is_initial and reader.seed == 7


def test_parameter_absent_from_architecture_refused():
    opened = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=24,vocab_size=60")
    reader = Checkpoint.from_params(opened.cfg, opened.params())
    for path, layer in (("positions/embedding", None), ("blocks/mlp/up/kernel", 1), ("blocks/mlp/up/kernel", None)):
        with pytest.raises(KeyError):
            reader.read(path, layer)


def test_reading_a_file_leaves_no_mapping(tmp_path):
    opened = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,num_heads=2,d_ff=24,vocab_size=60")
    export_hugging_face(opened.cfg, opened.params(), tmp_path / "hf")
    open_checkpoint(tmp_path / "hf").read("head/kernel")
    maps = Path("/proc/self/maps")
    assert not maps.exists() or "model.safetensors" not in maps.read_text()
