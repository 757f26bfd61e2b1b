"""The command for a GPU: order, skipping and the stop before the minutes with fake steps; cheap steps at smoke size."""

import importlib
import inspect
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from bornbiased_jax import experiments, hardware, io
from bornbiased_jax.config import preset
from bornbiased_jax.experiments import gpu, runner
from bornbiased_jax.experiments._shared.training import in_memory
from bornbiased_jax.experiments.gpu import Step
from bornbiased_jax.training import memory

COMPLETE = {"status": "complete"}


@pytest.fixture
def fake(monkeypatch, tmp_path):
    """Benchmarks that take no time: what they do, by name; their record is what ``--json`` names."""
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "__main__.py").write_text("import runpy, sys; runpy.run_module(f'benchmarks.{sys.argv[1]}')\n")

    def make(name, record=None, code="", seconds=0.5):
        write = "" if record is None else f"open(out, 'w').write({json.dumps(record)!r})"
        tally = f"open(out + '.tally', 'a').write({name[0]!r})"
        (folder / f"{name}.py").write_text(f"import sys; out = sys.argv[3]\n{tally}\n{code}\n{write}\n")
        return Step(name, seconds, name, "")

    return make


def tally(out, name):
    path = out / f"{name}.json.tally"
    return len(path.read_text()) if path.exists() else 0


def test_steps_run_in_order_and_a_failure_takes_nothing_with_it(fake, tmp_path):
    steps = [
        fake("first", COMPLETE),
        fake("bad", code="raise SystemExit('no such kernel')"),
        fake("silent"),
        fake("last", {}),
    ]
    out = tmp_path / "my out"
    outcomes = gpu.run(steps, "smoke", out, 2)
    assert list(outcomes.items()) == [("first", "made"), ("bad", "failed"), ("silent", "failed"), ("last", "made")]
    assert "no such kernel" in (out / "logs" / "bad.txt").read_text()


def test_finished_records_stay_and_failed_ones_are_made_again(fake, tmp_path):
    steps = [fake("made", COMPLETE), fake("row", {"status": "failed"}), Step("rows", 1, "", experiments=("a", "b"))]
    for name in "ab":
        io.write_json(tmp_path / "reproduce" / "records" / f"{name}.json", COMPLETE)
    expected = {"made": "made", "row": "failed", "rows": "there"}
    assert gpu.run(steps, "smoke", tmp_path, 2) == expected
    assert gpu.run(steps, "smoke", tmp_path, 2) == {**expected, "made": "there"}
    assert [tally(tmp_path, step.name) for step in steps] == [1, 2, 0]
    io.write_json(tmp_path / "reproduce" / "records" / "b.json", {"status": "failed"})
    assert not gpu.is_finished(steps[2], tmp_path)


def test_products_that_keep_a_probe_and_are_fastest_are_taken(monkeypatch, tmp_path):
    # Those that were measured before, where this call has not measured any.
    assert gpu.precision(tmp_path) == "bf16x3"
    monkeypatch.setattr(gpu, "ROOT", tmp_path)
    assert gpu.precision(tmp_path) == "highest"
    rows = {
        "highest": {"keeps": True, "tflops": 50.0},
        "tf32x3": {"keeps": True, "tflops": 90.0},
        "bf16x3": {"keeps": False, "tflops": 150.0},
        "other": {"refused": "not here"},
    }
    io.write_json(tmp_path / "products.json", {"algorithms": rows})
    assert gpu.precision(tmp_path) == "tf32x3"


@pytest.mark.slow
def test_every_step_ends_before_the_minutes_are_over(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "GRACE", 2)
    code = f"""
import signal, subprocess, time
def save(*_):
    open(out, "w").write('{{"status": "stopped"}}')
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
subprocess.Popen(["sh", "-c", "sleep 4.5; touch {tmp_path / "left"}"])
time.sleep(60)
"""
    steps = [fake("long", COMPLETE, seconds=100), fake("stops", code=code, seconds=2), fake("late", COMPLETE)]
    start = time.monotonic()
    outcomes = gpu.run(steps, "gpu", tmp_path, 6 / 60)
    assert time.monotonic() - start < 6
    assert outcomes == {"long": "no time", "stops": "stopped", "late": "no time"} and tally(tmp_path, "long") == 0
    # SIGTERM came first: a step may save what it has.
    assert io.read_json(tmp_path / "stops.json") == {"status": "stopped"}
    time.sleep(max(0.0, start + 5.5 - time.monotonic()))
    assert not (tmp_path / "left").exists()


@pytest.mark.slow
def test_a_step_that_ignores_sigterm_is_killed(fake, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "GRACE", 1)
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert gpu.run([fake("deaf", code=code)], "smoke", tmp_path, 3.5 / 60) == {"deaf": "stopped"}


def test_a_step_that_is_none_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu, "git_revision", lambda: {"commit": 40 * "a"})
    with pytest.raises(SystemExit, match="2"):
        gpu.main(["--steps", "parity,paritty", "--out", str(tmp_path), "--minutes", "0"])
    assert "no step 'paritty': choose some of self_test" in capsys.readouterr().err


def test_steps_are_in_order_of_worth_and_name_what_there_is():
    assert [step.name for step in gpu.STEPS] == [
        "self_test", "parity", "products", "sweep_tiny", "sweep_nano", "training_rate", "seeds_at_once", "table1",
        "figure13", "larger", "by_step", "table4a", "finding2",
    ]  # fmt: skip
    rows = next(step.experiments for step in gpu.STEPS if step.name == "table1")
    others = set(experiments.SELECTIONS["table1_rows"]) - set(rows)
    records = Path(gpu.ROOT) / "experiments" / "results" / "paper"
    assert all((records / f"{name}.json").exists() for name in others) and len(others) == 12
    for step in gpu.STEPS:
        assert set(step.experiments) <= set(experiments.MODULES)
        words = f"{step.words} {step.smoke}".split()
        if not step.experiments:
            module = importlib.import_module(f"benchmarks.{words[0]}")
            # Options are parameters, or written out where a command has a parser of its own.
            parameters = {f"--{name.replace('_', '-')}" for name in inspect.signature(module.measure).parameters}
            text = inspect.getsource(module)
            flags = [word for word in words if word.startswith("--")]
            assert all(flag in parameters or f'"{flag}"' in text for flag in flags), step.name


@pytest.mark.parametrize("name", ["fingerprints_by_step", "fingerprints_by_step_qwen"])
def test_training_fits_a_gpu(name, monkeypatch):
    """Four seeds at once in what JAX takes of 80 GB: weights, gradients, the optimizer, a step's activations."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(hardware, "device_memory", lambda: int(0.75 * 80e9))
    settings = runner.load(name).settings["paper"]
    cfg = preset(settings["model"], **settings["changes"])
    config = in_memory(cfg, settings["data"], settings["schedule"], settings["seeds"])
    memory.check_memory(config)
    assert len(config.seeds) == 4 and config.context == config.model.max_seq_len == 2048


def test_what_must_be_carried_is_pinned_for_python_312(capsys):
    assert gpu.main(["--wheels"]) == 0
    names = dict(line.split("==") for line in capsys.readouterr().out.splitlines())
    assert names["jax"] == names["jaxlib"] == names["jax-cuda13-plugin"] == names["jax-cuda13-pjrt"]
    assert names["jax"].startswith("0.11.") and names["numpy"].startswith("2.5.")
    assert {"grain", "array-record", "pydantic-core", "orbax-checkpoint", "fsspec", "transformers"} <= set(names)
    assert not {"pytest", "torch", "sphinx", "hatchling", "ray"} & set(names)


def test_a_copy_without_git_must_name_its_commit(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "git_revision", lambda: None)
    with pytest.raises(SystemExit):
        gpu.main(["--scale", "smoke", "--out", str(tmp_path)])
    assert "set BORNBIASED_REVISION" in capsys.readouterr().err


def test_the_documented_command_is_the_commands_own():
    text = (Path(gpu.ROOT) / "docs" / "results" / "measurements.md").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("python -m experiments.gpu")]
    assert line in (gpu.__doc__ or "") and shlex.split(line)[3:] == ["--minutes", "25", "--out", "out/gpu"]


CHEAP = ["self_test", "products", "training_rate", "seeds_at_once", "table1"]


@pytest.mark.nightly
@pytest.mark.slow
def test_cheap_steps_make_their_records_at_smoke_size(tmp_path):
    chosen = f"[step for step in gpu.STEPS if step.name in {CHEAP}]"
    code = f"import sys; from bornbiased_jax.experiments import gpu; gpu.STEPS = {chosen}"
    command = [sys.executable, "-c", f"{code}; sys.exit(gpu.main())", "--scale", "smoke", "--out", str(tmp_path)]
    for outcome in ("made", "there"):
        process = subprocess.run(command, cwd=gpu.ROOT, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr + "".join(
            path.read_text() for path in (tmp_path / "logs").iterdir()
        )
        assert [line for line in process.stderr.splitlines() if ": " in line] == [
            f"{name}: {outcome}" for name in CHEAP
        ]
    for name in CHEAP[:4]:
        provenance = io.read_json(tmp_path / f"{name}.json")["provenance"]
        assert provenance["device"]["platform"] == "cpu" and provenance["code"]
    for name in gpu.ROWS:
        assert io.read_json(tmp_path / "reproduce" / "records" / f"{name}.json")["status"] == "complete"
