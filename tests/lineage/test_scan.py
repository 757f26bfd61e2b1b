"""One fingerprint against many: related bases found, the others screened, a store's index held against its files."""

from __future__ import annotations

import json

import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprint, payload_digest, save_fingerprint
from bornbiased_jax.lineage.scan import find_bases, scan

SMALL = "llama-tiny,num_layers=2,num_heads=2,d_model=32,d_ff=48,vocab_size=128"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Fingerprints of twelve untrained models, and a noisy rotated copy of the fourth as a checkpoint."""
    folder = tmp_path_factory.mktemp("scan")
    (folder / "store").mkdir()
    for seed in range(12):
        save_fingerprint(folder / "store" / f"seed-{seed}.fingerprint", fingerprint(f"seed:{seed}@{SMALL}"))
    words = ["derive", f"seed:3@{SMALL}", "--change", "rotate:7", "--change", "noise:0.2"]
    assert run([*words, "--out", str(folder / "suspect")]) == 0
    return folder


def test_the_related_base_is_found_and_the_others_are_screened(store):
    result = scan(str(store / "suspect"), find_bases([str(store / "store")]))
    assert [match.verdict for match in result.matches] == ["same-lineage"] + ["unrelated"] * 11
    first, second = result.matches[:2]
    assert (first.base, first.evidence) == ("seed-3", "neurons in token space")
    assert first.log10_p < -50 and second.log10_p == 0
    assert {row["component"] for row in first.components} >= {"all", "blocks/1", "blocks/2"}
    assert result.num_tested <= 3


def test_the_correction_counts_every_base(store):
    alone = scan(str(store / "suspect"), find_bases([str(store / "store" / "seed-3.fingerprint")]))
    among = scan(str(store / "suspect"), find_bases([str(store / "store")]))
    shift = among.matches[0].log10_p - alone.matches[0].log10_p
    assert shift == pytest.approx(1.0792, abs=1e-3)


def test_a_stored_suspect_and_an_identical_base(store):
    place = str(store / "store" / "seed-5.fingerprint")
    result = scan(place, find_bases([f"seed:5@{SMALL}", f"seed:6@{SMALL}"]))
    assert result.matches[0].is_identical and result.matches[0].verdict == "same-lineage"
    assert not result.matches[1].is_identical and result.matches[1].verdict == "unrelated"


def test_an_index_names_its_files_and_is_held_against_them(store, tmp_path):
    path = store / "store" / "seed-3.fingerprint"
    stored = fingerprint(f"seed:3@{SMALL}")
    rows = [{"file": str(path), "name": "three", "payload_digest": payload_digest(stored), "licence": "MIT"}]
    (tmp_path / "index.json").write_text(json.dumps({"fingerprints": rows}))
    (base,) = find_bases([str(tmp_path)])
    assert base.name == "three"
    assert scan(str(store / "suspect"), [base]).matches[0].base == "three"
    rows[0]["payload_digest"] = "0" * 64
    (tmp_path / "index.json").write_text(json.dumps({"fingerprints": rows}))
    with pytest.raises(InputError, match="fetch the store again"):
        scan(str(store / "suspect"), find_bases([str(tmp_path)]))
    (tmp_path / "index.json").write_text("[]")
    with pytest.raises(InputError, match="is no index"):
        find_bases([str(tmp_path)])


def test_the_command_writes_json_and_a_page(store, tmp_path, capsys):
    words = ["scan", str(store / "suspect"), str(store / "store"), "--quiet", "--page", str(tmp_path / "scan.html")]
    assert run([*words, "--json", str(tmp_path / "scan.json")]) == 0
    report = json.loads((tmp_path / "scan.json").read_text())
    assert set(report) == {"suspect", "matches", "num_bases", "num_tested", "alpha", "command", "provenance"}
    assert {"base", "verdict", "p_value", "log10_p", "components"} <= set(report["matches"][0])
    assert "seed-3" in (tmp_path / "scan.html").read_text()
    assert "shares an initialization with 1 of 12 bases: seed-3" in capsys.readouterr().out
