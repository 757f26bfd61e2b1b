"""What a plan says of small commands is what they take: memory of their process, and time by rates of the same run.

Tests run beside each other, so that time is a matter of the record that ``python -m benchmarks plan`` makes when idle.
"""

import pytest

from benchmarks import plan, tables

pytestmark = pytest.mark.slow

SMALL = "num_layers=1,d_model=32,num_heads=2,num_kv_heads=2,d_ff=48,vocab_size=64"


def test_the_benchmark_sets_a_run_beside_its_plan():
    words = f"seedprint seed:0@llama-tiny,{SMALL} seed:1@llama-tiny,{SMALL} --test weights --quiet".split()
    row = plan.compare("weights test", words, 1)
    assert row["peak_bytes"] > 5e7 and row["memory_ratio"] == row["peak_bytes"] / row["memory_bytes"]
    assert row["seconds"] > 0 and row["seconds_planned"] > 0 and row["operations"] > 0
    (table,) = tables.TABLES["plan"]({"rows": {"weights test": row}, "rounds": 1, "goal": plan.GOAL})
    assert [row.settings for row in table.rows] == [["weights test", "1 × 32"]]


def test_memory_is_within_a_quarter(tmp_path, monkeypatch):
    """Of one command: the record holds the others, which take minutes. Compiled as users compile, and in both of the
    processes: one that finds its programs in the tests' cache needs a tenth less than one that makes them."""
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    row = plan.memory(plan.COMMANDS["fingerprint"].format(tmp_path).split())
    assert abs(row["memory_ratio"] - 1) <= plan.GOAL, row
