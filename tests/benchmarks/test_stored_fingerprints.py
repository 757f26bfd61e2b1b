"""The benchmark of stored fingerprints at a small shape: relatives are found, the others are screened."""

import json

import pytest

from benchmarks import stored_fingerprints


@pytest.mark.slow
def test_relatives_alone_pass_the_screen_of_the_benchmark(tmp_path, monkeypatch):
    sizes = dict(d_model=64, d_ff=96, num_heads=4, vocab_size=300)
    for name, value in {"FEW_TOKENS": sizes, "LAYERS": 3, "RELATED": 2}.items():
        monkeypatch.setattr(stored_fingerprints, name, value)
    findings = stored_fingerprints.measure(tmp_path, bases=6)
    assert findings["found"] == 2 <= findings["tested"] < 6
    assert len(list((tmp_path / "store").iterdir())) == findings["bases"] == 6
    (table,) = stored_fingerprints.tables(findings)
    assert [row.settings for row in table.rows] == [["screen"], ["unrelated"], ["full"], ["scan"]]
    assert "2 of 2 relatives" in table.note


@pytest.mark.nightly
def test_peer_is_timed_on_the_pair_that_seedprint_compares(tmp_path):
    """A program with the name and the output of the peer, which notes what it was given."""
    scores = {"provenance_decision": "Not Matched", "pipeline_score": 0.25, "identity_score": 0.5}
    program = tmp_path / "bin" / "provenancekit"
    program.parent.mkdir()
    answer = json.dumps({"scores": scores})
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/words\necho '{answer}'\n")
    program.chmod(0o755)
    pair = stored_fingerprints.compare_peer(program.parent, tmp_path)
    assert pair["decisions"] == {"peer": "Not Matched, 0.25 (weights: 0.50)", "seedprint": "unrelated"}
    words = (tmp_path / "words").read_text().splitlines()
    assert words[:3] == ["compare", str(tmp_path / "base"), str(tmp_path / "another seed")]
    fields = dict(layers=1, bases=1, tested=1, found=1, related=1, fingerprint_bytes=1, load=[1.0, 2.0], seconds={})
    _, table = stored_fingerprints.tables({**fields, "small_pair": pair})
    assert "(Not Matched, 0.25 (weights: 0.50))" in table.rows[0].measured["measured"]
    assert min(pair["peer_s"], pair["seedprint_s"]) > 0
