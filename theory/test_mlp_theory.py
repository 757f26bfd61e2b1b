"""Proposition 2 and its surroundings, against exact arithmetic and against the real MLP blocks."""

import functools

import jax
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax import keys
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply, mlp0_config
from bornbiased_jax.theory import kernels, mlp
from tests.compilation import THOROUGH

STANDARD_ERRORS = 5.0
SEEDS = 400
# At initialization W_up has variance 0.02², and W_down 0.02²/(2L), here with L = 1: the blocks are initialized one by
# one.
UP = 0.02**2


DEPTH = 4
MODELS = {"relu": (48, 48), "tanh": (48, 48), "gelu": (32, 64)}


@functools.lru_cache
def block(activation):
    """One real MLP₀ block for a batch of seeds, compiled once: it serves every depth, each block with its own seed."""
    width, hidden = MODELS[activation]
    cfg = mlp0_config(num_layers=1, d_model=width, d_ff=hidden, activation=activation)

    def one(number, x_BTD):
        params = init_seed(cfg, number)
        return apply(cfg, params, x_BTD, logits=False, capture=("residual",)).layers["residual"][0]

    return jax.jit(jax.vmap(one), compiler_options=THOROUGH)


def measured_cosines(activation, layers, seed, input_std=1.0, batches=1):
    """Cosine of two independent Gaussian vectors after each of some real blocks. [SEEDS · batches, layers]."""
    width, _ = MODELS[activation]
    batches_NL = []
    for batch in range(batches):
        first = seed + batch * 10**7
        stream = jax.random.normal(keys.stream_key(first, "inputs"), (SEEDS, 2, 1, width)) * input_std
        cosines = []
        for layer in range(layers):
            numbers = np.arange(SEEDS, dtype=np.uint32) + np.uint32(first + layer * 10**6)
            stream = block(activation)(numbers, stream)
            x_SBD = np.asarray(stream, np.float64)[:, :, 0]
            x_SBD /= np.linalg.norm(x_SBD, axis=-1, keepdims=True)
            cosines.append(np.sum(x_SBD[:, 0] * x_SBD[:, 1], axis=-1))
        batches_NL.append(np.stack(cosines, axis=1))
    return np.concatenate(batches_NL)


def accepts(prediction, cosines, width):
    """Does every layer's mean lie within STANDARD_ERRORS of the prediction, plus (layer/width)²?

    That is what a first-order finite-width theory leaves out.
    """
    layer = np.arange(1, cosines.shape[1] + 1)
    error = np.std(cosines, axis=0) / np.sqrt(cosines.shape[0])
    apart = np.abs(np.mean(cosines, axis=0) - prediction)
    return bool(np.all(apart <= STANDARD_ERRORS * error + (layer / width) ** 2))


def finite(activation, layers, model=None, input_std=1.0):
    """The prediction for one of MODELS, or for another activation at its size."""
    width, hidden = MODELS[model or activation]
    gains = dict(up_gain=width * UP, down_gain=hidden * UP / 2)
    return mlp.mlp0_finite_width(activation, layers, width, hidden, input_std=input_std, **gains)


def test_the_first_values_to_six_digits():
    existing = [0.318310, 0.493731, 0.604826, 0.680954, 0.735946]
    assert np.max(np.abs(mlp.prop2(5) - existing)) < 5e-7
    assert mlp.prop2(1)[0] == pytest.approx(1 / np.pi, abs=1e-15)
    # Section A.2, Case I.
    assert mlp.prop2(2)[1] == pytest.approx(0.493, abs=1e-3)


@given(rho0=st.floats(0, 1), layers=st.integers(1, 60))
def test_monotone_to_one_from_anywhere(rho0, layers):
    gaps = mlp.prop2_gap(layers, rho0)
    previous = np.concatenate([[1 - rho0], gaps[:-1]])
    assert np.all(gaps <= previous)
    assert np.all(gaps[previous > 0] < previous[previous > 0]) or np.min(previous) < 1e-30
    assert np.all(gaps >= 0)


def test_limit():
    assert mlp.prop2(20_000)[-1] > 1 - 1.2e-7
    assert mlp.relu_map(1.0) == 1.0


@given(gap=st.floats(1e-300, 2.0))
def test_the_map_near_one_keeps_relative_precision(gap):
    with mpmath.workdps(700):
        e = mpmath.mpf(gap)
        rho = 1 - e
        theta = mpmath.acos(rho)
        exact = 1 - (mpmath.sin(theta) + (mpmath.pi - theta) * rho) / mpmath.pi
        assert abs(mpmath.mpf(float(mlp.relu_map_gap(gap))) / exact - 1) < 1e-14


@given(rho=st.floats(-1, 1))
def test_the_two_forms_of_the_map_agree(rho):
    assert mlp.relu_map(rho) == pytest.approx(float(1 - mlp.relu_map_gap(1 - rho)), abs=4e-16)
    assert mlp.activation_map("relu", rho, 0.3) == pytest.approx(float(mlp.relu_map(rho)), abs=4e-16)


def test_rate():
    gaps = mlp.prop2_gap(20_000)
    depth = np.arange(1, gaps.size + 1)
    assert mlp.prop2_rate(1) == pytest.approx(9 * np.pi**2 / 2)
    assert depth[99] ** 2 * gaps[99] == pytest.approx(35.8, abs=0.05)
    assert depth[999] ** 2 * gaps[999] == pytest.approx(43.1, abs=0.05)
    # The error of the leading term is (3 ln l)/l and falls; that of the refined one stays in its stated range.
    relative = mlp.prop2_rate(depth) / gaps - 1
    assert relative[99] == pytest.approx(0.24, abs=0.005) and relative[999] == pytest.approx(0.03, abs=0.001)
    refined = np.abs(mlp.prop2_rate_refined(depth) / gaps - 1)
    assert np.max(refined[19:]) < 0.05 and np.max(refined[99:]) < 0.003 and refined[-1] < 1e-6
    # Negative control: the constant is identified well beyond 5%.
    assert abs(1.05 * mlp.prop2_rate(20_000) / gaps[-1] - 1) > 0.04 > abs(relative[-1])


@pytest.mark.long
@given(std=st.floats(0.05, 3), layers=st.integers(1, 6))
@settings(max_examples=6)
def test_odd_activations_keep_orthogonal_inputs_orthogonal(std, layers):
    for name in ("tanh", "erf", "identity"):
        assert np.all(mlp.mlp0_stack(name, layers, input_std=std).rho == 0.0)
        mean, _ = mlp.mlp0_finite_width(name, layers, 64, 128, input_std=std)
        assert np.max(np.abs(mean)) < 1e-6


@pytest.mark.long
@pytest.mark.parametrize(("activation", "input_std"), [("relu", 1.0), ("tanh", 5.0), ("gelu", 0.5), ("gelu", 5.0)])
def test_real_blocks_follow_the_theory(activation, input_std):
    width, _ = MODELS[activation]
    cosines = measured_cosines(activation, DEPTH, 40, input_std)
    mean, std = finite(activation, DEPTH, input_std=input_std)
    assert accepts(mean, cosines, width)
    # The spread, too: the standard error of a standard deviation is at most √(kurtosis/4n) of it.
    relative = np.std(cosines, axis=0) / std - 1
    kurtosis = np.mean((cosines - cosines.mean(0)) ** 4, axis=0) / np.var(cosines, axis=0) ** 2
    layer = np.arange(1, DEPTH + 1)
    # First-order variances leave out terms of relative order 1/width per fluctuating quantity and layer.
    assert np.all(np.abs(relative) <= STANDARD_ERRORS * np.sqrt(kurtosis / (4 * SEEDS)) + 4 * layer / width)


@pytest.mark.long
def test_the_checker_refuses_wrong_theories():
    layers = 3
    width, _ = MODELS["relu"]
    cosines = measured_cosines("relu", layers, 7, batches=5)
    right, _ = finite("relu", layers)
    assert accepts(right, cosines, width)
    assert not accepts(1.05 * right, cosines, width)
    assert not accepts(0.95 * right, cosines, width)
    assert not accepts(finite("tanh", layers)[0], cosines, width)
    assert not accepts(finite("gelu", layers, "relu")[0], cosines, width)
    shifted = np.concatenate([[0.0], right[:-1]])  # One layer off.
    assert not accepts(shifted, cosines, width)
    odd = measured_cosines("tanh", layers, 7)
    assert not accepts(right, odd, width) and accepts(np.zeros(layers), odd, width)


@settings(max_examples=40)
@given(rho=st.floats(-0.98, 0.98), width=st.integers(2, 200), seed=st.integers(0, 2**31))
def test_exact_finite_width_cosine(rho, width, seed):
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(2, 2000, width))
    y = rho * x + np.sqrt(1 - rho * rho) * z
    cosine = np.sum(x * y, -1) / np.linalg.norm(x, axis=-1) / np.linalg.norm(y, axis=-1)
    error = np.std(cosine) / np.sqrt(cosine.size)
    assert abs(np.mean(cosine) - mlp.finite_width_cosine(rho, width)) <= 5.5 * error
    first_order = rho - rho * (1 - rho**2) / (2 * width)
    assert abs(mlp.finite_width_cosine(rho, width) - first_order) <= 1 / width**2


def test_finite_width_converges_to_infinite_width():
    limit = mlp.mlp0_stack("gelu", 4, up_gain=1.0, down_gain=2.0).rho[1:]
    apart = [mlp.mlp0_finite_width("gelu", 4, d, 2 * d, up_gain=1.0, down_gain=2.0)[0] - limit for d in (50, 500)]
    assert apart[0] == pytest.approx(10 * apart[1], rel=1e-6)
    assert np.all(np.abs(apart[1]) > 0)
    # The scale of a ReLU network leaves every cosine as it is.
    runs = [mlp.mlp0_finite_width("relu", 3, 64, 128, rho0=0.4, input_std=std) for std in (1.0, 1.7)]
    np.testing.assert_allclose(*runs, rtol=1e-6)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "tanh"])
def test_fourth_moments_against_monte_carlo(name):
    rng = np.random.default_rng(5)
    z, w = rng.normal(size=(2, 400_000))
    rho, s, t = 0.4, 0.8, 1.1
    u, v = kernels.ACTIVATIONS[name](s * z), kernels.ACTIVATIONS[name](t * (rho * z + np.sqrt(1 - rho**2) * w))
    for a, b in ((4, 0), (0, 4), (2, 2), (3, 1), (1, 3)):
        sample = u**a * v**b
        error = np.std(sample) / np.sqrt(sample.size)
        assert abs(np.mean(sample) - mlp._moment(name, a, b, np.arccos(rho), s, t)) <= 5 * error


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: mlp.prop2(-1), "layers"),
        (lambda: mlp.prop2(3, 1.5), "rho0"),
        (lambda: mlp.relu_map(1.5), "rho"),
        (lambda: mlp.relu_map_gap(-0.1), "gap"),
        (lambda: mlp.prop2_rate(0), "layers"),
        (lambda: mlp.activation_map("relu", 0.1, 0.0), "std"),
        (lambda: mlp.mlp0_stack("relu", 2, input_std=-1.0), "input_std"),
        (lambda: mlp.mlp0_stack("relu", 2, rho0=2.0), "rho0"),
        (lambda: mlp.mlp0_finite_width("relu", 2, 0, 4), "width"),
        (lambda: mlp.mlp0_finite_width("relu", 2, 4, 0), "hidden"),
        (lambda: mlp.mlp0_finite_width("relu", 2, 4, 4, down_gain=0.0), "down_gain"),
        (lambda: mlp.finite_width_cosine(1.2, 4), "rho"),
        (lambda: mlp.finite_width_cosine(0.2, 0), "width"),
    ],
)
def test_bad_arguments_are_named(call, word):
    with pytest.raises(ValueError, match=rf"^{word}:"):
        call()
