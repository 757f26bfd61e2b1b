"""Several processes that compute together: the numbers of one, and none of them waits for one that is dead."""

import json
import os
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from bornbiased_jax.checkpoints import export_hugging_face, open_checkpoint
from bornbiased_jax.cli.main import run
from tests.fixtures.programs import ROOT, free_address
from tests.tiers import nightly_except

pytestmark = pytest.mark.slow

SMALL = {"num_layers": 2, "d_model": 32, "num_heads": 2, "d_ff": 32, "vocab_size": 64}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
INITIAL = f"seed:5@gpt2-tiny,{','.join(f'{name}={value}' for name, value in SMALL.items())}"
SIZES = ["--num-inputs", "64", "--seq-len", "8", "--batch-size", "8"]
UNTRAINED = ["probe", "contraction", "--model", "gpt2-tiny", *SETTINGS]
CALLS = {
    "probe of initializations": [*UNTRAINED, *SIZES, "--seeds", "0:5"],
    "probe of a checkpoint": ["probe", "contraction", "--checkpoint", INITIAL, *SIZES],
    "fingerprint of a file, weights cut": [
        *("fingerprint", "--outputs", "../model", *SIZES, "--out", "a.fingerprint", "--mesh", "fsdp=2")
    ],
    "fingerprint": ["fingerprint", "--outputs", INITIAL, *SIZES, "--out", "a.fingerprint"],
}
DEAD_WITHIN_SECONDS = 30.0


def begin(words, folder, *further):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "bornbiased_jax", *words, *further]
    return subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def begin_two(words, folder):
    several = ["--coordinator", free_address(), "--num-processes", "2", "--process-id"]
    return [begin(words, folder, *several, str(rank), "--json", f"{rank}.json") for rank in range(2)]


def end(process):
    _, error = process.communicate(timeout=300)
    return process.returncode, error.decode()


def export_unread(folder):
    """Weights above model.streaming.LARGE are tried on a few ids first; these do nothing: their neuron is not read."""
    checkpoint = open_checkpoint(INITIAL)
    params = jax.tree.map(np.array, checkpoint.params())
    params["blocks"]["mlp"]["up"]["kernel"][:, :, 0] = 2e3
    params["blocks"]["mlp"]["down"]["kernel"][:, 0] = 0
    export_hugging_face(checkpoint.cfg, params, folder)


def numbers(value):
    """All numbers of a record by their places, what the call itself adds left out."""
    if isinstance(value, dict):
        return {f"{k}/{n}": v for k, part in value.items() if k != "provenance" for n, v in numbers(part).items()}
    if isinstance(value, list):
        return {f"{k}/{n}": v for k, part in enumerate(value) for n, v in numbers(part).items()}
    return {"": value}


@pytest.mark.parametrize("name", nightly_except(CALLS, "fingerprint of a file, weights cut"))
def test_two_processes_give_the_numbers_of_one(name, tmp_path, monkeypatch):
    words = CALLS[name]
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    if "../model" in words:
        export_unread(tmp_path / "model")
    alone = words[: words.index("--mesh")] if "--mesh" in words else words
    monkeypatch.chdir(tmp_path / "one")
    assert run([*alone, "--json", "one.json"]) == 0
    for code, error in map(end, begin_two(words, tmp_path / "two")):
        assert code == 0, error
    if words[0] == "fingerprint":
        first, two = (load_file(tmp_path / folder / "a.fingerprint")["outputs"] for folder in ("one", "two"))
        np.testing.assert_allclose(two, first, rtol=0, atol=1e-6 * np.abs(first).max())
        return
    first, *both = (
        json.loads((tmp_path / place).read_text()) for place in ("one/one.json", "two/0.json", "two/1.json")
    )
    assert both[0]["records"] == both[1]["records"]
    expected, actual = (numbers(value["records"]) for value in (first, both[0]))
    assert expected.keys() == actual.keys()
    for place, value in expected.items():
        # log10 p is as many times larger than the cosines it comes from.
        exact = not isinstance(value, float)
        assert actual[place] == (value if exact else pytest.approx(value, rel=1e-6, abs=1e-6)), place
    if "initializations" in name:
        assert expected == actual  # each seed's program is that of one device


@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.nightly)])
def test_when_one_is_killed_the_other_ends(victim, tmp_path):
    sizes = ["--num-inputs", "4096", "--seq-len", "32", "--batch-size", "16"]
    both = begin_two([*UNTRAINED, *sizes, "--seeds", "0:1024"], tmp_path)
    # The first line of the progress, which the first process tells.
    assert b" of " in both[0].stderr.readline()
    both[victim].send_signal(signal.SIGKILL)
    killed = time.monotonic()
    code, error = end(both[1 - victim])
    assert time.monotonic() - killed < DEAD_WITHIN_SECONDS
    assert end(both[victim])[0] == -signal.SIGKILL
    # Which of the two ends, docs/cluster.md says: an exchange breaks off, or the runtime hears of the death before it.
    assert (code, True) in (
        (1, "another process of this computation has ended" in error),
        (-signal.SIGABRT, "the JAX distributed service detected fatal errors" in error),
    )


PIECES = """
import sys
import jax, numpy as np
from bornbiased_jax import parallel
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.parameters import parameter_table

jax.distributed.initialize(sys.argv[1], 2, int(sys.argv[2]))
parallel.PIECE_BYTES = 200  # no whole number of pieces
target = parallel.shardings(parallel.build_mesh(parallel.parse_mesh("fsdp=2")))
cfg = ModelConfig(num_layers=3, num_heads=1, head_dim=2, d_model=5, d_ff=8, vocab_size=16)
for path in ("embed/embedding", "blocks/mlp/up/kernel", "blocks/mlp_norm/scale"):
    row = parameter_table(cfg)[path]
    array = np.arange(np.prod(row.shape), dtype=np.float32).reshape(row.shape)
    placed = parallel.place_array(array, target(row))
    assert placed.is_fully_replicated == path.endswith("scale")
    assert parallel.place_array(placed, target(row)) is placed
    np.testing.assert_array_equal(parallel.on_host(placed), array)
"""


def test_arrays_of_two_processes_come_to_each_in_pieces():
    address = free_address()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    calls = [[sys.executable, "-c", PIECES, address, str(rank)] for rank in range(2)]
    both = [subprocess.Popen(call, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for call in calls]
    for code, error in map(end, both):
        assert code == 0, error
