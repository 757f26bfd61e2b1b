"""From two references to a verdict: what the models settle, what is refused, and which test is asked for."""

import dataclasses
import functools
import json

import jax
import numpy as np
import pytest

from bornbiased_jax import model as models
from bornbiased_jax import progress
from bornbiased_jax.checkpoints import Checkpoint, open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.cli.seedprint import seedprint
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage import fingerprint, lineage_tests, payload_digest
from bornbiased_jax.lineage import output_fingerprint as prints
from bornbiased_jax.lineage.compared_model import ComparedModel
from bornbiased_jax.lineage.lineage_tests import TESTS, LineageTest, lineage_test
from bornbiased_jax.lineage.outputs import OutputOptions
from bornbiased_jax.lineage.probe_inputs import ProbeInputs, read_outputs
from bornbiased_jax.lineage.trace import trace as trace_by_default
from bornbiased_jax.lineage.verdict import undefined

SMALL = "llama-tiny,num_layers=1,d_model=32,d_ff=32,num_heads=2,num_kv_heads=2,vocab_size=64"
SHORT = f"{SMALL},positions=learned,max_seq_len=8"
PROBE = ProbeInputs(num_inputs=60, seq_len=6)
trace = functools.partial(trace_by_default, test="permutation")


@pytest.fixture(autouse=True)
def quiet():
    progress.set_quiet(True)


def ref(seed, model=SMALL):
    return f"seed:{seed}@{model}"


def test_the_commands_choices_are_the_tests():
    (choice,) = [option.type.choices for option in seedprint.params if option.name == "test"]
    assert list(choice) == list(TESTS)
    assert all(test.description in seedprint.params[2].help for test in TESTS.values())
    with pytest.raises(InputError, match="unknown test 'vibes': choose from auto, weights"):
        lineage_test("vibes")


@pytest.mark.slow
def test_the_default_length_fits_both_models():
    probe = ProbeInputs(num_inputs=60)
    for pair in ((ref(1, SHORT), ref(2)), (ref(2), ref(1, SHORT)), (ref(1, SHORT), ref(2, SHORT))):
        assert trace(*pair, probe=probe).detail["inputs"]["seq_len"] == 8
    assert probe.fitted(open_checkpoint(ref(1)).cfg).seq_len == 64
    with pytest.raises(InputError, match="8 learned positions"):
        trace(ref(1, SHORT), ref(2), probe=ProbeInputs(num_inputs=60, seq_len=9))


@pytest.mark.slow
def test_the_smaller_vocabulary_holds_for_both():
    few = SMALL.replace("vocab_size=64", "vocab_size=50")
    for pair in ((ref(1), ref(2, few)), (ref(1, few), ref(2))):
        assert trace(*pair, probe=PROBE).detail["inputs"]["vocab_size"] == 50
    nine = dataclasses.replace(PROBE, vocab_size=9)
    assert trace(ref(1), ref(2), probe=nine).detail["inputs"]["vocab_size"] == 9


@pytest.mark.slow
def test_base_and_suspect_keep_their_places():
    verdict = trace(ref(1), ref(2), probe=PROBE)
    assert (verdict.detail["base"], verdict.detail["suspect"]) == tuple(
        open_checkpoint(ref(seed)).description for seed in (1, 2)
    )
    # The population test replaces the base by fresh seeds of its architecture: with the two exchanged the
    # references, and so the score's null, are those of the other model.
    wide = SMALL.replace("d_ff=32", "d_ff=48")
    options = {"test": "population", "alpha": 0.2, "num_references": 9, "probe": PROBE}
    first, second = trace(ref(1), ref(2, wide), **options), trace(ref(2, wide), ref(1), **options)
    assert first.detail["statistic"] == pytest.approx(second.detail["statistic"])
    assert first.detail["null_mean"] != pytest.approx(second.detail["null_mean"])


@pytest.mark.slow
def test_alpha_is_the_tests_own_or_the_one_given(monkeypatch):
    assert trace(ref(1), ref(2), probe=PROBE).alpha == TESTS["permutation"].alpha == 0.01
    p = trace(ref(1), ref(2), probe=PROBE).p_value
    for alpha, decision in ((p * 1.01, "same-lineage"), (p * 0.99, "unrelated")):
        verdict = trace(ref(1), ref(2), probe=PROBE, alpha=alpha, num_permutations=9_999)
        assert (verdict.alpha, verdict.verdict) == (alpha, decision)
    monkeypatch.setattr(lineage_tests, "TESTS", {"permutation": dataclasses.replace(TESTS["permutation"], alpha=0.25)})
    assert trace(ref(1), ref(2), probe=PROBE).alpha == 0.25
    with pytest.raises(InputError, match="alpha"):
        trace(ref(1), ref(2), alpha=2.0)


@pytest.mark.slow
def test_options_reach_the_test_or_are_refused():
    verdict = trace(ref(1), ref(2), probe=PROBE, num_permutations=499, signs="free")
    assert (verdict.detail["num_permutations"], verdict.detail["signs"]) == (499, "free")
    assert "signs of coordinates" in verdict.detail["invariant_to"]
    with pytest.raises(InputError, match="--num-permutations is no option of --test paper"):
        trace("nowhere", "nowhere", test="paper", num_permutations=499)
    with pytest.raises(InputError, match="--num-references is no option"):
        trace("nowhere", "nowhere", num_references=499)
    with pytest.raises(InputError, match="20 references"):
        trace("nowhere", "nowhere", test="population", num_references=20)


def test_references_that_are_not_the_default_are_listed_as_a_choice(monkeypatch):
    nothing = undefined("population", "", num_inputs=9, alpha=0.01)
    monkeypatch.setattr("bornbiased_jax.lineage.trace._by_outputs", lambda *unused: nothing)
    stored = prints.OutputFingerprint(np.zeros((9, 4)), {}, None, "0" * 64, {}, {}, "")
    for count, words in ((150, ["num_references = 150"]), (200, []), (None, [])):
        verdict = trace_by_default(stored, stored, test="population", num_references=count)
        assert verdict.detail["exploratory"] == words


@pytest.mark.parametrize("neurons", ["many", 0, -3])
def test_neurons_that_are_no_number_are_refused(neurons):
    with pytest.raises(InputError, match=f"neurons={neurons!r} is not an integer from 1"):
        trace_by_default("nowhere", "nowhere", neurons=neurons)


def test_models_may_be_given_opened_stored_or_by_name(tmp_path):
    by_name = trace(ref(1), ref(2), probe=PROBE)
    opened = [open_checkpoint(ref(seed)) for seed in (1, 2)]
    stored = read_outputs(opened[0], PROBE.fitted(opened[0].cfg))
    path = prints.save_outputs(tmp_path / "a.fingerprint", stored)
    for base, suspect, probe in ((*opened, PROBE), (stored, opened[1], None), (path, ref(2), None)):
        verdict = trace(base, suspect, probe=probe)
        assert (verdict.p_value, verdict.z) == (by_name.p_value, by_name.z)
    with pytest.raises(InputError, match="--seq-len 6, not 7"):
        trace(path, ref(2), probe=ProbeInputs(seq_len=7))
    other = read_outputs(opened[1], dataclasses.replace(PROBE, input_seed=3).fitted(opened[1].cfg))
    with pytest.raises(InputError, match="different inputs"):
        trace(stored, other)
    with pytest.raises(InputError, match="without weights"):
        _ = ComparedModel(path).checkpoint
    # Vectors of two widths cannot even be the same.
    facts = {**stored.inputs, "kind": "gaussian"}
    narrow, wide = (dataclasses.replace(stored, outputs_ND=np.ones((60, D)), inputs=facts) for D in (32, 64))
    assert "cannot be fed to models of widths 32 and 64" in trace(narrow, wide).reason


def test_a_stored_fingerprints_layer_holds():
    base = open_checkpoint(ref(1))
    stored = read_outputs(base, PROBE.fitted(base.cfg), OutputOptions(layer=1))
    assert trace(stored, base).reason == "the two models have identical weights, bit for bit"
    with pytest.raises(InputError, match="--layer"):
        trace(stored, ref(2), test="population")


def test_unequal_widths_refused_before_computing(monkeypatch):
    monkeypatch.setattr(prints, "fingerprint_outputs", lambda *args, **options: pytest.fail("outputs were computed"))
    verdict = trace(ref(1), ref(1, SMALL.replace("d_model=32", "d_model=64")))
    assert verdict.verdict == "undefined" and "widths differ (32 and 64)" in verdict.reason


def of_weights(base, suspect, *, alpha, depth=0):
    assert isinstance(base, ComparedModel) and base.checkpoint.cfg.d_model == 32
    return undefined("w", f"{base.name} {suspect.name} {depth}", num_inputs=None, alpha=alpha)


def test_tests_of_weights_get_both_models(monkeypatch):
    here = f"{__name__}:"
    entries = {
        "w": LineageTest(f"{here}of_weights", needs="weights", description="", alpha=1e-4, options=("depth",)),
    }
    monkeypatch.setattr(lineage_tests, "TESTS", entries)
    verdict = trace(ref(1), ref(2), test="w", depth=3)
    assert (verdict.reason, verdict.alpha, verdict.num_inputs) == (f"{ref(1)} {ref(2)} 3", 1e-4, None)
    assert "N =" not in verdict.text()


def test_the_default_is_what_both_models_admit(tmp_path):
    stored = read_outputs(open_checkpoint(ref(1)), PROBE.fitted(open_checkpoint(ref(1)).cfg))
    assert trace_by_default(ref(1), ref(2)).test == "auto"
    assert trace_by_default(stored, ref(2)).test == trace_by_default(ref(2), stored).test == "permutation"
    # What only the outputs have, asks for them.
    assert trace_by_default(ref(1), ref(2), probe=PROBE, signs="free").test == "permutation"
    with pytest.raises(InputError, match="--align is no option of --test auto"):
        trace_by_default(ref(1), ref(2), align="rotation")


@pytest.mark.slow
def test_outputs_join_auto_when_inputs_are_asked_for():
    alone, joined = (trace_by_default(ref(1), ref(2), probe=probe) for probe in (None, PROBE))
    names = [row["name"] for row in alone.detail["tests"]]
    assert [row["name"] for row in joined.detail["tests"]] == [*names, "outputs"]
    assert (alone.num_inputs, joined.num_inputs) == (None, 60)
    rows = {row["name"]: row for row in joined.detail["tests"]}
    outputs = trace(ref(1), ref(2), probe=PROBE, alpha=1e-4)
    assert rows["outputs"]["p_value"] == pytest.approx(outputs.p_value, rel=1e-12)
    assert rows["outputs"]["z"] == outputs.z
    # Holm counts every piece of evidence, and parts of the models beside them.
    for verdict in (alone, joined):
        rows = [row for row in verdict.detail["tests"] if row["p_value"] is not None]
        least = min(row["p_value"] for row in rows)
        assert verdict.p_value >= min(1.0, least * len(verdict.detail["tests"]))
        assert verdict.p_value == pytest.approx(min(row["p_adjusted"] for row in rows))
    # Shared vectors are no evidence: undefined, and so no p of the battery.
    vectors = trace_by_default(ref(1), ref(2), probe=dataclasses.replace(PROBE, inputs="gaussian"))
    (row,) = [row for row in vectors.detail["tests"] if row["name"] == "outputs"]
    assert (row["verdict"], row["p_adjusted"]) == ("undefined", None)


@pytest.mark.slow
def test_notes_depend_on_the_inputs():
    for test in ("paper", "iclr"):
        entry = TESTS[test]
        on = {
            kind: " ".join(
                trace(ref(1), ref(2), test=test, probe=dataclasses.replace(PROBE, inputs=kind)).detail["notes"]
            )
            for kind in ("tokens", "gaussian")
        }
        assert entry.about_tokens in on["tokens"] and entry.about_tokens not in on["gaussian"]
        assert entry.about_vectors in on["gaussian"] and entry.about_vectors not in on["tokens"]
    assert trace(ref(1), ref(2), probe=PROBE).detail["null"] == "exact"
    assert trace(ref(1), ref(2), probe=dataclasses.replace(PROBE, inputs="gaussian")).detail["null"] == "approximate"


def test_json_has_the_keys_of_the_certified_p():
    value = trace(ref(1), ref(2), probe=PROBE).to_json()
    assert (value["labels"], value["align"], value["null"]) == ("coordinates", "none", "exact")
    assert value["log10_p_bound"] <= 0 and value["log10_p_moments"] <= 0
    assert value["log10_p"] == pytest.approx(np.log10(value["p_value"]))
    assert "permuted hidden units" in value["invariant_to"]
    null = {test: trace(ref(1), ref(2), test=test, probe=PROBE).detail["null"] for test in ("paper", "iclr")}
    assert set(null.values()) == {"approximate"}


def test_baselines_are_printed_and_written(tmp_path, capsys, refused):
    sizes = ["--num-inputs", "60", "--seq-len", "6", "--quiet", "--baselines"]
    permutation = ["--test", "permutation", *sizes]
    assert run(["seedprint", ref(1), ref(1), *permutation, "--json", str(tmp_path / "a.json")]) == 0
    said = capsys.readouterr().out
    value = json.loads((tmp_path / "a.json").read_text())
    assert [row["method"] for row in value["baselines"]] == ["intrinsic", "pcs", "ics", "phi_u", "awm"]
    for row in value["baselines"]:
        assert any(line.split()[:1] == [row["method"]] for line in said.splitlines())
    assert "pcs        1.0000  (same)" in said
    stored = tmp_path / "a.fingerprint"
    assert run(["fingerprint", "--outputs", ref(1), *sizes[:5], "--out", str(stored)]) == 0
    assert "--baselines compares weights" in refused(["seedprint", str(stored), ref(1), "--baselines", "--quiet"])


@pytest.mark.slow
def test_weights_that_overflow_are_undefined_with_the_reason():
    """A norm makes zeros of an infinite square: numbers of no meaning, from which no verdict may come."""
    base = open_checkpoint("seed:1@llama-tiny,num_layers=1,d_model=16,d_ff=16,vocab_size=64")
    params = {**base.params(), "embed": jax.tree.map(lambda leaf: leaf * 1e30, base.params()["embed"])}
    final = models.apply(base.cfg, params, np.arange(8, dtype=np.int32)[None]).final_BTD
    assert np.isfinite(final).all() and not np.asarray(final).any()
    huge = Checkpoint.from_params(base.config, params, reference="huge")
    probe = ProbeInputs(num_inputs=40, seq_len=4)
    for pair in ((base, huge), (huge, base)):
        verdict = trace_by_default(*pair, test="permutation", probe=probe)
        assert verdict.verdict == "undefined" and verdict.p_value is None
        assert "overflows float32 (the largest of them is" in verdict.reason


def test_a_payload_digest_commits_a_checkpoint_too():
    base = ref(1)
    payload = payload_digest(fingerprint(base))
    verdict = trace_by_default(base, ref(2), base_digest=payload, num_permutations=99)
    assert (verdict.detail["committed"], verdict.detail["committed_as"]) == (True, "payload")
    # The sketches that decide have a fresh key all the same.
    assert verdict.detail["sign_key"]
    with pytest.raises(InputError, match="or its fingerprint where that was made with settings"):
        trace_by_default(ref(3), base, base_digest=payload, num_permutations=99)
