"""The benchmarks of the tests in the weights run and report what they compare; speed itself is not tested here."""

import json

import numpy as np
import pytest

from benchmarks import bound, disguised, tables, weights_7b
from benchmarks.child import run_child
from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.checkpoints.reader import open_reader
from bornbiased_jax.checkpoints.reference import parse_ref
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.models import init_seed
from bornbiased_jax.seedprint.weights.compare import weights_test
from bornbiased_jax.seedprint.weights.logits import same_logits
from bornbiased_jax.stats.permutations import moments

TINY = dict(d_model=32, d_ff=48, num_heads=2, vocab_size=64)


@pytest.mark.parametrize("z", [3.0, 5.5])
def test_scores_lie_as_far_out_as_was_asked(z):
    scores = bound.at_distance(np.random.default_rng(1).standard_normal((40, 40)), z)
    mean, variance = moments(scores)
    assert (np.trace(scores) - mean) / np.sqrt(variance) == pytest.approx(z)
    with pytest.raises(ValueError, match="40 labels cannot lie 50"):
        bound.at_distance(scores, 50.0)


def test_the_bound_is_reported_between_the_normal_tail_and_one(monkeypatch):
    monkeypatch.setattr(bound, "DISTANCES", (5.0,))
    row = bound.main(["--widths", "60"])["rows"][0]
    assert row["log10_floor"] < row["log10_p_normal"] < row["log10_p_bound_scaled"] <= row["log10_p_bound"] < 0
    assert len(tables.bound({"rows": [row]})[0].rows) == 1


def test_a_pair_of_shards_is_measured_phase_by_phase(tmp_path):
    cfg = preset("llama-tiny", num_layers=1, **TINY)
    weights_7b.write_model(tmp_path / "base", cfg, 1)
    weights_7b.write_model(tmp_path / "suspect", cfg, 1, 2)
    assert len(list((tmp_path / "base").glob("*.safetensors"))) > 1
    base, suspect = (open_reader(tmp_path / name) for name in ("base", "suspect"))
    found = weights_7b.measure(base, suspect)
    # Noise of half a standard deviation: a cosine of 1/√1.25 row by row.
    up = [reader.read("blocks/mlp/up/kernel", 0).ravel() for reader in (base, suspect)]
    assert np.corrcoef(*up)[0, 1] == pytest.approx(1 / np.sqrt(1.25), abs=0.03)
    assert found["found"]["agreement"] == 1.0 and found["found"]["units"]["log10_p"] < -20
    assert found["found"]["coordinates"]["z"] == pytest.approx(weights_test(base, suspect).z)
    D, F, V = TINY["d_model"], TINY["d_ff"], TINY["vocab_size"]
    assert found["speed"]["coordinates"]["operations"] == 2 * D * D * (2 * V + 4 * D + 3 * F)
    assert found["speed"]["units"]["operations"] == 3 * 2 * F * F * D
    assert found["speed"]["units"]["fraction"] > 0
    full = weights_7b.scaled(found["seconds"], cfg, 32)
    for name, factor in (("units", 32), ("matching of units", 32), ("rotation by the vocabulary", 1)):
        assert full[name][0] == pytest.approx(factor * found["seconds"][name][0])
    by_rows = (2 * V + 32 * (4 * D + 3 * F)) / (2 * V + 4 * D + 3 * F)
    assert full["coordinates"][0] == pytest.approx(by_rows * found["seconds"]["coordinates"][0])


def test_the_disguise_is_free_but_for_its_noise(tmp_path, monkeypatch):
    cfg = preset(disguised.PRESET, num_layers=2, **TINY)
    export_hugging_face(cfg, init_seed(cfg, 3), tmp_path / "model")
    model = open_reader(tmp_path / "model")
    monkeypatch.setattr(disguised, "NOISE", 0.0)
    disguised.disguise(tmp_path / "model", tmp_path / "free")
    assert same_logits(model, open_reader(tmp_path / "free"))
    monkeypatch.setattr(disguised, "NOISE", 0.05)
    disguised.disguise(tmp_path / "model", tmp_path / "noisy")
    noisy, free = (open_reader(tmp_path / name).read("blocks/mlp/up/kernel", 1) for name in ("noisy", "free"))
    assert (noisy - free).std() == pytest.approx(0.05 * free.std(), rel=0.1)
    # A birth of what the disguised model says it is.
    hidden = open_reader(tmp_path / "noisy").cfg
    assert parse_ref(disguised.birth_of(hidden, 42)).cfg == hidden


@pytest.mark.slow
def test_what_a_child_took_and_what_it_wrote(tmp_path):
    found = run_child("bornbiased_jax", ["predict", "--model", "llama-tiny", "--seq-len", "4"])
    assert found["result"]["inter_cosine_by_layer"]
    assert 0 < found["cpu_s"] and 1e7 < found["peak_bytes"] < 1e12 and len(found["load"]) == 2
    json.dumps(found)
    # What its parent holds is none of it.
    held = np.ones(1 << 28, np.uint8)
    again = run_child("bornbiased_jax", ["predict", "--model", "llama-tiny", "--seq-len", "4"])
    assert again["peak_bytes"] < found["peak_bytes"] + held.nbytes // 2
    with pytest.raises(InputError, match="failed: "):
        run_child("bornbiased_jax", ["digest", str(tmp_path / "nothing")])
