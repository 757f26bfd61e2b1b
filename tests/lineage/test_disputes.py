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
