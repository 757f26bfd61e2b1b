"""The benchmark of a document on two models, at a small shape: it compares what it says, and its table is drawn."""

import pytest

from benchmarks import document


@pytest.mark.nightly
def test_documents_on_a_noisy_and_on_a_rounded_copy_are_timed(tmp_path, monkeypatch):
    monkeypatch.setattr(document, "SIZES", dict(d_model=128, d_ff=256, num_heads=4, vocab_size=300))
    findings = document.measure(tmp_path, layers=2)
    noisy, rounded = findings["suspects"].values()
    assert noisy["verdict"] == rounded["verdict"] == "same-lineage"
    assert noisy["identity"] is None and noisy["log10_p"] < -300
    assert rounded["identity"] == "rounded" and "for each block of 128 × 128" in rounded["reason"]
    assert min(copy["page_bytes"] for copy in findings["suspects"].values()) > 10_000
    assert findings["base_bytes"] > 2 * (2 * 300 * 128 + 2 * (4 * 128 * 128 + 3 * 128 * 256))
    (table,) = document.tables(findings)
    assert [row.settings for row in table.rows] == [[kind] for kind in document.CHANGES]
