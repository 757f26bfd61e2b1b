"""Every engine writes the same files; each runs as its users have it, in processes of its own."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CALL = ["probe", "preference", "--model", "gpt2-tiny", "--seeds", "0:5", "--num-inputs", "64", "--seq-len", "8",
        "--set", "num_layers=1", "--set", "d_model=16", "--set", "num_heads=2", "--set", "d_ff=16",
        "--set", "vocab_size=64", "--batch-size", "8", "--range", "32", "--quiet"]  # fmt: skip
ENGINES = {
    "four processes": ["--engine", "processes", "--workers", "4"],
    "submitit": ["--engine", "slurm", "--workers", "2", "--submit", "timeout_min=9"],
    "ray": ["--engine", "ray", "--workers", "2"],
}


def called(place, *further):
    """The records and the chunks of one call, as its user has it: with the compiler's own settings."""
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    words = [sys.executable, "-m", "bornbiased_jax", *CALL, "--json", "-", "--resume", str(place), *further]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["records"], {path.name: path.read_bytes() for path in place.rglob("seed*.npz")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    return called(tmp_path_factory.mktemp("ledgers") / "alone")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_writes_what_one_process_does(engine, alone, tmp_path):
    if engine in ("submitit", "ray") and importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed: pip install {engine}")
    found = called(tmp_path / "ledger", *ENGINES[engine])
    assert found == alone and len(found[1]) >= 10


def test_engines_can_be_changed_half_way(alone, tmp_path):
    called(tmp_path / "ledger", "--seeds", "0:2", *ENGINES["four processes"])
    assert called(tmp_path / "ledger", "--seeds", "0:5") == alone
