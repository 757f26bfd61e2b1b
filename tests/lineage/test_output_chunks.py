"""Outputs by way of a store: the same bits as without one, whoever computes them."""

import dataclasses
import itertools

import numpy as np
import pytest
from jax.sharding import AbstractMesh

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints import reference as places
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import local
from bornbiased_jax.lineage import output_fingerprint
from bornbiased_jax.lineage.output_fingerprint import fingerprint_outputs, save_outputs
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.probes.inputs import from_tokens, gaussian, random_tokens
from tests.fixtures.engines import elsewhere
from tests.tiers import nightly_except

SMALL = "gpt2-tiny,num_layers=2,d_model=16,num_heads=2,d_ff=32,vocab_size=40"
N, T = 50, 6
INPUTS = {
    "tokens": random_tokens(N, T, 40),
    "gaussian": gaussian(N, T, 16),
    "text": from_tokens(np.random.default_rng(0).integers(0, 40, (N, T)), 40),
}
# What changes digits.
CHANGED = (dict(layer=1), dict(batch_size=7), dict(moments=(0.5, 1.0)), dict(precision="bf16x3"))


def chunks_of(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("seed*.npz")}


@pytest.fixture(scope="module")
def opened():
    return open_checkpoint(f"seed:5@{SMALL}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "layer"),
    nightly_except(itertools.product(INPUTS, [None, 1]), ("tokens", 1), ("gaussian", None), ("text", None)),
)
def test_a_fingerprint_is_the_same_file_whoever_computes_it(inputs, layer, opened, tmp_path):
    reading = OutputOptions(layer=layer, batch_size=8)
    plain = fingerprint_outputs(opened, INPUTS[inputs], reading)
    here = fingerprint_outputs(opened, INPUTS[inputs], reading, resume=tmp_path / "here", range_size=20)
    ranges = dict(range_size=20, engine=elsewhere)
    there = fingerprint_outputs(opened, INPUTS[inputs], reading, resume=tmp_path / "there", **ranges)
    saved = {save_outputs(tmp_path / "saved", result).read_bytes() for result in (plain, here, there)}
    assert len(saved) == 1
    assert chunks_of(tmp_path / "here") == chunks_of(tmp_path / "there")
    # Ranges are whole batches: 20 sequences are three batches of eight.
    assert sorted(chunks_of(tmp_path / "here")) == [
        "seed0-inputs0-24.npz",
        "seed0-inputs24-48.npz",
        "seed0-inputs48-50.npz",
    ]


@pytest.mark.slow
def test_interrupted_fingerprint_resumes(opened, tmp_path):
    ticks = []

    def stop(count):
        ticks.append(count)
        if sum(ticks) >= 24:
            raise KeyboardInterrupt

    reading, options = OutputOptions(batch_size=8), dict(resume=tmp_path, range_size=8)
    with pytest.raises(KeyboardInterrupt):
        fingerprint_outputs(opened, INPUTS["tokens"], reading, advance=stop, **options)
    done = len(chunks_of(tmp_path))
    assert 1 <= done < 7
    ticks.clear()
    outputs = fingerprint_outputs(opened, INPUTS["tokens"], reading, advance=ticks.append, **options)
    # The last range is shorter than a batch, and may be among those that were done.
    assert sum(ticks) in (N - 8 * done, N - 8 * (done - 1) - 2)
    plain = fingerprint_outputs(opened, INPUTS["tokens"], reading)
    np.testing.assert_array_equal(outputs.outputs_ND, plain.outputs_ND)


@pytest.mark.slow
def test_settings_that_change_digits_have_separate_tasks(opened, tmp_path):
    usual = OutputOptions(batch_size=8)
    readings = [usual, *(dataclasses.replace(usual, **changed) for changed in CHANGED)]
    calls = [(opened, "gaussian", reading) for reading in readings]
    calls += [(opened, "tokens", usual), (open_checkpoint(f"seed:6@{SMALL}"), "gaussian", usual)]
    for number, (model, inputs, reading) in enumerate(calls, 1):
        made = fingerprint_outputs(model, INPUTS[inputs], reading, resume=tmp_path)
        assert len(list(tmp_path.glob("*/task.json"))) == number
        assert made.provenance["precision"] == f"float32 {reading.precision}"


def test_sums_that_are_cut_or_rounded_in_other_ways_are_separate_tasks(opened):
    meshes = [AbstractMesh(sizes, ("seed", "data", "fsdp")) for sizes in ((1, 2, 1), (1, 1, 2), (1, 2, 1))]
    readings = [OutputOptions(batch_size=8, mesh=mesh) for mesh in meshes]
    readings.append(OutputOptions(batch_size=8, mesh=meshes[0], precision="bf16x3"))
    first, second, again, shorter = (
        output_fingerprint.request(opened, INPUTS["tokens"], reading, local).settings for reading in readings
    )
    assert first == again != second and first != shorter


@pytest.mark.slow
def test_weights_that_are_not_those_of_the_task_are_refused(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(output_fingerprint, "portable_source", lambda reference: {"checkpoint": f"seed:6@{SMALL}"})
    with pytest.raises(InputError, match="see the same files"):
        fingerprint_outputs(opened, INPUTS["tokens"], resume=tmp_path, engine=elsewhere)


def test_a_checkpoint_is_named_whole_for_processes_in_other_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "odd@seed=1").mkdir()
    for given, named in (
        ("run", tmp_path / "run"),
        ("run@seed=3,step=7", f"{tmp_path / 'run'}@seed=3,step=7"),
        ("odd@seed=1", tmp_path / "odd@seed=1"),
        (f"seed:5@{SMALL}", f"seed:5@{SMALL}"),
        ("hf:acme/tiny@v1", "hf:acme/tiny@v1"),
    ):
        assert places.portable_source(given) == {"checkpoint": str(named)}


def test_another_engine_needs_a_store(opened):
    with pytest.raises(InputError, match="name a folder to resume in"):
        fingerprint_outputs(opened, INPUTS["tokens"], engine=elsewhere)
