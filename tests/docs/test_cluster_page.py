"""The commands of docs/cluster.md, each at a small size, as far as one machine goes."""

import importlib.util
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_doc_pages import ROOT, _blocks
from tests.fixtures.programs import free_address

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


def commands() -> list[list[str]]:
    lines = [line.strip() for body in _blocks("docs/cluster.md", "") for line in body.replace("\\\n", " ").splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("bornbiased ")]


def called(words: list[str], folder: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "bornbiased_jax", *words]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def small(words: list[str]) -> list[str]:
    """A command of the page without the cluster's own names."""
    words = [INITIAL if word in ("model", "suspect") else word for word in words[1:]]
    words = [part for word in words for part in EXPERIMENTS.get(word, [word])]
    for option in ("--ray-address", "--coordinator"):
        if option in words:
            del words[words.index(option) : words.index(option) + 2]
    further = [*INSTEAD[words[0]], *(["--workers", "1"] if "--workers" in words else [])]
    return [*words, *further]


@pytest.mark.nightly
def test_the_commands_of_the_page_run(tmp_path):
    if any(importlib.util.find_spec(module) is None for module in ("submitit", "ray")):
        pytest.skip("submitit or ray is not installed: pip install submitit ray")
    lines = commands()
    assert len(lines) >= 7
    for words in lines:
        if "--coordinator" in words:
            continue
        process = called(small(words), tmp_path)
        _, error = process.communicate(timeout=500)
        assert process.returncode == 0, f"{shlex.join(words)}: {error.decode()}"
    for result in ("sweep.json", "sweep", "search", "parts", "model.fingerprint", "out/laptop/index.html"):
        assert (tmp_path / result).exists(), result


@pytest.mark.nightly
def test_the_command_over_several_machines_runs_as_two_processes(tmp_path):
    (words,) = [words for words in commands() if "--coordinator" in words]
    words = [word.replace("fsdp=8", "fsdp=2") for word in small(words)]
    words = words[: words.index("--num-processes")] + SIZES
    several = ["--coordinator", free_address(), "--num-processes", "2", "--process-id"]
    for process in [called([*words, *several, str(rank)], tmp_path) for rank in range(2)]:
        _, error = process.communicate(timeout=300)
        assert process.returncode == 0, error.decode()
    assert (tmp_path / "model.fingerprint").exists()
