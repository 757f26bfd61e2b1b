"""The initialization in the weights at its smallest scale; what verdicts quote of records is what the records say."""

import re
import types
from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.experiments.lineage import court
from bornbiased_jax.experiments.survival import birth_in_weights, persistence
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.lineage_tests import TESTS
from bornbiased_jax.lineage.matching import UNRELATED_AGREEMENT, Matching
from bornbiased_jax.model import apply
from bornbiased_jax.stats.terms import Term
from tests.experiments.smoke import committed, record_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return record_of(birth_in_weights.EXPERIMENT, tmp_path_factory.mktemp("out"))


def test_copies_with_other_noise_are_measured_again(monkeypatch):
    monkeypatch.setattr(persistence, "base_run", lambda context: Path("run"))
    monkeypatch.setattr(persistence, "corpora", lambda context: {"base": "text"})
    monkeypatch.setattr(persistence, "facts_of", lambda run: {})
    identities = []
    for noise in (0.5, 1.0):
        context = types.SimpleNamespace(
            settings={**birth_in_weights.EXPERIMENT.settings["smoke"], "noise": noise},
            cached=lambda name, identity, compute: identities.append(identity) or {},
            quiet=True,
        )
        birth_in_weights.run(context)
    assert identities[0] != identities[1]


def rows(record, relation, test):
    return [row for row in record["result"]["rows"] if (row["relation"], row["test"]) == (relation, test)]


@pytest.mark.parametrize("test", birth_in_weights.TESTS)
def test_own_initialization_identified_and_others_not(record, test):
    own, other = rows(record, birth_in_weights.OWN, test), rows(record, birth_in_weights.OTHER, test)
    assert len(own) == len(other) == 3
    assert all(row["base"] == row["suspect"] and row["verdict"] == "same-lineage" for row in own)
    assert all(row["log10_p_bound"] < -30 for row in own)
    assert all(row["base"] != row["suspect"] and row["verdict"] == "unrelated" for row in other)


def test_hiding_evades_what_looks_at_coordinates_or_units_and_nothing_else(record):
    hidden = {
        test: {row["verdict"] for row in rows(record, birth_in_weights.HIDDEN, test)} for test in birth_in_weights.TESTS
    }
    assert hidden == {
        "coordinates": {"unrelated"},
        "rotation": {"unrelated"},
        "matched units": {"same-lineage"},
    }


def test_agreement_tells_copies_from_models_trained_apart(record):
    agreements = record["result"]["agreements"]
    assert len(agreements[birth_in_weights.TRAINED]) == 3
    assert max(row["mean"] for row in agreements[birth_in_weights.TRAINED]) < 0.2
    assert min(row["mean"] for row in agreements["hidden copy"]) == 1.0
    assert min(row["mean"] for row in agreements["hidden copy with noise"]) > 0.9


def test_a_hidden_model_computes_the_same(record):
    cfg = preset("llama-tiny", **record["settings"]["changes"])
    params = init_seed(cfg, 3)
    ids = np.arange(24, dtype=np.int32).reshape(2, 12)
    logits = np.asarray(apply(cfg, params, ids).logits_BTV)
    hidden = np.asarray(apply(*birth_in_weights.hide(cfg, params, 3), ids).logits_BTV)
    np.testing.assert_allclose(hidden, logits, rtol=0, atol=1e-4 * np.abs(logits).max())
    changed = np.asarray(apply(*birth_in_weights.hide(cfg, params, 3, "noise:0.5"), ids).logits_BTV)
    assert np.abs(changed - logits).max() > 0.1 * np.abs(logits).max()


def test_the_agreement_that_verdicts_quote_is_the_records():
    rows = committed("birth_in_weights")["result"]["agreements"][birth_in_weights.TRAINED]
    measured = max(max(row["mean"] for row in rows), court.largest_unrelated_agreement(committed("court")))
    # Both have 128 neurons a block or more.
    assert measured <= UNRELATED_AGREEMENT[128]
    # Training on another processor moves the largest of 24 pairs a little: verdicts quote the larger one.
    for entry in committed("power")["result"]["unrelated"]:
        largest = entry["largest_agreement"]
        assert largest <= UNRELATED_AGREEMENT[entry["neurons"]] <= 1.22 * largest


@pytest.mark.parametrize(("neurons", "threshold", "largest"), [(63, 0.5, None), (64, 0.44, 0.11), (300, 0.104, 0.026)])
def test_a_threshold_is_four_times_the_largest_of_unrelated_models_of_that_width(neurons, threshold, largest):
    matching = Matching(0.5, {1: 0.5}, (Term(np.zeros((neurons, neurons)), 1), Term(np.zeros((512, 512)), 2)))
    assert matching.threshold == pytest.approx(threshold) and matching.largest_unrelated == largest


@pytest.mark.parametrize(("inputs", "field"), [("tokens", "about_tokens"), ("gaussian", "about_vectors")])
@pytest.mark.parametrize(("test", "rows"), [("paper", ("paper t", "paper U")), ("iclr", ("iclr",))])
def test_the_rates_that_verdicts_quote_are_the_records(test, rows, inputs, field):
    text = getattr(TESTS[test], field)
    for row in committed("calibration")["result"]["pooled"]:
        if row["inputs"] == inputs and row["test"] in rows:
            assert f"{row['num_pairs']:,}" in text
            rate = next(level["rate"] for level in row["rates"] if level["level"] == 0.01)
            message = 1.0 if "every one" in text else float(re.search(r"([\d.]+)%", text)[1]) / 100
            assert rate == pytest.approx(message, abs=5e-4)


@pytest.mark.parametrize(
    ("test", "rows"), [("paper", ("Algorithm 1, t, tokens", "Algorithm 1, U, tokens")), ("iclr", ("iclr, tokens",))]
)
def test_the_rates_between_trained_models_that_verdicts_quote_are_the_records(test, rows):
    message = float(re.search(r"trained apart[^%]* up to ([\d.]+)%", TESTS[test].about_tokens)[1]) / 100
    measured = [
        level["rate"]
        for row in committed("court")["result"]["tests"]
        for level in row["rates"]
        if row["test"] in rows and row["kind"].startswith("trained, ") and level["level"] == 0.01
    ]
    assert len(measured) == 3 * len(rows) and max(measured) == pytest.approx(message, abs=5e-4)
