"""The benchmark of stored fingerprints at a small shape: relatives are found, the others are screened."""

import pytest

from benchmarks import stored_fingerprints, tables


@pytest.mark.slow
def test_relatives_alone_pass_the_screen_of_the_benchmark(tmp_path):
    sizes = dict(d_model=64, d_ff=96, num_heads=4, vocab_size=300)
    found = stored_fingerprints.benchmark(sizes, tmp_path, layers=3, bases=6, related=2)
    assert found["found"] == 2 <= found["tested"] < 6
    assert len(list((tmp_path / "store").iterdir())) == found["bases"] == 6
    assert set(found["within"]) == set(found["goals"])
    assert len(tables.stored_fingerprints(found)[0].rows) == 6
