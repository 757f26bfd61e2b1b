"""``bornbiased seedprint --test weights|bilinear|rank`` from the command line."""

import json
import shutil

import pytest

from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.cli.main import run
from tests.lineage.weights.descendants import config, descend, everything

SIZES = dict(num_layers=2, d_model=48, d_ff=64, vocab_size=96)
BIRTH = "@llama-tiny," + ",".join(f"{name}={value}" for name, value in SIZES.items())


@pytest.fixture(scope="module")
def suspect(tmp_path_factory):
    """A descendant of seed 7 with everything hidden that can be for free, as a Hugging Face directory."""
    folder = tmp_path_factory.mktemp("weights") / "suspect"
    cfg, params = everything(*descend(config(**SIZES), 7))
    export_hugging_face(cfg, params, folder)
    return str(folder)


@pytest.fixture
def seedprint(capsys):
    def call(*arguments):
        assert run(["seedprint", *arguments, "--json", "-", "--quiet"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.mark.slow
def test_hidden_from_coordinates_and_found_by_matching_units(seedprint, suspect):
    plain = seedprint(f"seed:7{BIRTH}", suspect, "--test", "weights")
    assert (plain["verdict"], plain["labels"], plain["align"]) == ("unrelated", "coordinates", "none")
    assert plain["alpha"] == 1e-4 and plain["by_module"][0]["module"] == "embed"
    found = seedprint(f"seed:7{BIRTH}", suspect, "--test", "weights", "--align", "units")
    assert (found["verdict"], found["null"], found["labels"]) == ("same-lineage", "exact", "units")
    assert found["p_value"] < 1e-4 and found["suspect"] == suspect
    assert seedprint(f"seed:8{BIRTH}", suspect, "--test", "weights", "--align", "units")["verdict"] == "unrelated"


def test_choices_are_labelled(seedprint, suspect):
    found = seedprint(f"seed:7{BIRTH}", suspect, "--test", "weights", "--align", "rotation", "--alpha", "0.01")
    assert found["exploratory"] == ["alpha = 0.01", "align = rotation"]
    assert sum("Exploratory: alpha = 0.01, align = rotation was chosen" in note for note in found["notes"]) == 1
    plain = seedprint(f"seed:7{BIRTH}", suspect, "--test", "bilinear")
    assert plain["exploratory"] == [] and not any("Exploratory" in note for note in plain["notes"])
    assert (plain["alpha"], plain["num_permutations"]) == (1e-4, 9_999)


def test_bilinear_and_rank(seedprint, suspect):
    assert seedprint(f"seed:7{BIRTH}", suspect, "--test", "bilinear")["verdict"] == "same-lineage"
    assert seedprint(f"seed:8{BIRTH}", suspect, "--test", "bilinear")["verdict"] == "unrelated"
    assert seedprint(suspect, suspect, "--test", "bilinear")["verdict"] == "undefined"
    few = seedprint(f"seed:7{BIRTH}", suspect, "--test", "rank", "--num-references", "9")
    assert few["verdict"] == "undefined" and "ask for 99" in few["reason"]


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--test", "weights", "--align", "rotation", "--labels", "coordinates"], "cannot be the labels"),
        (["--test", "permutation", "--align", "rotation"], "--align is no option of --test permutation"),
        (["--test", "rank"], "rank places a birth among births"),
    ],
)
def test_bad_calls_say_what_is_wrong(suspect, capsys, arguments, reason):
    assert run(["seedprint", suspect, suspect, *arguments, "--quiet"]) == 2
    assert reason in capsys.readouterr().err


def test_the_tokens_of_a_text_alone(seedprint, tmp_path, capsys):
    (tmp_path / "seen.txt").write_text("abcdefghijklmnop" * 3)
    base = f"seed:7{BIRTH}".replace("vocab_size=96", "vocab_size=256")
    for test in ("weights", "bilinear"):
        found = seedprint(base, base, "--test", test, "--text", str(tmp_path / "seen.txt"))
        assert found["num_tokens"] == 16
    assert run(["seedprint", f"seed:7{BIRTH}", base, "--test", "bilinear", "--text", str(tmp_path / "seen.txt")]) == 2
    assert "neither model comes with a tokenizer" in capsys.readouterr().err


def test_auto_needs_nothing_but_two_models(seedprint, suspect):
    found = seedprint(f"seed:7{BIRTH}", suspect)
    assert found["test"] == "auto"
    assert (found["verdict"], found["null"], found["identity"]) == ("same-lineage", "exact", None)
    assert [row["name"] for row in found["tests"]] == ["coordinates", "rotation", "matched units", "bilinear"]
    for row in found["tests"]:
        assert {"name", "verdict", "p_value", "log10_p", "p_adjusted", "z", "null", "permuted", "evaded_by"} <= set(row)
    assert found["evaded_by"] and found["permuted"] and found["invariant_to"]
    assert any(f"The null permutes {found['permuted']};" in note for note in found["notes"])


def test_copies_by_file_and_by_seed(seedprint, suspect, tmp_path):
    shutil.copytree(suspect, tmp_path / "copy")
    copied = seedprint(suspect, str(tmp_path / "copy"))
    assert (copied["verdict"], copied["identity"]) == ("same-lineage", "files")
    assert copied["reason"] == "the two models' weight files are the same, byte for byte"
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config | {"rope_theta": 500.0}))
    for test in ("auto", "weights"):
        other = seedprint(suspect, str(tmp_path / "copy"), "--test", test)
        said = f"{other['reason']} {' '.join(other['notes'])}".lower()
        assert "weight files are the same, byte for byte; settings differ: rope_theta" in said
    assert seedprint(suspect, f"{suspect}/.")["reason"].startswith("the base is the suspect: both are read from")
    born = seedprint(f"seed:7{BIRTH}", f"seed:7{BIRTH}")
    assert (born["identity"], born["reason"]) == ("tensors", "the base is the suspect: both are the birth of seed 7")
