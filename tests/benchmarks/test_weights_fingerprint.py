"""The benchmark of fingerprints of weights at a small shape: it measures what it says, and its table is drawn."""

import pytest

from benchmarks import tables, weights_fingerprint


@pytest.mark.slow
def test_fingerprint_is_timed_beside_reading_the_same_files(tmp_path):
    sizes = dict(d_model=64, d_ff=96, num_heads=4, vocab_size=300)
    found = weights_fingerprint.benchmark(sizes, tmp_path, layers=2, rounds=2)
    assert len(found["read_seconds"]) == len(found["fingerprint_seconds"]) == 2
    assert found["file_bytes"] > 2 * (2 * 300 * 64 + 2 * (4 * 64 * 64 + 3 * 64 * 96))
    assert found["table_bytes"] == 2 * 4 * 300 * 64
    assert found["beyond_tables_bytes"] == found["command"]["peak_bytes"] - found["table_bytes"]
    assert found["fingerprint_bytes"] == (tmp_path / "a.fingerprint").stat().st_size
    assert found["full_depth"]["fingerprint_bytes"] > 4 * found["fingerprint_bytes"]
    assert len(tables.weights_fingerprint(found)[0].rows) == 7
