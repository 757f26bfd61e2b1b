"""Disputed models as directories that other tools read, and the summary of what such tools say of them."""

import json

import numpy as np
import pytest

from benchmarks import peers_in_disputes as peers
from benchmarks.peers_in_disputes import RELATED
from bornbiased_jax.checkpoints.by_role import read_by_role
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments.lineage import descendants_families, disputes, disputes_recipes, unrelated_models
from bornbiased_jax.experiments.lineage.disputes_recipes import KINDS, Release
from bornbiased_jax.lineage.fingerprint_pass import fingerprint
from tests.experiments.test_court import noisy_initializations
from tests.experiments.test_dispute_benchmark import CFG, SMOKE, model, moved


def same_sketches(sketches, expected):
    assert set(sketches.coordinates) == set(expected.coordinates)
    for name, sketch in expected.coordinates.items():
        np.testing.assert_array_equal(sketches.coordinates[name], sketch)


def read_without_tokenizer(folder):
    """With a tokenizer the draws of a sketch go by the strings of tokens, and by their ids without."""
    (folder / "tokenizer.json").unlink()
    return fingerprint(read_by_role(str(folder)))


@pytest.mark.slow
def test_a_mixture_is_written_so_that_its_names_are_read(tmp_path):
    release = Release(*disputes_recipes.upcycled(2, model(1), 0))
    folder = peers.write_release(tmp_path / "model", release, np.arange(CFG.vocab_size))
    read = read_without_tokenizer(folder)
    same_sketches(read.components["language"], release.fingerprint.components["language"])
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen2MoeForCausalLM"] and config["num_experts"] == 2


@pytest.mark.slow
def test_a_tower_is_written_next_to_the_language_model_and_the_tokenizer_has_its_ids(tmp_path):
    order_V = disputes_recipes.vocabulary_order(CFG.vocab_size)
    folder = peers.write_release(tmp_path / "model", Release(*model(1), tower=model(2)), order_V)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    assert sorted(vocabulary.values()) == sorted(order_V[:256].tolist())
    read = read_without_tokenizer(folder)
    assert len(read.components) == 2
    expected = Release(*model(1), tower=model(2)).fingerprint.components
    for name, component in read.components.items():
        same_sketches(component, expected["language" if name == "language" else "vision"])


def fake_scores(peers, pairs, folder):
    """The first tool tells guilty pairs of the first kind apart and goes by their order, the second has no score."""
    rows = []
    for index, (base, suspect) in enumerate(pairs):
        same = int(base.name) == int(suspect.name) - SMOKE["models"]
        row = {name: {"score": same + index / 1000, "decision": decided[0]} for name, decided in RELATED.items()}
        row["weightscope (unchanged entries)"] = {"score": None, "decision": "architecture_mismatch"}
        rows.append(row)
    return {"versions": {"tool": "1.0"}, "rows": rows}


@pytest.mark.slow
def test_scores_are_summarized_as_those_of_the_experiment(tmp_path, monkeypatch):
    monkeypatch.setattr(unrelated_models, "train_run", noisy_initializations)
    for module in (disputes_recipes, descendants_families):
        monkeypatch.setattr(module, "fit", moved)
    monkeypatch.setattr(peers, "score", fake_scores)
    findings = peers.measure(tmp_path, "unused", scale="smoke")
    by_name = {test["test"]: test for test in findings["tests"]}
    assert list(by_name) == list(RELATED)
    count = SMOKE["models"]
    kit, scope = by_name["Provenance Kit"], by_name["weightscope (unchanged entries)"]
    # Of the first kind both directories are written in order: bases, then suspects.
    assert kit["kinds"][0]["auc"]["rate"] == 1.0
    assert [kind["kind"] for kind in kit["decisions"]] == list(KINDS)
    assert all(kind["guilty"] == count and kind["innocent"] == count * (count - 1) for kind in kit["decisions"])
    assert all(kind["num_undefined"] == count for kind in scope["kinds"])
    assert all(kind["guilty"] == kind["innocent"] == 0 for kind in scope["decisions"])
    assert (kit["least_guilty"], kit["largest_innocent"]) == (0.004, 0.05)
    assert scope["least_guilty"] is scope["largest_innocent"] is None
    shown = peers.tables(findings)
    assert [len(table.rows) for table in shown] == [len(RELATED)] * 3
    pairs = len(list(disputes.pairs_of(count)))
    folders = list((tmp_path / "models").iterdir())
    # Every model once: bases, bases with towers, and a suspect of every kind.
    assert len(folders) == (2 + len(KINDS)) * count and pairs == len(KINDS) * count**2


def test_an_environment_without_the_tools_is_refused(tmp_path):
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho \"No module named 'provenancekit'\" >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(InputError, match="No module named 'provenancekit'"):
        peers.score(tmp_path, [], tmp_path)
