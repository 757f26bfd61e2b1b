"""The benchmark of stored fingerprints at a small shape: relatives are found, the others are screened."""

import json

import pytest

from benchmarks import stored_fingerprints, tables


@pytest.mark.slow
def test_relatives_alone_pass_the_screen_of_the_benchmark(tmp_path):
    sizes = dict(d_model=64, d_ff=96, num_heads=4, vocab_size=300)
    findings = stored_fingerprints.benchmark(sizes, tmp_path, layers=3, bases=6, related=2)
    assert findings["found"] == 2 <= findings["tested"] < 6
    assert len(list((tmp_path / "store").iterdir())) == findings["bases"] == 6
    assert set(findings["within"]) == set(findings["goals"])
    assert len(tables.stored_fingerprints(findings)[0].rows) == 6


@pytest.mark.slow
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
    assert min(pair["peer_s"], pair["seedprint_s"]) > 0
