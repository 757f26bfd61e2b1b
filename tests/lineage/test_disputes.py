"""Disputed models from end to end: architectures that this package does not run, component by component."""

import shutil

import numpy as np
import pytest
import safetensors.numpy

from bornbiased_jax.lineage.trace import trace
from tests.checkpoints.architectures import MODELS, auto_class, transformers_config

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# What the bound certifies needs no more.
FEW = 99


def _write(name, folder, seed, scale=4):
    torch.manual_seed(seed)
    auto_class(name).from_config(transformers_config(name, scale=scale)).save_pretrained(folder)
    return folder


def _tensors(folder):
    return safetensors.numpy.load_file(folder / "model.safetensors")


def _rewritten(folder, place, tensors):
    """A model of the folder's configuration and other tensors."""
    shutil.copytree(folder, place)
    safetensors.numpy.save_file(tensors, place / "model.safetensors", {"format": "pt"})
    return place


def _noisy(tensors, rng, fraction=0.1):
    """Tensors with noise of a fraction of their standard deviation; norms have none, and get noise of 0.01."""
    return {
        name: array + np.float32(fraction * (array.std() or 0.1)) * rng.standard_normal(array.shape, np.float32)
        for name, array in tensors.items()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("mpt", "bloom", "phi", "gpt2", "llama4")])
def test_noisy_copy_of_a_public_architecture_is_found_and_an_independent_model_is_not(tmp_path, name):
    base = _write(name, tmp_path / "base", 1)
    tensors = _noisy(_tensors(base), np.random.default_rng(0))
    copy = _rewritten(base, tmp_path / "copy", tensors | {"net.alpha": np.ones((3, 2), np.float32)})
    other = _write(name, tmp_path / "other", 2)
    found = trace(base, copy, num_permutations=FEW)
    assert found.verdict == "same-lineage"
    assert found.log10_p <= -6
    assert any("net.alpha" in note for note in found.detail["notes"])
    assert trace(base, other, num_permutations=FEW).verdict == "unrelated"


def _verdicts(found):
    return {row["component"]: row["verdict"] for row in found.detail["components"]}


def _has(found, sentence):
    return any(sentence in note for note in found.detail["notes"])


EXPERT = "model.layers.{}.block_sparse_moe.experts.{}.{}.weight"
MATRICES = {"w1": "gate", "w3": "up", "w2": "down"}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return _write("mixtral", tmp_path_factory.mktemp("mixture") / "model", 2)


def test_experts_that_began_as_a_dense_mlp_are_named(tmp_path, mixture):
    dense = _write("mistral", tmp_path / "dense", 1)
    of_dense, tensors, rng = _tensors(dense), _tensors(mixture), np.random.default_rng(0)
    copies = {
        EXPERT.format(block, expert, name): of_dense[f"model.layers.{block}.mlp.{matrix}_proj.weight"]
        for block in range(2)
        for expert in (1, 2)
        for name, matrix in MATRICES.items()
    }
    upcycled = _rewritten(mixture, tmp_path / "upcycled", tensors | _noisy(copies, rng))
    found = trace(dense, upcycled, num_permutations=FEW)
    assert found.verdict == "same-lineage"
    assert [_verdicts(found)[f"experts/{number}"] for number in (1, 2, 3, 4)] == [
        *("unrelated", "same-lineage", "same-lineage", "unrelated")
    ]
    assert _has(found, "Experts 2 to 3 agree, each by itself, with the dense MLP of the other model.")
    assert trace(dense, mixture, num_permutations=FEW).verdict == "unrelated"


def test_experts_in_another_order_are_paired(tmp_path, mixture):
    tensors, order = _noisy(_tensors(mixture), np.random.default_rng(0)), [2, 0, 3, 1]
    moved = dict(tensors)
    for block in range(2):
        for place, expert in enumerate(order):
            for name in MATRICES:
                moved[EXPERT.format(block, place, name)] = tensors[EXPERT.format(block, expert, name)]
        router = f"model.layers.{block}.block_sparse_moe.gate.weight"
        moved[router] = tensors[router][order]
    found = trace(mixture, _rewritten(mixture, tmp_path / "moved", moved), num_permutations=FEW)
    verdicts = _verdicts(found)
    assert {verdicts[f"experts/{number}"] for number in (1, 2, 3, 4)} == {"same-lineage"}
    assert verdicts["router"] == "undefined"
    assert _has(found, "in another order in blocks 1 to 2: in block 1 the base's 1, 2, 3, 4 are its 2, 4, 1, 3.")


@pytest.mark.parametrize(
    ("inherited", "sentence"),
    [
        ("vision", "The vision tower shares its initialization with the base's (p < 10^-300); nothing of the language"),
        ("language", "The language model shares its initialization with the base's (p < 10^-300); nothing of the proj"),
    ],
)
def test_inherited_part_of_a_model_with_a_tower_is_told_from_the_others(tmp_path, inherited, sentence):
    base, other = (_write("llava", tmp_path / str(seed), seed) for seed in (1, 2))
    theirs, ours = _tensors(base), _tensors(other)
    wanted = ("language", "lm_head") if inherited == "language" else ("vision_tower",)
    copies = {name: array for name, array in theirs.items() if any(part in name for part in wanted)}
    mixed = _rewritten(other, tmp_path / "mixed", ours | _noisy(copies, np.random.default_rng(0)))
    found = trace(base, mixed, num_permutations=FEW)
    assert found.verdict == "same-lineage"
    assert _has(found, sentence)
    is_vision = inherited == "vision"
    assert (_verdicts(found)["vision/all"] == "same-lineage") == is_vision
    assert (_verdicts(found)["all"] == "same-lineage") != is_vision
