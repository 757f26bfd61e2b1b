"""Every engine writes the same files, in processes of its own."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys

import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import RayExecutor
from tests.tiers import nightly_except

pytestmark = pytest.mark.slow

SMALL = {"num_layers": 1, "d_model": 16, "num_heads": 2, "d_ff": 16, "vocab_size": 64}
SETTINGS = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
INITIAL = f"seed:31@gpt2-tiny,{','.join(f'{name}={value}' for name, value in SMALL.items())}"
SIZES = ["--num-inputs", "64", "--seq-len", "8", "--batch-size", "8", "--range", "16"]
PROBE = ["probe", "preference", "--model", "gpt2-tiny", *SETTINGS, *SIZES]
# The words of a call, the option that names its ledger, and what of its JSON does not depend on the call.
CALLS = {
    "probe": ([*PROBE, "--seeds", "0:5"], "--resume", lambda value: value["records"]),
    "probe of a checkpoint": (
        ["probe", "contraction", "--checkpoint", INITIAL, *SIZES],
        "--resume",
        lambda value: value["records"],
    ),
    "fingerprint": (
        ["fingerprint", "--outputs", INITIAL, *SIZES, "--out", "a.fingerprint"],
        "--resume",
        lambda value: {**value, "digest": None},
    ),
    "whichseed": (["whichseed", INITIAL, "--seeds", "0:100", "--range", "16"], "--resume", lambda value: value),
    "reproduce": (["reproduce", "weights_calibration", "--scale", "smoke"], "--out", lambda value: None),
}
ENGINES = {
    "two processes": ["--engine", "processes", "--workers", "2"],
    "four processes": ["--engine", "processes", "--workers", "4"],
    "submitit": ["--engine", "slurm", "--workers", "2", "--submit", "timeout_min=9"],
    "ray": ["--engine", "ray", "--workers", "2"],
}


def words_of(name, place):
    """The command of a call in a folder."""
    words, option, _ = CALLS[name]
    return [*words, "--json", str(place / "report.json"), "--quiet", option, str(place / "ledger")]


def made(name, place):
    """The result and the chunks of one call."""
    chunks = {f"{path.parent.name}/{path.name}": path.read_bytes() for path in place.rglob("seed*.npz")}
    # The command line and the provenance are those of a call.
    report = json.loads((place / "report.json").read_text())
    return CALLS[name][2]({key: report[key] for key in report if key not in ("command", "provenance")}), chunks


def called(name, place, *further):
    """The result and the chunks of a call in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-m", "bornbiased_jax", *words_of(name, place), *further]
    process = subprocess.run(command, env=environment, cwd=place, capture_output=True, text=True, timeout=500)
    assert process.returncode == 0, process.stderr
    return made(name, place)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    values = {}

    def of(name):
        if name not in values:
            place = tmp_path_factory.mktemp("alone")
            with contextlib.chdir(place):
                assert run(words_of(name, place)) == 0
            values[name] = made(name, place)
        return values[name]

    return of


# Every engine with a call whose chunks are seeds and inputs, and every call with one engine.
TRIED = [
    *((engine, "probe") for engine in ("submitit", "ray", "four processes")),
    *(("two processes", name) for name in CALLS if name != "probe"),
]


@pytest.mark.parametrize(("engine", "name"), nightly_except(TRIED, ("ray", "probe")))
def test_every_engine_writes_what_one_process_does(engine, name, alone, tmp_path):
    if engine in ("submitit", "ray") and importlib.util.find_spec(engine) is None:
        pytest.skip(f"{engine} is not installed: pip install {engine}")
    values = called(name, tmp_path, *ENGINES[engine])
    assert values == alone(name) and len(values[1]) >= 4


@pytest.mark.nightly
def test_engines_can_be_changed_half_way(alone, tmp_path):
    called("probe", tmp_path, "--seeds", "0:2", *ENGINES["two processes"])
    assert called("probe", tmp_path, "--seeds", "0:5") == alone("probe")


def test_ray_that_starts_too_slowly_is_refused(monkeypatch):
    ray = pytest.importorskip("ray")

    def time_out(*_args, **_kwargs):
        raise Exception("The current node timed out during startup.")  # noqa: TRY002 (Ray's own)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", time_out)
    with pytest.raises(InputError, match="Ray does not start here: The current node timed out"):
        RayExecutor(2, None)
