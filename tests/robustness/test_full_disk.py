"""Workers whose disk is full: one sentence, nothing half written, and the same command resumes when there is room."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.slow

INITIAL = "seed:5@gpt2-tiny,num_layers=1,d_model=64,num_heads=2,d_ff=32,vocab_size=64"
CALL = ["fingerprint", INITIAL, "--num-inputs", "256", "--seq-len", "8", "--batch-size", "64", "--range", "64",
        "--outputs", "--out", "a.fingerprint", "--resume", "ledger", "--quiet"]  # fmt: skip


@pytest.mark.nightly
@pytest.mark.parametrize("engine", ["local", "processes"])
def test_a_full_disk_is_one_sentence_and_no_chunk(engine, tmp_path):
    # Without the tests' cache of compiled programs, whose files are larger than what is allowed here.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment |= {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    words = [sys.executable, "-m", "bornbiased_jax", *CALL, "--engine", engine]

    def called(before):
        command = ["bash", "-c", f"{before} {shlex.join(words)}"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)

    # A chunk of 64 × 64 numbers has 16 KiB; no file may have more than 8.
    full = called("ulimit -f 8;")
    assert full.returncode == 2 and full.stderr.count("\n") == 1, full.stderr
    assert "File too large" in full.stderr and "ledger" in full.stderr
    assert not list(tmp_path.rglob("*.npz")) and not list(tmp_path.rglob("*.part")) and not list(tmp_path.glob("a.*"))
    done = called("")
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.rglob("*.npz"))) == 4
