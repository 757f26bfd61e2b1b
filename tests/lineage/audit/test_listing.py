"""Audits of listings: labels, grids, digests; no weights and no JAX."""

import json

import pytest

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


def kinds(report):
    return [finding["kind"] for finding in report["findings"]]


def suite(seeds=(1, 2), steps=(0, 100, 200, 300)):
    return {
        f"seed{seed}-step{step}": revision(f"a{seed}.{step}", f"b{seed}.{step}") for seed in seeds for step in steps
    }


def test_a_clean_listing_is_clean(tmp_path):
    revisions = suite() | {"main": revision("a1.300", "b1.300")}
    report = audit_listing(listing(tmp_path, revisions))
    assert report["clean"] and report["findings"] == [] and len(report["checkpoints"]) == 9


def test_duplicates_shards_shared_initializations_and_gaps(tmp_path):
    revisions = suite()
    revisions["seed2-step300"] = revision("a1.200", "b1.200")
    revisions["seed1-step100"] = revision("a2.100", "other")
    revisions["seed2-step0"] = revisions["seed1-step0"]
    del revisions["seed2-step200"]
    report = audit_listing(listing(tmp_path, revisions))
    by_kind = {finding["kind"]: finding for finding in report["findings"]}
    assert by_kind["shared-birth"]["subjects"] == ["seed1-step0", "seed2-step0"]
    assert by_kind["gap"]["subjects"] == ["seed2-step200"]
    copies = [finding for finding in report["findings"] if finding["kind"] == "duplicate"]
    assert {tuple(finding["subjects"]) for finding in copies} == {
        ("seed1-step200", "seed2-step300"),
        ("seed1-step100", "seed2-step100"),
    }
    assert "share 1 of 2 weight files" in copies[1]["text"]


@pytest.mark.parametrize(("steps", "kind"), [((100, 200), "inconclusive"), ((100, 200, 300), "duplicate")])
def test_what_the_only_two_checkpoints_of_a_run_both_hold_may_be_frozen(steps, kind, tmp_path):
    revisions = suite(steps=steps) | {"seed1-step200": revision("a1.100", "b1.200")}
    report = audit_listing(listing(tmp_path, revisions))
    assert [(row["kind"], row["subjects"]) for row in report["findings"]] == [
        (kind, ["seed1-step100", "seed1-step200"])
    ]
    assert report["clean"] == (kind == "inconclusive")


def test_parts_that_two_checkpoints_and_others_have_are_counted(tmp_path):
    """Of a, b and c, which have one file in common, a and b share another one: two in all."""
    shards = {"a": ("1", "2", "3"), "b": ("1", "2", "4"), "c": ("1", "5", "6"), "d": ("7", "8", "9")}
    report = audit_listing(listing(tmp_path, {f"{name}-step9": revision(*own) for name, own in shards.items()}))
    assert [finding["text"] for finding in report["findings"]] == [
        "a-step9, b-step9 and c-step9 share 1 of 3 weight files and not the others: model-1.safetensors.",
        "a-step9 and b-step9 share 2 of 3 weight files and not the others: model-2.safetensors, and 1 that further "
        "checkpoints have too.",
    ]


def test_a_final_model_named_as_its_run_may_be_the_last_step(tmp_path):
    revisions = suite()
    report = audit_listing(listing(tmp_path, revisions | {"seed1": revisions["seed1-step300"]}))
    assert report["clean"] and report["findings"] == []


@pytest.mark.parametrize(
    ("copies", "kind"),
    [(("seed1-step0", "seed1-step1"), "idle-step"), (("seed1-step1", "seed1-step2"), "duplicate"),
     (("seed1-step0", "seed2-step1"), "duplicate"), (("seed1-step0", "seed1-step1", "seed1-step2"), "duplicate"),
     (("seed1-step2", "seed1"), "duplicate")],
)  # fmt: skip
def test_a_first_step_at_a_learning_rate_of_0_is_named_and_no_defect(copies, kind, tmp_path):
    revisions = suite(steps=(0, 1, 2, 3))
    revisions |= {name: revisions[copies[0]] for name in copies}
    report = audit_listing(listing(tmp_path, revisions))
    assert kinds(report) == [kind] and report["clean"] == (kind == "idle-step")
    assert report["findings"][0]["subjects"] == list(copies)
    assert ("a first step at a learning rate of 0" in report["findings"][0]["text"]) == (kind == "idle-step")


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
def test_invalid_listing_refused(content, sentence, tmp_path, refused):
    path = tmp_path / "listing.json"
    path.write_text(content)
    message = refused(["audit", str(path)])
    assert sentence in message and message.count("\n") == 1


def test_a_revision_without_weights_is_named(tmp_path):
    report = audit_listing(
        listing(tmp_path, {"step0": [entry("config.json", "x")], "main": [], "step5": revision("a")})
    )
    assert kinds(report) == ["unreadable"] and report["findings"][0]["subjects"] == ["step0"] and not report["clean"]


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
        ([0, 1, 2, 4, 8, 16, 32, 128, 256, 512, 1000, 2000, 3000], [64]),
        ([0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000, 2000, 4000, 5000], [3000]),
        ([0, 1, 1000, 1001, 2000, 2001], []),
        ([0, 1, 10**30, 10**30 + 1], []),
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
        "writer-3/step100": ("writer-3", 100),
        "arbiter-7b": ("arbiter-7b", None),
    }.items():
        assert tuple(read_label(name)) == label, name
    assert at_step("seed100-step100", 100, 200) == "seed100-step200"
    assert at_step("run@seed=1,step=5", 5, 10) == "run@seed=1,step=10"


def test_files_that_hold_weights():
    assert is_weights("pytorch_model-00001-of-00002.bin") and is_weights("sub/model.safetensors")
    assert not is_weights("training_args.bin") and not is_weights("optimizer.pt") and not is_weights("tokenizer.json")
    assert not is_weights("global_step5/zero_pp_rank_0_mp_rank_00_optim_states.pt") and not is_weights("sampler.bin")


@pytest.mark.parametrize(
    ("names", "run_name"),
    [
        (["step0-tokens0B", "step1000-tokens4B", "step2000-tokens8B"], ""),
        (["stage2-ingredient1-step1000-tokens3B", "stage2-ingredient1-step2000-tokens5B"], "stage2-ingredient1"),
        (["TinyLlama-1.1B-intermediate-step-50K-105b", "TinyLlama-1.1B-intermediate-step-100K-210b"],
         "TinyLlama-1.1B-intermediate"),
        (["gpt--val_loss=2.10-step=1000-consumed_samples=25.0", "gpt--val_loss=1.9e-1-step=2000-consumed_samples=9"],
         "gpt"),
        (["iter_0001000", "iter_0002000"], ""),
        (["llama-2-7b/step100", "llama-2-7b/step200"], "llama-2-7b"),
        (["epoch=0-step=10", "epoch=1-step=20"], ""),
        (["step1_sft/checkpoint-500", "step1_sft/checkpoint-1000"], "step1_sft"),
    ],
)  # fmt: skip
def test_counters_that_grow_with_the_step_name_no_run(names, run_name):
    labels = [read_label(name) for name in names]
    assert {label.run for label in labels} == {run_name}
    assert len({label.step for label in labels}) == len(names)


def test_a_name_of_separators_alone_is_read_at_once():
    """Each separator was taken for the start of a counter, which is minutes for as many."""
    name = "-" * 200_000
    assert read_label(name) == (name, None)


def test_steps_in_thousands():
    assert read_label("model-step-50K-105b").step == 50_000 and read_label("step-2M").step == 2_000_000
    assert at_step("model-step-50K-105b", 50_000, 60_000) == "model-step-60K"
    assert at_step("step1000-tokens4B", 1000, 1500) == "step1500"


def test_one_checkpoint_per_run_is_not_clean(tmp_path):
    revisions = {f"v{number}x-step{number}": revision(f"a{number}") for number in range(1, 5)}
    report = audit_listing(listing(tmp_path, revisions))
    assert kinds(report) == ["one-per-run"] and not report["clean"]
    assert "--pattern" in report["findings"][0]["text"]
    # Several seeds at one step are no such suite.
    assert audit_listing(listing(tmp_path, suite(steps=(100,))))["clean"]


@pytest.mark.parametrize(("name", "step", "is_clean"), [("main", 300, True), ("main", 200, False), ("best", 200, True)])
def test_a_name_that_promises_the_last_step_contradicts_the_labels_where_it_holds_another(
    name, step, is_clean, tmp_path
):
    report = audit_listing(listing(tmp_path, suite(seeds=(1,)) | {name: revision(f"a1.{step}", f"b1.{step}")}))
    assert report["clean"] == is_clean
    assert is_clean or f"main holds the same weight files as seed1-step{step}" in report["findings"][0]["text"]
