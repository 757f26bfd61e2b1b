"""The commands of docs/cluster.md, each at a small size, as far as one machine goes."""

import importlib.util
import os
import shlex
import subprocess
import sys

import pytest

from tests.docs.test_doc_pages import ROOT, _blocks

pytestmark = pytest.mark.slow

SMALL = "num_layers=1,d_model=16,num_heads=2,num_kv_heads=2,d_ff=16,vocab_size=64"
INITIAL = f"seed:3@gpt2-tiny,{SMALL}"
SIZES = ["--num-inputs", "16", "--seq-len", "8"]
# What is put in the place of what only a cluster has, or takes hours; the later option of two counts.
INSTEAD = {
    "probe": [*SIZES, "--seeds", "0:4", *(word for pair in SMALL.split(",") for word in ("--set", pair))],
    "fingerprint": SIZES,
    "whichseed": ["--seeds", "0:100"],
    "reproduce": ["--scale", "smoke"],
    "status": [],
    "pretrain": [],
}
# The page's experiments take a minute at their smallest; another one cut into chunks takes seconds.
EXPERIMENTS = {"calibration": [], "weights_calibration": ["figure2"]}


def small(words: list[str]) -> list[str]:
    """A command of the page without the cluster's own names."""
    words = [INITIAL if word in ("model", "suspect") else word for word in words[1:]]
    words = [part for word in words for part in EXPERIMENTS.get(word, [word])]
    if "--ray-address" in words:
        del words[words.index("--ray-address") : words.index("--ray-address") + 2]
    further = [*INSTEAD[words[0]], *(["--workers", "1"] if "--workers" in words else [])]
    return [*words, *further]


@pytest.mark.nightly
def test_the_commands_of_the_page_run(tmp_path):
    if any(importlib.util.find_spec(module) is None for module in ("submitit", "ray")):
        pytest.skip("submitit or ray is not installed: pip install submitit ray")
    lines = [line.strip() for body in _blocks("docs/cluster.md", "") for line in body.replace("\\\n", " ").splitlines()]
    # What runs as two processes here is in tests/test_distributed.py.
    lines = [line for line in lines if line.startswith("bornbiased ") and "--coordinator" not in line]
    assert len(lines) >= 6
    for line in lines:
        command = [sys.executable, "-m", "bornbiased_jax", *small(shlex.split(line))]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=500)
        assert process.returncode == 0, f"{line}: {process.stderr}"
    for result in ("sweep.json", "sweep", "search", "parts", "model.fingerprint", "out/laptop/index.html"):
        assert (tmp_path / result).exists(), result
