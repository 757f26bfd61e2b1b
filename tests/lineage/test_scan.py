"""One fingerprint against many: related bases found, the others screened, a store's index held against its files."""

import json
from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import find_smollm2, open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprint, load_fingerprint, payload_digest, save_fingerprint
from bornbiased_jax.lineage.battery import Options, compare_weights
from bornbiased_jax.lineage.scan import BUILTIN, INDEX, find_bases, scan, screening_threshold
from bornbiased_jax.lineage.trace import trace
from bornbiased_jax.parameters import flatten, unflatten
from bornbiased_jax.results.scans import Scan
from bornbiased_jax.stats.terms import Term, bound_of, z_of
from tests.lineage.fingerprinted import model, source

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


def test_close_bounds_decide_where_quick_ones_do_not(store):
    """At a level between the two p, at one that the quick bound reaches, and at one that a count of orders reaches."""
    base, suspect = load_fingerprint(store / "store" / "seed-3.fingerprint"), fingerprint(str(store / "suspect"))
    quick, close = (compare_weights(base, suspect, Options(is_quick=is_quick)).adjusted() for is_quick in (True, False))
    assert -300 < close < quick < -50
    for log10_alpha, expected in (((close + quick) / 2, close), (quick + 1, quick), (-2.0, close)):
        bases = find_bases([str(store / "store" / "seed-3.fingerprint")])
        (match,) = scan(str(store / "suspect"), bases, alpha=10.0**log10_alpha).matches
        assert (match.verdict, match.log10_p) == ("same-lineage", pytest.approx(expected, rel=1e-12))


@pytest.mark.parametrize("num_bases", [1000, 100_000])
@pytest.mark.parametrize("size", [16, 64, 256])
def test_no_base_below_the_screen_would_be_found(size, num_bases):
    """Scores of normal numbers, their own label's moved so that z lies just below the threshold; and far above it."""
    rng = np.random.default_rng(size)
    threshold, level = screening_threshold(1e-4, num_bases), np.log10(1e-4 / num_bases)
    for noise in (1.0, 0.1):
        scores_nn = rng.standard_normal((size, size), np.float32)
        own_n = noise * np.diagonal(scores_nn)
        bounds = {}
        for target in (threshold - 0.05, 3 * threshold):
            np.fill_diagonal(scores_nn, own_n - own_n.mean())
            # z is about linear in a shift of the diagonal, which also raises the variance: bisect.
            low, high = 0.0, 1e3
            for _ in range(60):
                shift = (low + high) / 2
                shifted_nn = scores_nn + np.eye(size, dtype=np.float32) * np.float32(shift)
                low, high = (shift, high) if z_of([Term(shifted_nn)]) < target else (low, shift)
            bounds[target] = bound_of([Term(shifted_nn)])
        below, above = bounds.values()
        assert below > level
        # Few labels reach no such z.
        assert size < 256 or above < level


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


def test_an_empty_folder_is_refused_as_a_store(tmp_path):
    with pytest.raises(InputError, match="is an empty folder: put fingerprints of weights there, or name a checkpoint"):
        find_bases([f"seed:1@{SMALL}", str(tmp_path)])


def test_what_both_were_given_without_a_seed_is_no_match(tmp_path):
    """Tables of tokens that began as one formula, which has no name, and were trained apart."""
    places = []
    for seed in (1, 2):
        cfg, params = model("gpt2", seed)
        arrays = dict(flatten(params))
        angles_VD = np.arange(1, cfg.vocab_size + 1)[:, None] * np.arange(1, cfg.d_model + 1)
        arrays["embed/embedding"] = arrays["embed/embedding"] + np.sin(0.7 * angles_VD**2).astype(np.float32) / 20
        places.append(tmp_path / f"{seed}.fingerprint")
        save_fingerprint(places[-1], fingerprint(source((cfg, unflatten(arrays)))))
    (match,) = scan(str(places[0]), find_bases([str(places[1])])).matches
    assert match.verdict == "undefined" and match.log10_p < -4
    result = Scan(scan(str(places[0]), find_bases([str(places[1]), f"seed:1@{SMALL}"])))
    assert f"Undefined for 1 of 2 bases: {places[1]}." in result.summary()[1]


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
    with pytest.raises(InputError, match="take the store anew, or correct its index"):
        scan(str(store / "suspect"), find_bases([str(tmp_path)]))
    # So is a checkpoint in the place of a fingerprint.
    rows[0]["file"] = str(store / "suspect")
    (tmp_path / "index.json").write_text(json.dumps({"fingerprints": rows}))
    with pytest.raises(InputError, match="take the store anew, or correct its index"):
        scan(str(store / "suspect"), find_bases([str(tmp_path)]))
    for content, sentence in (("[]", "is no index"), ("[" * 100_000, "is not readable as JSON")):
        (tmp_path / "index.json").write_text(content)
        with pytest.raises(InputError, match=sentence):
            find_bases([str(tmp_path)])


def test_the_command_writes_json_and_a_page(store, tmp_path, capsys):
    words = ["scan", str(store / "suspect"), str(store / "store"), "--quiet", "--page", str(tmp_path / "scan.html")]
    assert run([*words, "--json", str(tmp_path / "scan.json")]) == 0
    report = json.loads((tmp_path / "scan.json").read_text())
    facts = {"suspect", "suspect_digest", "matches", "num_bases", "num_tested", "alpha"}
    assert set(report) == facts | {"command", "provenance"}
    assert {"base", "digest", "verdict", "p_value", "log10_p", "components"} <= set(report["matches"][0])
    assert report["suspect_digest"] == open_checkpoint(store / "suspect").digest()
    assert "seed-3" in (tmp_path / "scan.html").read_text()
    assert "shares an initialization with 1 of 12 bases: seed-3" in capsys.readouterr().out


def test_the_builtin_store_lists_its_models_with_license_and_digests():
    bases = find_bases([BUILTIN])
    folder = Path(bases[0].place).parent
    rows = json.loads((folder / INDEX).read_text())["fingerprints"]
    assert {path.name for path in folder.iterdir()} == {INDEX, *(row["file"] for row in rows)}
    assert "SmolLM2-135M-Instruct" in {base.name for base in bases}
    for base, row in zip(bases, rows, strict=True):
        assert row["license"] == "Apache-2.0" and len(row["source_sha256"]) == 64
        stored = load_fingerprint(Path(base.place))
        assert payload_digest(stored) == base.payload_digest == row["payload_digest"]
        # Kilobytes, by token strings, and no path of the machine that made it.
        assert Path(base.place).stat().st_size <= 1_000_000
        assert stored.settings.token_labels == "strings" and stored.source.description == base.name


def test_a_model_is_scanned_against_the_builtin_store(capsys, tmp_path):
    assert run(["scan", f"seed:1@{SMALL}", BUILTIN, "--quiet", "--json", str(tmp_path / "matches.json")]) == 0
    matches = json.loads((tmp_path / "matches.json").read_text())["matches"]
    assert "SmolLM2-135M-Instruct" in {match["base"] for match in matches}
    assert {match["verdict"] for match in matches} <= {"unrelated", "undefined"}


@pytest.mark.nightly
def test_the_builtin_store_knows_smollm2(tmp_path):
    """The file from the package index, and a noisy copy of it with its blocks at other places."""
    path = find_smollm2()
    if path is None:
        pytest.skip("SmolLM2 is not installed")
    words = ["derive", str(path), "--change", "noise:0.3", "--change", "drop-layers:4,9"]
    assert run([*words, "--out", str(tmp_path / "suspect")]) == 0
    for suspect, is_identical in ((path, True), (tmp_path / "suspect", False)):
        first = scan(str(suspect), find_bases([BUILTIN])).matches[0]
        assert (first.base, first.verdict) == ("SmolLM2-135M-Instruct", "same-lineage")
        assert first.is_identical is is_identical


def test_files_of_a_store_that_are_not_read_are_named_and_a_cut_fingerprint_is_refused(store, tmp_path, capsys):
    folder = tmp_path / "store"
    folder.mkdir()
    data = (store / "store" / "seed-1.fingerprint").read_bytes()
    (folder / "a.fingerprint").write_bytes(data)
    (folder / "notes.txt").write_text("nothing")
    progress.set_quiet(False)
    assert [base.name for base in find_bases([str(folder)])] == ["a"]
    assert "left out, as no fingerprints of weights: notes.txt" in capsys.readouterr().err
    # Cut within its numbers, or within its header.
    for length in (len(data) - 100, 200):
        (folder / "b.fingerprint").write_bytes(data[:length])
        bases = find_bases([str(folder)])
        assert [base.name for base in bases] == ["a", "b"]
        with pytest.raises(InputError, match="b.fingerprint is not a readable fingerprint"):
            scan(str(folder / "a.fingerprint"), bases)
        with pytest.raises(InputError, match="b.fingerprint is not a readable fingerprint"):
            trace(str(folder / "a.fingerprint"), str(folder / "b.fingerprint"))
