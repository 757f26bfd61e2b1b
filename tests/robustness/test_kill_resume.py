"""Three SIGKILLs, one of them while a checkpoint is being written, leave no trace in the result."""

import importlib.util
from pathlib import Path

import pytest


def _script():
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "kill_resume.py"
    spec = importlib.util.spec_from_file_location("kill_resume", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_three_kills(tmp_path, monkeypatch):
    # Programs this small are compiled for longer than they run.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    monkeypatch.setenv("XLA_FLAGS", flags)
    result = _script().compare(tmp_path, kills=3, steps=120, seed=1)
    assert result["kills"] == 3 and result["kills_during_a_write"] == 1
    assert result["lines"] == 120
    assert result["losses_equal"] and result["digests_equal"]
