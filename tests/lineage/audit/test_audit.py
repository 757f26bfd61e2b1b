"""Audits of folders: each thing that users of published suites reported, named; nothing found in clean ones."""

import re
import shutil
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from scipy.stats import kstest

from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.checkpoints.roles import Role
from bornbiased_jax.config import preset
from bornbiased_jax.lineage.audit.audit import audit_folder
from bornbiased_jax.lineage.audit.folder import RunOrigin
from bornbiased_jax.lineage.audit.labels import Label
from bornbiased_jax.lineage.audit.scheme import _deviations
from bornbiased_jax.lineage.audit.summary import moments_of
from bornbiased_jax.lineage.audit.ties import _equal_matrices
from bornbiased_jax.parameters import unflatten
from tests.fixtures.configs import edit_config
from tests.fixtures.gguf_files import convert
from tests.fixtures.suites import CFG, drifted, initialization, kinds, only, trajectory, write, write_suite
from tests.tiers import nightly_except

STEPS = (0, 100, 200, 300)


@pytest.mark.slow
def test_a_clean_suite_is_clean(tmp_path):
    seeds = 1, 2
    write_suite(tmp_path, seeds, steps=STEPS)
    report = audit_folder(tmp_path)
    assert report["clean"] and report["findings"] == []
    own = [pair for pair in report["pairs"] if len({name[:5] for name in pair["checkpoints"]}) == 1]
    assert all(pair["tied"] and pair["p_value"] < 1e-8 for pair in own)
    assert not any(pair["tied"] for pair in report["pairs"] if pair not in own)
    assert {tuple(edge["between"][0].split("-"))[0] for edge in report["graph"]["edges"]} == {f"seed{s}" for s in seeds}
    assert all(edge["from"] is None for edge in report["graph"]["edges"]), "names alone give no direction"


@pytest.mark.slow
def test_clean_suites_are_clean(tmp_path):
    """Several seeds and steps, three architectures; family-wise 0.01 would allow one of six at p = 0.06."""
    changes = ({}, {"norm": "layernorm", "gated_mlp": False, "num_kv_heads": 2}, {"tie_embeddings": True})
    wrong = []
    for number in range(6):
        cfg = CFG.replace(**changes[number % 3])
        place = tmp_path / str(number)
        for seed in (2 * number, 2 * number + 1):
            for step, flat in trajectory(seed, cfg=cfg, steps=STEPS[:3]).items():
                write(place, f"seed{seed}-step{step}", flat, cfg)
        wrong += audit_folder(place)["findings"]
    assert not wrong


@pytest.mark.slow
def test_one_branch_under_two_labels(tmp_path):
    runs = write_suite(tmp_path, steps=STEPS)
    write(tmp_path, "seed2-step300", runs[1][300])
    report = audit_folder(tmp_path)
    assert only(report, "duplicate")["subjects"] == ["seed1-step300", "seed2-step300"]
    assert "byte for byte" in only(report, "duplicate")["text"]
    # The last checkpoint has no neighbor after it; its initialization tells whose it is.
    assert only(report, "parentage")["subjects"] == ["seed2-step300"] and not report["clean"]


@pytest.mark.parametrize("how", ["signed zeros", "bfloat16"])
def test_equal_but_for_signed_zeros_or_the_number_format(how, tmp_path):
    runs = write_suite(tmp_path, (1,), steps=STEPS)
    flat = runs[1][300]
    if how == "signed zeros":
        flat["blocks/mlp/up/kernel"][0, 0, :4] = 0.0
        write(tmp_path, "seed1-step300", flat)
        copy = {path: np.where(leaf == 0, np.float32(-0.0), leaf) for path, leaf in flat.items()}
    else:
        copy = {path: leaf.astype(ml_dtypes.bfloat16) for path, leaf in flat.items()}
    export_hugging_face(CFG, unflatten(copy), tmp_path / "seed9-step300")
    report = audit_folder(tmp_path)
    near = only(report, "near-duplicate")
    assert near["subjects"] == ["seed1-step300", "seed9-step300"] and how.split()[-1] in near["text"]
    assert "duplicate" not in kinds(report) and not report["clean"]


@pytest.mark.parametrize("kind", nightly_except(["F16", "BF16"], "BF16"))
def test_a_gguf_file_in_half_precision_holds_the_same_numbers_once_rounded(kind, tmp_path):
    runs = write_suite(tmp_path / "suite", (1,), steps=STEPS[:2])
    assert runs
    source = tmp_path / "suite" / "seed1-step100"
    convert(tmp_path / "suite" / "seed1-step200.gguf", source)
    convert(tmp_path / "suite" / "seed2-step200.gguf", source, kind=kind)
    report = audit_folder(tmp_path / "suite")
    near = [finding for finding in report["findings"] if finding["kind"] == "near-duplicate"]
    others = ("seed1-step100", "seed1-step200.gguf")
    assert [finding["subjects"] for finding in near] == [[name, "seed2-step200.gguf"] for name in others]
    form = {"F16": "float16", "BF16": "bfloat16"}[kind]
    assert all(f"once both are in {form}, in which seed2-step200.gguf is stored" in row["text"] for row in near)
    # Vectors are in single precision there, and the first file is a copy as it is.
    assert "but for 5 tensors that are equal as they are" in near[0]["text"]
    assert only(report, "duplicate")["subjects"] == ["seed1-step100", "seed1-step200.gguf"]


@pytest.mark.slow
def test_a_checkpoint_with_a_part_of_another_model(tmp_path):
    runs = write_suite(tmp_path, steps=STEPS)
    first_shard = ("embed/embedding", "blocks/attention/query/kernel")
    write(tmp_path, "seed2-step200", runs[2][200] | {path: runs[1][300][path] for path in first_shard})
    report = audit_folder(tmp_path)
    shared = only(report, "duplicate")
    assert set(shared["subjects"]) == {"seed1-step300", "seed2-step200"} and "share 3 of" in shared["text"]
    names = ["model.embed_tokens.weight", *(f"model.layers.{layer}.self_attn.q_proj.weight" for layer in (0, 1))]
    assert all(name in shared["text"] for name in names) and "/" not in shared["text"]


def test_content_of_a_seed_that_is_not_here(tmp_path):
    write_suite(tmp_path, (1,), steps=(*STEPS, 400))
    write(tmp_path, "seed1-step200", trajectory(99)[200])
    report = audit_folder(tmp_path)
    broken = only(report, "break")
    assert broken["subjects"] == ["seed1-step200"] and kinds(report) == {"break"}
    # By its distances, before any test of lineage.
    assert "times as far" in broken["text"]


@pytest.mark.slow
def test_a_seed_whose_steps_are_not_from_its_own_untrained_model(tmp_path):
    runs = write_suite(tmp_path, steps=STEPS)
    for step, flat in trajectory(1, data=5, steps=STEPS).items():
        if step:
            write(tmp_path, f"seed2-step{step}", flat)
    report = audit_folder(tmp_path)
    wrong = only(report, "parentage")
    assert wrong["subjects"] == ["seed2-step100", "seed2-step200", "seed2-step300"] and wrong["p_value"] < 1e-8
    assert "seed1-step0" in wrong["text"] and kinds(report) == {"parentage"} and runs


def test_untrained_model_that_is_not_here_is_not_decided(tmp_path):
    """A test controls false ties, never false differences."""
    write_suite(tmp_path, (1,), steps=STEPS)
    write(tmp_path, "seed1-step0", initialization(77))
    report = audit_folder(tmp_path)
    assert kinds(report) == {"inconclusive"} and report["clean"]
    assert only(report, "inconclusive")["subjects"] == ["seed1-step100", "seed1-step200", "seed1-step300"]


@pytest.mark.slow
def test_seeds_of_one_untrained_model_with_other_data(tmp_path):
    for data in (0, 5):
        for step, flat in trajectory(1, data=data, steps=STEPS).items():
            write(tmp_path, f"seed{data}-step{step}", flat)
    report = audit_folder(tmp_path)
    assert kinds(report) == {"shared-birth"} and report["clean"]
    assert only(report, "shared-birth")["subjects"] == ["seed0-step0", "seed5-step0"]
    assert report["runs"][0]["data"] == "not known"


@pytest.mark.slow
def test_tables_drawn_once_for_all_seeds_are_no_parentage(tmp_path):
    shared = ("embed/embedding", "head/kernel")
    table = initialization(50)
    for seed in (1, 2):
        flat = initialization(seed) | {path: table[path] for path in shared}
        for step in STEPS[:3]:
            write(tmp_path, f"seed{seed}-step{step}", flat)
            flat = drifted(flat, 10 * seed + step)
    report = audit_folder(tmp_path)
    assert kinds(report) == {"shared-birth"} and "drawn once" in only(report, "shared-birth")["text"]
    assert not any(pair["tied"] for pair in report["pairs"] if len({name[:5] for name in pair["checkpoints"]}) == 2)


@pytest.mark.slow
def test_frozen_tensors_are_no_duplicates(tmp_path):
    runs = write_suite(tmp_path, (1,), steps=STEPS)
    for step, flat in runs[1].items():
        write(tmp_path, f"seed1-step{step}", flat | {"embed/embedding": runs[1][0]["embed/embedding"]})
    assert audit_folder(tmp_path)["clean"]
    # Another run that has none of it does not make it a copy.
    other = tmp_path / "both"
    for step, flat in write_suite(other, (1, 2), steps=STEPS)[1].items():
        write(other, f"seed1-step{step}", flat | {"embed/embedding": runs[1][0]["embed/embedding"]})
    assert audit_folder(other)["clean"]
    shutil.rmtree(other)
    # Of two checkpoints nothing tells a frozen tensor from a copied one, unless it is declared.
    for step in (200, 300):
        for path in sorted((tmp_path / f"seed1-step{step}").iterdir()):
            path.unlink()
        (tmp_path / f"seed1-step{step}").rmdir()
    assert kinds(audit_folder(tmp_path)) == {"inconclusive"}
    assert audit_folder(tmp_path, frozen=re.compile("^embed/"))["clean"]


def test_tables_that_are_declared_frozen_tie_no_runs(tmp_path):
    cfg = preset("gpt2-tiny", num_layers=1, num_heads=2, d_model=32, d_ff=64, vocab_size=128, positions="learned")
    tables = {path: leaf for path, leaf in initialization(1, cfg=cfg).items() if path.endswith("/embedding")}
    for seed in (1, 2):
        write(tmp_path, f"seed{seed}-step0", initialization(seed, cfg=cfg) | tables, cfg)
    assert sorted(tables) == ["embed/embedding", "positions/embedding"]
    patterns = (None, re.compile("/embedding$"), re.compile(r"\bw[tp]e\b"))
    reports = [audit_folder(tmp_path, frozen=frozen) for frozen in patterns]
    assert [kinds(report) for report in reports] == [{"shared-birth"}, set(), set()]
    assert reports[0]["pairs"] == reports[1]["pairs"] and not reports[0]["pairs"][0]["tied"]


def test_experts_are_equal_where_all_experts_of_a_block_are():
    def summary(digests):
        records = [SimpleNamespace(path=role.path, digest=digest, is_evidence=True) for role, digest in digests.items()]
        source = SimpleNamespace(roles=list(digests))
        return SimpleNamespace(fingerprint=SimpleNamespace(tensors=records), source=source)

    experts = {Role("language", name, "kernel", 1, expert, ()): "a" for expert in (1, 2) for name in ("up", "down")}
    others = {
        Role("language", "embedding", "embedding", None, None, ()): "a",
        Role("language", "router", "kernel", 1, None, ()): "a",
        Role("language", "up", "kernel", 1, None, (), is_shared=True): "a",
        Role("vision", "embedding", "kernel", None, None, ()): "a",
        Role("language", "norm", "scale", 1, None, (), module="mlp_norm"): "a",
    }
    changed = {**experts, **others, Role("language", "up", "kernel", 1, 1, ()): "b"}
    equal = _equal_matrices(summary(experts | others), summary(changed))
    assert equal == {(None, "embedding"), (1, "router"), (1, "shared_up"), (1, "down")}


@pytest.mark.parametrize("stated", [None, 0.02])
def test_untrained_model_with_another_standard_deviation(stated, tmp_path):
    flat = initialization(1)
    flat["blocks/mlp/up/kernel"] *= np.float32(1.25)
    write(tmp_path, "step0", flat)
    write(tmp_path, "step100", drifted(flat, 3))
    if stated is not None:
        edit_config(tmp_path / "step0", initializer_range=stated)
    report = audit_folder(tmp_path)
    wrong = only(report, "init-law")
    assert wrong["subjects"] == ["step0"] and wrong["p_value"] < 0.01 and not report["clean"]
    assert (
        "model.layers.*.mlp.up_proj.weight has standard deviation 0.02" in wrong["text"] and "head" not in wrong["text"]
    )


def test_a_stated_range_is_what_counts(tmp_path):
    flat = {path: leaf * np.float32(1.0 if "scale" in path else 2.0) for path, leaf in initialization(1).items()}
    write(tmp_path, "step0", flat)
    assert kinds(audit_folder(tmp_path)) == {"init-law"}
    edit_config(tmp_path / "step0", initializer_range=0.04)
    assert audit_folder(tmp_path)["clean"]


def test_two_schemes_in_one_suite_are_named(tmp_path):
    """As PolyPythias, drawn by NeoX's rules, beside a model of the same suite drawn with 0.02 everywhere."""
    for scheme in ("neox", "normal-0.02"):
        write(tmp_path, f"{scheme}-step0", initialization(1, CFG.replace(init=scheme)))
    report = audit_folder(tmp_path)
    named = only(report, "init-law")
    assert named["subjects"] == ["neox-step0"]
    assert "is drawn by the scheme neox, and its configuration states another" in named["text"]


def test_norms_that_are_off_tell_of_no_other_scheme(tmp_path):
    flat = initialization(1, CFG.replace(init="normal-0.02"))
    scaled = {path: leaf * np.float32(0.5 if path.endswith("scale") else 1.0) for path, leaf in flat.items()}
    write(tmp_path, "step0", scaled)
    text = only(audit_folder(tmp_path), "init-law")["text"]
    name = "model.layers.*.input_layernorm.weight"
    assert text.startswith(f"step0 is not drawn as its configuration says: {name} should be 1 and")
    assert "scheme" not in text


def test_neurons_in_pairs_have_half_the_draws():
    """The standard deviation of mirrored neurons is less certain: a sound one was found to be off too often."""
    cfg = CFG.replace(init="gpt2-scaled-mirrored", d_model=64, d_ff=176)
    item = SimpleNamespace(label=Label("seed=1", 0), origin=RunOrigin(1, True, {}))
    p_values = []
    for seed in range(300):
        drawn = 0.02 * np.random.default_rng(seed).standard_normal((2, 64, 88), np.float32)
        roles = [
            Role("language", "gate", "kernel", layer + 1, None, (), name=f"blocks/mlp/gate/kernel/{layer}")
            for layer in range(2)
        ]
        moments = {
            role.path: moments_of(np.concatenate([leaf, -leaf], axis=1))
            for role, leaf in zip(roles, drawn, strict=True)
        }
        source = SimpleNamespace(roles=roles)
        summary = SimpleNamespace(item=item, opened=SimpleNamespace(cfg=cfg), moments=moments, source=source)
        [group] = _deviations(summary)
        p_values.append(group.p_value)
    assert kstest(p_values, "uniform").pvalue > 1e-3


def sharded(seed, parts=8):
    """An initialization with the first part of each hidden unit axis in every part's place, from a draw of its own."""
    flat = initialization(seed)
    for path, axis in (("gate", 2), ("up", 2), ("down", 1)):
        kernel = flat[f"blocks/mlp/{path}/kernel"]
        first = np.split(kernel, parts, axis=axis)[0]
        flat[f"blocks/mlp/{path}/kernel"] = np.concatenate([first] * parts, axis=axis)
    return flat


def test_untrained_model_whose_shards_are_equal_is_named_and_its_standard_deviation_is_not(tmp_path):
    flat = sharded(1)
    # A deviation that would be blamed in an initialization of independent entries.
    flat["blocks/mlp/up/kernel"] *= np.float32(1.25)
    write(tmp_path, "seed1-step0", flat)
    write(tmp_path, "seed1-step100", drifted(flat, 3))
    write(tmp_path, "seed2-step0", initialization(2))
    report = audit_folder(tmp_path)
    assert kinds(report) == {"repeats"} and not report["clean"]
    repeats = only(report, "repeats")
    assert repeats["subjects"] == ["seed1-step0"] and "the neurons of each block in 8 parts" in repeats["text"]
    # Constants are compared as everyone's are.
    flat["final_norm/scale"] = flat["final_norm/scale"] + np.float32(0.5)
    write(tmp_path, "seed1-step0", flat)
    assert "model.norm.weight should be 1" in only(audit_folder(tmp_path), "init-law")["text"]
