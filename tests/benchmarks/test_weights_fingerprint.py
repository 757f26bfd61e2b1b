"""The benchmark of fingerprints of weights at a small shape: it measures what it says, and its table is drawn."""

import pytest

from benchmarks import weights_fingerprint


@pytest.mark.slow
def test_fingerprint_is_timed_against_reading_the_same_files(tmp_path, monkeypatch):
    monkeypatch.setattr(weights_fingerprint, "SIZES", dict(d_model=64, d_ff=96, num_heads=4, vocab_size=300))
    findings = weights_fingerprint.measure(tmp_path, layers=2, rounds=2)
    assert [len(findings[f"{step}_seconds"]) for step in ("read", "digest", "sketch", "fingerprint")] == [2] * 4
    assert findings["file_bytes"] > 2 * (2 * 300 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 96))
    assert findings["table_bytes"] == 2 * 4 * 300 * 64
    assert findings["beyond_tables_bytes"] == findings["command"]["peak_bytes"] - findings["table_bytes"]
    assert findings["fingerprint_bytes"] == (tmp_path / "a.fingerprint").stat().st_size
    assert findings["full_depth"]["fingerprint_bytes"] > 4 * findings["fingerprint_bytes"]
    assert len(weights_fingerprint.tables(findings)[0].rows) == 10
