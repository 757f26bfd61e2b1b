"""Disputed models from end to end: architectures that this package does not run, component by component."""

import json
import re
import shutil

import ml_dtypes
import numpy as np
import pytest

from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.trace import trace
from tests.checkpoints.architectures import noisy, tensors_of, with_tensors, write_model
from tests.fixtures.configs import edit_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow

# What the bound certifies needs no more.
FEW = 99


def _verdicts(verdict):
    return {row["component"]: row["verdict"] for row in verdict.detail["components"]}


def _has(verdict, sentence):
    return any(sentence in note for note in verdict.detail["notes"])


EXPERT = "model.layers.{}.block_sparse_moe.experts.{}.{}.weight"
MATRICES = {"w1": "gate", "w3": "up", "w2": "down"}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return write_model("mixtral", tmp_path_factory.mktemp("mixture") / "model", 2)


def test_experts_that_began_as_a_dense_mlp_are_named(tmp_path, mixture):
    dense = write_model("mistral", tmp_path / "dense", 1)
    of_dense, tensors = tensors_of(dense), tensors_of(mixture)
    copies = {
        EXPERT.format(block, expert, name): of_dense[f"model.layers.{block}.mlp.{matrix}_proj.weight"]
        for block in range(2)
        for expert in (1, 2)
        for name, matrix in MATRICES.items()
    }
    upcycled = with_tensors(mixture, tmp_path / "upcycled", tensors | noisy(copies))
    verdict = trace(dense, upcycled, num_permutations=FEW)
    assert verdict.verdict == "same-lineage"
    assert [_verdicts(verdict)[f"experts/{number}"] for number in (1, 2, 3, 4)] == [
        *("unrelated", "same-lineage", "same-lineage", "unrelated")
    ]
    assert _has(verdict, "Experts 2 to 3 agree, each by itself, with the dense MLP of the other model.")
    assert trace(dense, mixture, num_permutations=FEW).verdict == "unrelated"


def test_experts_in_another_order_are_paired(tmp_path, mixture):
    tensors, order = noisy(tensors_of(mixture)), [2, 0, 3, 1]
    moved = dict(tensors)
    for block in range(2):
        for place, expert in enumerate(order):
            for name in MATRICES:
                moved[EXPERT.format(block, place, name)] = tensors[EXPERT.format(block, expert, name)]
        router = f"model.layers.{block}.block_sparse_moe.gate.weight"
        moved[router] = tensors[router][order]
    verdict = trace(mixture, with_tensors(mixture, tmp_path / "moved", moved), num_permutations=FEW)
    verdicts = _verdicts(verdict)
    assert {verdicts[f"experts/{number}"] for number in (1, 2, 3, 4)} == {"same-lineage"}
    assert verdicts["router"] == "undefined"
    assert _has(verdict, "in another order in blocks 1 to 2: in block 1 the base's 1, 2, 3, 4 are its 2, 4, 1, 3.")


@pytest.mark.parametrize(
    ("inherited", "sentence"),
    [
        ("vision", "the vision tower shares its initialization with the base's (p < 10⁻³⁰⁰); none was found in the"),
        ("language", "the language model shares its initialization with the base's (p < 10⁻³⁰⁰); none was found in"),
    ],
)
def test_inherited_part_of_a_model_with_a_tower_is_told_from_the_others(tmp_path, inherited, sentence):
    base, other = (write_model("llava", tmp_path / str(seed), seed) for seed in (1, 2))
    reference, actual = tensors_of(base), tensors_of(other)
    wanted = ("language", "lm_head") if inherited == "language" else ("vision_tower",)
    copies = {name: array for name, array in reference.items() if any(part in name for part in wanted)}
    mixed = with_tensors(other, tmp_path / "mixed", actual | noisy(copies))
    result = trace(base, mixed, num_permutations=FEW)
    assert result.verdict == "same-lineage" and result.reason.startswith(sentence)
    # The tests of each component are told apart.
    tests = {(row["name"], row["component"]): row["verdict"] for row in result.detail["tests"]}
    assert len(tests) == len(result.detail["tests"])
    assert {component for (_, component), verdict in tests.items() if verdict == "same-lineage"} == {inherited}
    is_vision = inherited == "vision"
    assert (_verdicts(result)["vision/all"] == "same-lineage") == is_vision
    assert (_verdicts(result)["all"] == "same-lineage") != is_vision


def test_commands_choose_a_set_of_weights(tmp_path, capsys, refused):
    base, other = write_model("phi3", tmp_path / "base", 1), write_model("phi3", tmp_path / "other", 2)
    shutil.copy(other / "model.safetensors", base / "other.safetensors")

    def run_json(*words):
        assert run([*map(str, words), "--json", "-"]) == 0
        return json.loads(capsys.readouterr().out)

    assert run_json("seedprint", base, other, "--quiet")["verdict"] == "unrelated"
    chosen = run_json("seedprint", base, other, "--quiet", "--file", "other.safetensors")
    assert chosen["identity"] == "files"
    both = ("--file", "model.safetensors", "--file", "other.safetensors")
    assert run_json("seedprint", base, base, "--quiet", *both)["verdict"] == "unrelated"
    assert "none.safetensors" in refused(["seedprint", str(base), str(other), "--file", "none.safetensors"])
    digest = run_json("digest", other)["digest"]
    assert (
        digest
        == run_json("digest", base, "--file", "other.safetensors")["digest"]
        != run_json("digest", base)["digest"]
    )
    matches = run_json("scan", base, other, base, "--quiet")["matches"]
    assert [match["verdict"] for match in matches] == ["same-lineage", "unrelated"]


def test_field_that_changes_nothing_is_left_out_by_name(tmp_path, capsys):
    folder = write_model("llama", tmp_path / "model", 1)
    edit_config(folder, flavor=3)
    with pytest.raises(InputError, match="--ignore-field flavor"):
        open_checkpoint(folder)
    assert open_checkpoint(folder, ignore_fields=["flavor"]).cfg.num_layers == 2
    with pytest.raises(InputError, match="no field 'flavour'"):
        open_checkpoint(folder, ignore_fields=["flavour"])
    words = ["fingerprint", str(folder), "--outputs", "--num-inputs", "4", "--seq-len", "4", "--quiet"]
    assert run([*words, "--out", str(tmp_path / "outputs")]) == 2
    assert run([*words, "--out", str(tmp_path / "outputs"), "--ignore-field", "flavor"]) == 0
    capsys.readouterr()


def test_exact_rounded_and_near_copies_are_told_apart(tmp_path):
    base = write_model("qwen3", tmp_path / "base", 1)
    tensors = tensors_of(base)

    def reason(place, changed):
        copy = with_tensors(base, tmp_path / place, {f"_orig_mod.{name}": array for name, array in changed.items()})
        verdict = trace(base, copy, num_permutations=FEW)
        assert verdict.verdict == "same-lineage"
        return verdict.detail["identity"], verdict.reason

    # Another tensor first in the file: other bytes, the same numbers.
    kind, sentence = reason("equal", tensors)
    assert kind == "tensors" and sentence == "the two models have the same weights, tensor by tensor"
    rounded = {name: array.astype(ml_dtypes.bfloat16).astype(np.float32) for name, array in tensors.items()}
    kind, sentence = reason("rounded", rounded)
    assert kind == "rounded"
    assert re.match(r"the weights are equal after rounding to bfloat16 \(largest difference 0\.0\d+ of", sentence)
    kind, sentence = reason("near", noisy(tensors, 1e-3))
    assert kind is None
    assert re.match(r"the weights are nearly equal \(largest difference 0\.00\d+ of .*; the two models share", sentence)
    kind, sentence = reason("far", noisy(tensors))
    assert kind is None and "equal" not in sentence


def test_same_function_requires_equal_settings_and_vectors(tmp_path):
    base = write_model("qwen3", tmp_path / "base", 1)
    tensors = tensors_of(base)
    # Neurons in another order: no tensor is near, and the function is the same.
    moved = dict(tensors)
    for block in range(2):
        for name, axis in (("gate", 0), ("up", 0), ("down", 1)):
            key = f"model.layers.{block}.mlp.{name}_proj.weight"
            moved[key] = np.flip(tensors[key], axis).copy()
    same = with_tensors(base, tmp_path / "same", moved)
    assert trace(base, same, num_permutations=FEW).reason.endswith("the same function, written otherwise")
    # Norms of heads that undo each other in every score.
    factors = {"q_norm": np.float32(1.25), "k_norm": np.float32(0.8)}
    opposed = {
        key: array * next((factor for part, factor in factors.items() if part in key), np.float32(1))
        for key, array in moved.items()
    }
    verdict = trace(base, with_tensors(base, tmp_path / "norms", opposed), num_permutations=FEW)
    assert verdict.reason.endswith("same logits on random tokens; norms of heads differ: key_norm, query_norm")
    # A constant of the norms that is too small for logits to show.
    edit_config(same, rms_norm_eps=1.1e-6)
    verdict = trace(base, same, num_permutations=FEW)
    assert "settings differ: norm_eps" in verdict.reason and "the same function" not in verdict.reason
