"""The benchmark of the bound, and processes that are measured; speed itself is not tested here."""

import json

import numpy as np
import pytest

from benchmarks import bound
from benchmarks.child import run_child
from bornbiased_jax.errors import InputError
from bornbiased_jax.stats.permutations import moments


@pytest.mark.parametrize("z", [3.0, 5.5])
def test_planted_scores_reach_requested_z(z):
    scores = bound.at_distance(np.random.default_rng(1).standard_normal((40, 40)), z)
    mean, variance = moments(scores)
    assert (np.trace(scores) - mean) / np.sqrt(variance) == pytest.approx(z)
    with pytest.raises(ValueError, match="40 labels cannot lie 50"):
        bound.at_distance(scores, 50.0)


def test_the_bound_is_reported_between_the_normal_tail_and_one(monkeypatch):
    monkeypatch.setattr(bound, "DISTANCES", (5.0,))
    row = bound.main(["--widths", "60"])["rows"][0]
    assert row["log10_floor"] < row["log10_p_normal"] < row["log10_p_bound_scaled"] < 0
    assert len(bound.tables({"rows": [row]})[0].rows) == 1


@pytest.mark.nightly
def test_child_process_time_and_output_measured(tmp_path):
    child = run_child("bornbiased_jax", ["predict", "--model", "llama-tiny", "--seq-len", "4"])
    assert child["result"]["inter_cosine_by_layer"]
    assert 0 < child["cpu_s"] and 1e7 < child["peak_bytes"] < 1e12 and len(child["load"]) == 2
    json.dumps(child)
    # What its parent holds is none of it.
    held = np.ones(1 << 28, np.uint8)
    again = run_child("bornbiased_jax", ["predict", "--model", "llama-tiny", "--seq-len", "4"])
    assert again["peak_bytes"] < child["peak_bytes"] + held.nbytes // 2
    with pytest.raises(InputError, match="failed: "):
        run_child("bornbiased_jax", ["digest", str(tmp_path / "nothing")])
