"""One table of activations: the configuration, the theory, import and export know the same ones."""

from typing import get_args

import jax
import numpy as np
import pytest

from bornbiased_jax.checkpoints.export import family_of
from bornbiased_jax.checkpoints.formats import hf_config
from bornbiased_jax.config import Activation, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.layers import ACTIVATIONS, HUGGING_FACE, UNIT_MEANS
from bornbiased_jax.theory import kernels
from bornbiased_jax.theory.activations import ACTIVATIONS as KERNELS
from bornbiased_jax.theory.activations import DERIVATIVES

POINTS = np.linspace(-6, 6, 97)


def test_the_table_is_complete() -> None:
    assert set(ACTIVATIONS) == set(get_args(Activation))
    assert hf_config.ACTIVATIONS == HUGGING_FACE
    named = [entry for entry in ACTIVATIONS.values() if entry.hugging_face is not None]
    assert len(HUGGING_FACE) == sum(1 + len(entry.aliases) for entry in named)


@pytest.mark.parametrize("name", get_args(Activation))
def test_theory_has_the_same_function_and_its_derivative(name: Activation) -> None:
    values = jax.jit(ACTIVATIONS[name].function)(POINTS.astype(np.float32))
    np.testing.assert_allclose(values, KERNELS[name](POINTS), atol=2e-6)
    kink = -1.0 if name.startswith("shifted_relu") else 0.0
    apart = np.abs(POINTS - kink) > 1e-3  # ReLU has no derivative at its kink.
    h = 1e-5
    slope = (KERNELS[name](POINTS + h) - KERNELS[name](POINTS - h)) / (2 * h)
    np.testing.assert_allclose(slope[apart], DERIVATIVES[name](POINTS)[apart], atol=1e-8)


@pytest.mark.parametrize("name", UNIT_MEANS)
def test_centered_activations_have_no_mean_over_a_standard_normal_variable(name: Activation) -> None:
    assert UNIT_MEANS[name] == pytest.approx(float(kernels.mean(name)), abs=1e-13)
    with jax.enable_x64(True):
        apart = ACTIVATIONS[name].function(POINTS) - ACTIVATIONS[f"{name}_centered"].function(POINTS)
        np.testing.assert_allclose(apart, UNIT_MEANS[name], rtol=1e-14)
    assert ACTIVATIONS[f"{name}_centered"].function(jax.numpy.ones(2, "bfloat16")).dtype == "bfloat16"


@pytest.mark.parametrize("name", ["shifted_relu", "gelu_centered"])
def test_activations_that_transformers_lacks_are_not_exported(name: Activation) -> None:
    with pytest.raises(InputError, match=f"transformers has no class for activation={name} here: only activation="):
        family_of(preset("gpt2-tiny", activation=name, positions="learned", bias=True))


@pytest.mark.parametrize("written", sorted(HUGGING_FACE))
def test_names_of_config_json_mean_what_transformers_mean(written: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers.activations import ACT2FN

    reference = ACT2FN[written](torch.tensor(POINTS)).detach().numpy()
    np.testing.assert_allclose(reference, KERNELS[HUGGING_FACE[written]](POINTS), atol=1e-6)
