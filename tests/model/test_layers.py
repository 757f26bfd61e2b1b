"""One table of activations: the configuration, the theory, import and export know the same ones."""

from typing import get_args

import jax
import numpy as np
import pytest

from bornbiased_jax.checkpoints.formats import hf_config
from bornbiased_jax.config import Activation
from bornbiased_jax.model.layers import ACTIVATIONS, HUGGING_FACE
from theory.activations import ACTIVATIONS as KERNELS
from theory.activations import DERIVATIVES

POINTS = np.linspace(-6, 6, 97)


def test_the_table_is_complete() -> None:
    assert set(ACTIVATIONS) == set(get_args(Activation))
    assert hf_config.ACTIVATIONS == HUGGING_FACE
    assert len(HUGGING_FACE) == sum(1 + len(entry.aliases) for entry in ACTIVATIONS.values())


@pytest.mark.parametrize("name", get_args(Activation))
def test_theory_has_the_same_function_and_its_derivative(name: Activation) -> None:
    entry = ACTIVATIONS[name]
    values = jax.jit(entry.function)(POINTS.astype(np.float32))
    np.testing.assert_allclose(values, KERNELS[entry.theory](POINTS), atol=2e-6)
    apart = np.abs(POINTS) > 1e-3  # ReLU has no derivative at 0.
    h = 1e-5
    slope = (KERNELS[entry.theory](POINTS + h) - KERNELS[entry.theory](POINTS - h)) / (2 * h)
    np.testing.assert_allclose(slope[apart], DERIVATIVES[entry.theory](POINTS)[apart], atol=1e-8)


@pytest.mark.parametrize("written", sorted(HUGGING_FACE))
def test_names_of_config_json_mean_what_transformers_mean(written: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers.activations import ACT2FN

    theirs = ACT2FN[written](torch.tensor(POINTS)).detach().numpy()
    np.testing.assert_allclose(theirs, KERNELS[ACTIVATIONS[HUGGING_FACE[written]].theory](POINTS), atol=1e-6)
