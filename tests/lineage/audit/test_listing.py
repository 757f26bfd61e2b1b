"""Audits of listings: labels, grids, digests; no weights and no JAX."""

import json

import pytest

from bornbiased_jax.cli.main import run
from bornbiased_jax.lineage.audit.gaps import missing_steps
from bornbiased_jax.lineage.audit.labels import at_step, read_label
from bornbiased_jax.lineage.audit.listing import audit_listing, is_weights


def entry(path, digest):
    return {"type": "file", "path": path, "size": 10, "oid": f"git-{digest}", "lfs": {"oid": digest, "size": 10}}


def revision(*shards):
    files = [entry(f"model-{index}.safetensors", digest) for index, digest in enumerate(shards, 1)]
    return [*files, entry("config.json", "same"), {"type": "directory", "path": "logs", "oid": "x"}]


def listing(tmp_path, revisions):
    path = tmp_path / "listing.json"
    path.write_text(json.dumps({"revisions": revisions}))
    return path


def kinds(found):
    return [finding["kind"] for finding in found["findings"]]


def suite(seeds=(1, 2), steps=(0, 100, 200, 300)):
    return {
        f"seed{seed}-step{step}": revision(f"a{seed}.{step}", f"b{seed}.{step}") for seed in seeds for step in steps
    }


def test_a_clean_listing_is_clean(tmp_path):
    revisions = suite() | {"main": revision("a1.300", "b1.300")}
    found = audit_listing(listing(tmp_path, revisions))
    assert found["clean"] and found["findings"] == [] and len(found["checkpoints"]) == 9


def test_duplicates_shards_shared_births_and_gaps(tmp_path):
    revisions = suite()
    revisions["seed2-step300"] = revision("a1.200", "b1.200")
    revisions["seed1-step100"] = revision("a2.100", "other")
    revisions["seed2-step0"] = revisions["seed1-step0"]
    del revisions["seed2-step200"]
    found = audit_listing(listing(tmp_path, revisions))
    by_kind = {finding["kind"]: finding for finding in found["findings"]}
    assert by_kind["shared-birth"]["subjects"] == ["seed1-step0", "seed2-step0"]
    assert by_kind["gap"]["subjects"] == ["seed2-step200"]
    copies = [finding for finding in found["findings"] if finding["kind"] == "duplicate"]
    assert {tuple(finding["subjects"]) for finding in copies} == {
        ("seed1-step200", "seed2-step300"),
        ("seed1-step100", "seed2-step100"),
    }
    assert "share 1 of 2 weight files" in copies[1]["text"]


def test_a_listing_of_154_branches_is_audited_without_weights(tmp_path, capsys):
    path = listing(tmp_path, suite(seeds=range(1, 12), steps=range(0, 1400, 100)))
    assert run(["audit", str(path), "--strict"]) == 0
    assert "154 checkpoints of 11 runs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("[]", "is no listing"),
        ('{"revisions": {"a": 3}}', "is no listing"),
        ('{"revisions": {}}', "lists no revision"),
        ('{"revisions": {"a": [3]}}', "an entry of a has no path"),
        ('{"revisions": {"a": [{"path": "x.bin"}]}}', "x.bin of a has no digest"),
        ("{", "not readable as JSON"),
    ],
)
def test_what_is_no_listing_is_said(content, sentence, tmp_path, capsys):
    path = tmp_path / "listing.json"
    path.write_text(content)
    assert run(["audit", str(path)]) == 2
    said = capsys.readouterr().err
    assert sentence in said and said.count("\n") == 1


def test_a_revision_without_weights_is_named(tmp_path):
    found = audit_listing(listing(tmp_path, {"step0": [entry("config.json", "x")], "main": [], "step5": revision("a")}))
    assert kinds(found) == ["unreadable"] and found["findings"][0]["subjects"] == ["step0"] and not found["clean"]


@pytest.mark.parametrize(
    ("steps", "missing"),
    [
        ([0, 100, 200, 300], []),
        ([0, 100, 300, 400], [200]),
        ([0, 100, 200, 300, 600], [400, 500]),
        ([0, 100, 200, 400], []),
        ([0, 10, 20, 30, 40, 100, 200, 300], []),
        ([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 3000], []),
        ([0, 1, 2, 4, 16, 32], [8]),
        ([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 4000, 5000], [3000]),
        ([5], []),
        ([], []),
    ],
)
def test_gaps_of_one_grid(steps, missing):
    assert missing_steps(steps) == missing


def test_labels():
    for name, label in {
        "global_step512": ("", 512),
        "seed3/step-9": ("seed3", 9),
        "pythia-70m-seed1@step1000": ("pythia-70m-seed1", 1000),
        "stage2": ("stage2", None),
    }.items():
        assert tuple(read_label(name)) == label, name
    assert at_step("seed100-step100", 100, 200) == "seed100-step200"
    assert at_step("run@seed=1,step=5", 5, 10) == "run@seed=1,step=10"


def test_files_that_hold_weights():
    assert is_weights("pytorch_model-00001-of-00002.bin") and is_weights("sub/model.safetensors")
    assert not is_weights("training_args.bin") and not is_weights("optimizer.pt") and not is_weights("tokenizer.json")
