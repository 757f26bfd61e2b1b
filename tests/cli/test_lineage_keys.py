"""Keys of the JSON of ``seedprint``, ``whichseed`` and ``digest``: other programs read them, so each set is fixed."""

import json

import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.lineage.lineage_tests import TESTS

SMALL = "llama-tiny,num_layers=1,num_heads=2,d_model=32,d_ff=48,vocab_size=64"
INPUTS = "--num-inputs 50 --seq-len 4"
# What every verdict has, whichever test gave it.
DECISION = {"verdict", "reason", "p_value", "log10_p", "z", "test", "num_inputs", "alpha"}
RESTS_ON = {"null", "labels", "align", "invariant_to", "log10_p_bound", "log10_p_moments", "by_module", "identity"}
RESTS_ON |= {"permuted", "evaded_by", "notes", "scope", "exploratory", "base", "suspect", "base_digest", "committed"}
RESTS_ON |= {"committed_as", "suspect_digest"}
EVERY = DECISION | RESTS_ON
PERMUTED = {"statistic", "null_mean", "null_std", "num_permutations", "enumerated", "null_histogram"}
SINGLE = PERMUTED | {"num_tokens", "tokens_matched_by", "statistic_form", "sign_key"}
OUTPUTS = {"inputs", "width", "identical_weights", "identical_outputs", "identical_tensors", "reordered_tensors"}
OUTPUTS |= {"num_tensors", "relabelled_coordinates", "negated_coordinates"}
TAUS = {"num_dims", "num_dims_each", "mean_tau", "std_tau"}
OWN = {
    "auto": PERMUTED
    | {"tests", "by_part", "shared_embeddings", "identical_tensors", "num_tensors", "tokens_matched_by", "blocks"}
    | {"agreement", "agreement_threshold", "largest_unrelated_agreement", "agreement_by_block", "sign_key"}
    | {"components", "evidence", "left_out", "sketch_difference"},
    "weights": SINGLE,
    "weights --labels units": SINGLE,
    f"permutation {INPUTS}": PERMUTED | OUTPUTS | {"signs", "exceedances", "correlation", "mean_correlation"},
    f"paper {INPUTS}": OUTPUTS
    | TAUS
    | {"p_t", "log10_p_t", "p_u", "log10_p_u", "decided_by", "null_std_tau", "num_null_draws"},
    f"iclr {INPUTS}": OUTPUTS | TAUS,
    f"population {INPUTS} --num-references 101": OUTPUTS
    | {"statistic", "null_mean", "null_std", "num_references", "replaces"},
}
OF_THE_BATTERY = {"name", "verdict", "reason", "p_value", "log10_p", "z", "test", "p_adjusted", "log10_p_adjusted"}
OF_THE_BATTERY |= {"null", "labels", "align", "permuted", "invariant_to", "evaded_by", "agreement"}
OF_THE_BATTERY |= {"log10_p_bound", "log10_p_moments"}
WHICHSEED = {"suspect", "seed", "p_value", "log10_p", "num_seeds", "best", "runner_up", "num_entries", "corrected_for"}
WHICHSEED |= {"alpha", "reason", "confirmed", "command", "model", "provenance"}
CONFIRMED = {
    "verdict",
    "reason",
    "test",
    "labels",
    "align",
    "null",
    "p_value",
    "log10_p",
    "z",
    "alpha",
    "corrected_for",
}


@pytest.fixture
def command(capsys):
    def call(*words):
        assert run([*words, "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


def _has_rows(value, name):
    """Rows of a name and a z each."""
    assert value and all(set(row) == {name, "z"} for row in value)
    assert all(isinstance(row[name], str) and isinstance(row["z"], float | None) for row in value)


@pytest.mark.parametrize("test", OWN)
def test_the_keys_of_a_verdict(test, command):
    found = command("seedprint", f"seed:1@{SMALL}", f"seed:2@{SMALL}", "--test", *test.split(), "--quiet")
    assert set(found) == EVERY | OWN[test] | {"command", "models", "provenance"}
    assert found["verdict"] in ("same-lineage", "unrelated") and found["null"] in ("exact", "approximate", "population")
    assert isinstance(found["invariant_to"], list) and isinstance(found["by_module"], list)
    if test.startswith(("auto", "weights")):
        _has_rows(found["by_module"], "module")
        assert any(row["module"].startswith("blocks/1/mlp") for row in found["by_module"])
    if "by_part" in found:
        _has_rows(found["by_part"], "part")
    for row in found.get("tests", ()):
        assert set(row) == OF_THE_BATTERY


def test_every_test_has_its_keys_listed():
    assert {test.split()[0] for test in OWN} == set(TESTS)


def test_same_file_twice_reported_by_every_test(command, tmp_path):
    copy = str(tmp_path / "a")
    assert "digest" in command("derive", f"seed:1@{SMALL}", "--change", "noise:0.1", "--out", copy)
    assert command("seedprint", copy, copy, "--test", "weights", "--quiet")["identity"] == "files"


@pytest.mark.slow
def test_the_keys_of_whichseed_and_digest(command):
    found = command("whichseed", f"seed:3@{SMALL}", "--seeds", "0:8", "--quiet")
    assert (set(found), set(found["confirmed"])) == (WHICHSEED, CONFIRMED)
    for candidate in (found["best"], found["runner_up"]):
        assert set(candidate) == {"seed", "correlation", "t", "log10_p", "p_value"}
    assert set(found["num_entries"]) == {"search", "decision"}
    none = command("whichseed", f"seed:3@{SMALL}", "--seeds", "7:8", "--quiet")
    assert set(none) == WHICHSEED and none["seed"] is none["runner_up"] is none["confirmed"] is None
    assert set(command("digest", f"seed:3@{SMALL}")) == {
        "digest",
        "checkpoint",
        "config",
        "tensors",
        "command",
        "provenance",
    }
