"""``bornbiased seedprint --test auto|weights`` from the command line."""

import json
import shutil

import pytest

from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.cli.main import run
from bornbiased_jax.lineage.evidence import KINDS, OUTPUTS
from tests.fixtures.configs import edit_config
from tests.lineage.descendants import config, descend, everything

SIZES = dict(num_layers=2, d_model=48, d_ff=64, vocab_size=96)
INITIAL = "@llama-tiny," + ",".join(f"{name}={value}" for name, value in SIZES.items())


@pytest.fixture(scope="module")
def suspect(tmp_path_factory):
    """A descendant of seed 7 with everything hidden that can be for free, as a Hugging Face directory."""
    folder = tmp_path_factory.mktemp("weights") / "suspect"
    cfg, params = everything(*descend(config(**SIZES), 7))
    export_hugging_face(cfg, params, folder)
    return str(folder)


@pytest.mark.slow
def test_choices_are_labeled(seedprint, suspect):
    chosen = seedprint(f"seed:7{INITIAL}", suspect, "--test", "weights", "--labels", "units", "--alpha", "0.01")
    assert chosen["exploratory"] == ["alpha = 0.01", "labels = units"]
    assert sum("Exploratory: alpha = 0.01, labels = units was chosen" in note for note in chosen["notes"]) == 1
    plain = seedprint(f"seed:7{INITIAL}", suspect, "--test", "weights")
    assert plain["exploratory"] == [] and not any("Exploratory" in note for note in plain["notes"])
    assert (plain["alpha"], plain["num_permutations"]) == (1e-4, 9_999)


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--test", "permutation", "--labels", "units"], "--labels is no option of --test permutation"),
        (["--sign-key", "xy"], "--sign-key 'xy' is not hexadecimal"),
        (["--sign-key", "ab" * 65], "a sign key of 65 bytes is longer than the 64"),
        (["--neurons", "some"], "--neurons some"),
        (["--num-permutations", "9"], "9 permutations are too few"),
    ],
)
def test_bad_weight_test_options_refused_by_name(suspect, refused, arguments, reason):
    assert reason in refused(["seedprint", suspect, suspect, *arguments, "--quiet"])


@pytest.mark.slow
def test_two_checkpoints_have_a_key_of_their_own_and_stored_fingerprints_theirs(seedprint, suspect, tmp_path, capsys):
    base = f"seed:7{INITIAL}"
    first = seedprint(base, suspect)
    assert len(first["sign_key"]) == 32 and first["sign_key"] == seedprint(base, suspect)["sign_key"]
    assert seedprint(base, base)["sign_key"] != first["sign_key"]
    assert seedprint(base, suspect, "--sign-key", "00ff")["sign_key"] == "00ff"
    stored = str(tmp_path / "base.fingerprint")
    assert run(["fingerprint", base, "--out", stored, "--json", str(tmp_path / "facts.json"), "--quiet"]) == 0
    facts = json.loads((tmp_path / "facts.json").read_text())
    capsys.readouterr()
    public = seedprint(stored, suspect, "--base-digest", facts["digest"])
    assert (public["sign_key"], public["committed_as"], public["verdict"]) == ("", "payload", first["verdict"])
    assert any("public signs" in note for note in public["notes"])
    assert seedprint(stored, suspect, "--base-digest", facts["weights_digest"])["committed_as"] == "weights"
    assert run(["seedprint", stored, suspect, "--base-digest", "0" * 64, "--quiet"]) == 2
    assert "name the model whose digest was published" in capsys.readouterr().err


def test_auto_needs_nothing_but_two_models(seedprint, suspect):
    verdict = seedprint(f"seed:7{INITIAL}", suspect)
    assert verdict["test"] == "auto"
    assert (verdict["verdict"], verdict["null"], verdict["identity"]) == ("same-lineage", "exact", None)
    # Every piece of evidence in the weights; outputs are asked for.
    assert [row["name"] for row in verdict["tests"]] == [name for name in KINDS if name != OUTPUTS]
    assert {"component", "z", "log10_p", "verdict"} <= set(verdict["components"][0])
    assert {"test", "labels", "z", "log10_p_bound"} <= set(verdict["evidence"][0])
    for row in verdict["tests"]:
        assert {"name", "verdict", "p_value", "log10_p", "p_adjusted", "z", "null", "permuted", "evaded_by"} <= set(row)
    assert verdict["evaded_by"] and verdict["permuted"] and verdict["invariant_to"]
    assert any(f"Chance is measured by permuting {verdict['permuted']}." in note for note in verdict["notes"])


@pytest.mark.slow
def test_copies_by_file_and_by_seed(seedprint, suspect, tmp_path):
    shutil.copytree(suspect, tmp_path / "copy")
    copied = seedprint(suspect, str(tmp_path / "copy"))
    assert (copied["verdict"], copied["identity"]) == ("same-lineage", "files")
    assert copied["reason"] == "the two models' weight files are the same, byte for byte"
    edit_config(tmp_path / "copy", rope_theta=500.0)
    for test in ("auto", "weights"):
        other = seedprint(suspect, str(tmp_path / "copy"), "--test", test)
        message = f"{other['reason']} {' '.join(other['notes'])}".lower()
        assert "weight files are the same, byte for byte; settings differ: rope_theta" in message
    assert seedprint(suspect, f"{suspect}/.")["reason"].startswith("the base is the suspect: both are read from")
    initial = seedprint(f"seed:7{INITIAL}", f"seed:7{INITIAL}")
    assert (initial["identity"], initial["reason"]) == (
        "tensors",
        "the base is the suspect: both are the initialization of seed 7",
    )
