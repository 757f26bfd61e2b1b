"""The fuzzing by hand counts what it did, and keeps what went wrong."""

import json

from tests.robustness import __main__ as by_hand
from tests.robustness import readers
from tests.robustness.guard import Outcome


def test_cases_and_outcomes_are_counted(tmp_path):
    out = tmp_path / "fuzz.json"
    assert by_hand.main(["--minutes", "0.01", "--kinds", "metrics.jsonl", "JSON lines", "--out", str(out)]) == 0
    record = json.loads(out.read_text())
    rows = record["kinds"]
    assert list(rows) == ["metrics.jsonl", "JSON lines"] and rows["metrics.jsonl"]["cases"] > 0
    assert all(0 <= row["refused"] <= row["cases"] and not row["faults"] for row in rows.values())
    assert record["provenance"]["wall_time_s"] > 0


def test_faults_stored_and_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(readers, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(readers, "outcome_of", lambda name, data: Outcome(fault="KeyError: 'x'"))
    assert by_hand.main(["--minutes", "0.002", "--kinds", "gzip", "--faults", "1"]) == 1
    assert "gzip, seed 1000000: KeyError: 'x'" in capsys.readouterr().out
    assert len(list((tmp_path / "corpus/gzip").iterdir())) == 1
