"""Three SIGKILLs, one of them while a checkpoint is being written, leave no trace in the result."""

import pytest

from benchmarks import kill_resume


@pytest.mark.nightly
@pytest.mark.slow
def test_three_kills(tmp_path, monkeypatch):
    # Programs this small are compiled for longer than they run.
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    monkeypatch.setenv("XLA_FLAGS", flags)
    result = kill_resume.compare(tmp_path, kills=3, steps=120, seed=1)
    assert result["kills"] == 3 and result["kills_during_a_write"] == 1
    assert result["lines"] == 120
    assert result["losses_equal"] and result["digests_equal"]
