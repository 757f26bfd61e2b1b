"""Fingerprints of weights held as bfloat16: exact where the file is, in half the memory, and told apart."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.streamed import write_model
from bornbiased_jax import io
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.config import preset
from bornbiased_jax.lineage import outputs
from bornbiased_jax.lineage.compare import compare
from bornbiased_jax.lineage.output_fingerprint import fingerprint_outputs, load_outputs, save_outputs
from bornbiased_jax.model import ForwardOptions, streaming
from bornbiased_jax.model.memory import weights_bytes
from bornbiased_jax.probes.inputs import random_tokens

SMALL = "llama-tiny,num_layers=2,d_model=32,num_heads=2,num_kv_heads=2,d_ff=48,vocab_size=64"
CFG = preset("llama-tiny", num_layers=2, d_model=32, num_heads=2, num_kv_heads=2, d_ff=48, vocab_size=64)
SIZES = ["--num-inputs", "40", "--seq-len", "8", "--quiet"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A directory whose tensors are bfloat16."""
    folder = tmp_path_factory.mktemp("stored") / "model"
    write_model(folder, CFG, 3)
    return folder


def held(checkpoint):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(checkpoint.params()))


@pytest.mark.slow
def test_a_file_of_bfloat16_is_held_exactly_in_half_the_memory(model):
    full, half = open_checkpoint(model), open_checkpoint(model, dtype="bfloat16")
    assert held(full) == weights_bytes(CFG) == 2 * held(half)
    for actual, reference in zip(jax.tree.leaves(full.params()), jax.tree.leaves(half.params()), strict=True):
        np.testing.assert_array_equal(np.asarray(actual), np.asarray(reference).astype(np.float32))
    inputs = random_tokens(40, 8, 64)
    prints = [fingerprint_outputs(opened, inputs) for opened in (full, half)]
    np.testing.assert_array_equal(prints[0].outputs_ND, prints[1].outputs_ND)
    # The same weights: the same digests, and the same model to every test.
    assert prints[0].weights_digest == prints[1].weights_digest
    assert prints[0].tensor_digests == prints[1].tensor_digests
    assert prints[0].value_digests == prints[1].value_digests
    assert [stored.storage for stored in prints] == ["float32", "bfloat16"]
    assert compare(*prints).verdict == "same-lineage"


@pytest.mark.slow
def test_products_are_float32_of_the_rounded_weights():
    """Rounding happens once, to the weights: the same numbers held as float32 give the same outputs."""
    initial = open_checkpoint(f"seed:5@{SMALL}")
    rounded = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), initial.params())
    widened = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), rounded)
    inputs = random_tokens(40, 8, 64)
    for layer in (None, 1):
        actual, reference = (
            outputs.last_outputs(CFG, params, inputs, outputs.OutputOptions(layer=layer))
            for params in (rounded, widened)
        )
        assert actual.dtype == np.float32
        # Compiled with and without a conversion: float32's own precision, far below bfloat16's 2^-9.
        np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-6)
        plain = outputs.last_outputs(CFG, initial.params(), inputs, outputs.OutputOptions(layer=layer))
        assert 1e-4 < np.max(np.abs(actual - plain)) / np.max(np.abs(plain)) < 0.1


def test_no_float32_copy_of_all_blocks_is_made():
    """The compiler's plan, weights apart, is of the size of one block."""
    cfg = preset("llama-tiny", num_layers=16, d_model=128, d_ff=512, vocab_size=64)
    shapes = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), _params(cfg)))
    x = jax.ShapeDtypeStruct((1, 4), jnp.int32)
    reading = streaming._traceable(outputs._reading(None))
    options = ForwardOptions(dtype=jnp.float32)
    plan = streaming._forward.lower(cfg, shapes, x, x, reading, options).compile().memory_analysis()
    assert plan.temp_size_in_bytes < weights_bytes(cfg) / 4


def _params(cfg):
    from bornbiased_jax.init import init_seed

    return init_seed(cfg, 0)


@pytest.mark.slow
def test_the_command_keeps_the_storage_and_two_of_them_are_told_apart(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for seed, storage in ((1, "float32"), (1, "bfloat16"), (2, "bfloat16")):
        words = [f"seed:{seed}@{SMALL}", "--storage", storage, "--out", f"{seed}{storage}", "--json", "facts.json"]
        assert run(["fingerprint", "--outputs", *words, *SIZES]) == 0
        # A digest of the file is a commitment.
        assert json.loads((tmp_path / "facts.json").read_text())["digest"] == io.sha256(f"{seed}{storage}")
    assert load_outputs("1bfloat16").storage == "bfloat16" and load_outputs("1float32").storage == "float32"
    assert run(["fingerprint", "--outputs", f"seed:1@{SMALL}", "--out", "plain", *SIZES]) == 0
    assert (tmp_path / "plain").read_bytes() == (tmp_path / "1float32").read_bytes()
    capsys.readouterr()
    for pair, told in ((("1float32", "1bfloat16"), True), (("1bfloat16", "2bfloat16"), False)):
        assert run(["seedprint", *pair, "--quiet", "--json", "-"]) == 0
        captured = capsys.readouterr()
        notes = json.loads(captured.out)["notes"]
        assert any("held as float32, the suspect's as bfloat16" in note for note in notes) == told
        assert ("held as float32, the suspect's as bfloat16" in captured.err) == told


@pytest.mark.slow
def test_store_separates_storage_types(model, tmp_path):
    """The chunks of one are not those of the other, whose digest may be the same."""
    ledger = tmp_path / "ledger"
    for storage in ("float32", "bfloat16"):
        words = [str(model), "--storage", storage, "--out", str(tmp_path / storage), "--resume", str(ledger)]
        assert run(["fingerprint", "--outputs", *words, *SIZES]) == 0
    prints = [load_outputs(tmp_path / storage) for storage in ("float32", "bfloat16")]
    np.testing.assert_array_equal(prints[0].outputs_ND, prints[1].outputs_ND)
    pages = {path.parent for path in ledger.rglob("*") if path.is_file() and "outputs" not in path.name}
    assert len(pages) >= 2


def test_a_fingerprint_of_unknown_storage_is_refused(model, tmp_path):
    import dataclasses

    from bornbiased_jax.errors import InputError

    outputs = fingerprint_outputs(open_checkpoint(model), random_tokens(4, 8, 64))
    path = save_outputs(tmp_path / "a", dataclasses.replace(outputs, storage="int4"))
    with pytest.raises(InputError, match="storage"):
        load_outputs(path)
