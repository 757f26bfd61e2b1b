"""What theory says at order 1/D against the real modules: the contraction of gated MLPs, spreads, and intervals.

The measurements are those of ``test_blocks``, and so are the stated errors.
"""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.prediction import stack_of
from bornbiased_jax.theory import finite_width, positions, seeds
from bornbiased_jax.theory.mean_field import profile
from bornbiased_jax.theory.predict import SECOND_ORDER, contraction, independent_inputs, predict
from bornbiased_jax.theory.quadrature import normal_nodes
from theory.test_blocks import (
    CASES,
    CONTROL,
    ERRORS,
    NUM_INPUTS,
    SEEDS,
    control,
    excess,
    measure,
    predicted,
)

SIGNIFICANCE = 1e-3

# Gated MLPs.

_GATED = ModelConfig(
    num_layers=4,
    d_model=48,
    num_heads=4,
    d_ff=128,
    vocab_size=2,
    norm="rmsnorm",
    activation="silu",
    gated_mlp=True,
    attention=False,
    init="normal-0.02",
)


def gated() -> np.ndarray:
    return measure(_GATED, 1, 600, num_inputs=256)["inter"]


@pytest.mark.long
def test_gated_mlps_contract_as_predicted() -> None:
    assert np.all(excess(gated(), predicted(_GATED, 1, 256)) < 1)


def test_llama_nano_is_as_established() -> None:
    """Measured beforehand: 0.0029 and 0.0035 after block 12 at T = 32, a seed each, of 1,000 inputs or more."""
    cfg = ModelConfig(
        num_layers=12,
        num_heads=12,
        d_model=768,
        d_ff=2048,
        vocab_size=32_000,
        norm="rmsnorm",
        activation="silu",
        gated_mlp=True,
        tie_embeddings=False,
    )
    prediction = contraction(profile(stack_of(cfg), 32), 1000)
    for measured in (0.0029, 0.0035):
        assert prediction.low[-1] < measured < prediction.high[-1]
    assert prediction.high[-1] - prediction.low[-1] < 0.003


# Spreads.


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_std_of_cosines_over_pairs(case: str) -> None:
    cfg, length = CASES[case]
    statistics = measure(cfg, length)
    variance_SL = statistics["pair_square"] - statistics["inter"] ** 2
    se = variance_SL.std(axis=0, ddof=1) / np.sqrt(SEEDS)
    layers = profile(stack_of(cfg, tokens=False), length).layers[1:]
    theory, beyond = [], []
    for fields in layers:
        rho = fields.cross_n[-1] / fields.variance_n[-1]
        overlap = finite_width.Overlap(*(part[-1:] for part in fields.overlap().diagonal()))
        theory.append(overlap.cosine_variance(np.array([rho]))[0])
        # Relative errors of the next order, of each of the layer's four random maps so far.
        beyond.append(SECOND_ORDER * theory[-1] * (overlap.own[0] + 2 / cfg.d_model) * 2)
    assert np.all(np.abs(variance_SL.mean(axis=0) - theory) < ERRORS * se + beyond)


@pytest.mark.long
def test_std_over_seeds() -> None:
    cosines_SL, theory = control(), predicted(CONTROL, 1)
    error = ERRORS / np.sqrt(2 * cosines_SL.shape[0])
    ratio = cosines_SL.std(axis=0, ddof=1) / theory.std[1:]
    assert np.all(np.abs(ratio - 1) < error + SECOND_ORDER * 2 / 128)
    # Without the neurons' and the projection's randomness nothing like it comes out.
    assert np.all(cosines_SL.std(axis=0, ddof=1) / theory.sampling_std[1:] > 1 + 2 * error)


def test_single_tokens_are_as_many_inputs_as_there_are_tokens() -> None:
    """At T = 1 endless inputs of V tokens are V vectors, all different: the same mean, std and interval."""
    stack = stack_of(CONTROL, tokens=False)
    few, endless = 512, dataclasses.replace(stack, vocabulary=512)
    drawn, repeated = contraction(profile(stack, 1), few), contraction(profile(endless, 1))
    for expected, told in zip(drawn, repeated, strict=True):
        np.testing.assert_allclose(told, expected, rtol=0.01)  # What is left out is 1/V of what is of order 1/D.
    # And of N inputs as many are independent as there are tokens and inputs in series.
    assert independent_inputs(profile(endless, 1), 0.1, None) == few
    assert independent_inputs(profile(endless, 1), 0.1, few) == round(few / (2 - 1 / few))
    assert independent_inputs(profile(stack, 1), 0.1, few) == few
    # All of them count where each predicts its own token: as repeated, a tied head's top-1 fraction was twice as large.
    assert independent_inputs(profile(endless, 1), 0.1, few, 1.0) == few
    # Hardly repeated ones are endless: of a count of billions a table was made.
    decoder = profile(stack_of(preset("gpt2-tiny", init="normal-0.02")), 8)
    cosine = float(decoder.layers[-1].alike_n[-1] / decoder.layers[-1].variance_n[-1])
    assert independent_inputs(decoder, 0.99 * cosine, None) is None


@pytest.mark.nightly
@pytest.mark.slow
def test_few_neurons_widen_the_std_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 32 neurons and no residual they make a third and more of the second block's spread."""
    cfg, seeds_drawn = CONTROL.replace(num_layers=2, d_ff=32, residual=False), 400
    stds = measure(cfg, 1, seeds_drawn)["inter"].std(axis=0, ddof=1)
    # The standard error of a standard deviation, and what is left out: second order in 1/F.
    allowed = ERRORS / np.sqrt(2 * seeds_drawn) + SECOND_ORDER * 2 / cfg.d_ff

    def accepts() -> bool:
        return bool(np.all(np.abs(stds / predicted(cfg, 1).std[1:] - 1) < allowed))

    assert accepts()
    right = seeds._neurons
    for wrong in (0.0, 3.0):
        monkeypatch.setattr(seeds, "_neurons", lambda *arguments, factor=wrong: factor * right(*arguments))
        assert not accepts()


@pytest.mark.slow
@pytest.mark.nightly
def test_few_values_widen_the_std_over_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one head of 16 values and no residual, W_V makes a third of the second block's spread."""
    head_dim, seeds_drawn = 16, 300
    shape = dict(num_layers=2, residual=False, attention=True, num_heads=1, num_kv_heads=1, head_dim=head_dim)
    cfg = CONTROL.replace(**shape)
    stds = measure(cfg, 4, seeds_drawn)["inter"].std(axis=0, ddof=1)
    # As above, of second order in 1/(values).
    allowed = ERRORS / np.sqrt(2 * seeds_drawn) + SECOND_ORDER * 2 / head_dim

    def accepts() -> bool:
        return bool(np.all(np.abs(stds / predicted(cfg, 4).std[1:] - 1) < allowed))

    assert accepts()
    right = seeds._attention
    for wrong in (0.0, 5.0):

        def changed(*arguments: object, factor: float = wrong) -> tuple[object, ...]:
            linear, shift, fresh = right(*arguments)
            return linear, shift, factor * fresh

        monkeypatch.setattr(seeds, "_attention", changed)
        assert not accepts()


# Intervals.


def standardized() -> np.ndarray:
    """(measured − mean)/std of the last block's cosine, for every case and seed."""
    rows = []
    for cfg, length in CASES.values():
        theory = predicted(cfg, length)
        std = np.hypot(theory.std[-1], theory.theory_std[-1])
        rows.append((measure(cfg, length)["inter"][:, -1] - theory.mean[-1]) / std)
    return np.concatenate(rows)


@pytest.mark.long
@pytest.mark.parametrize("coverage", [0.9, 0.99])
def test_intervals_cover_at_their_rate(coverage: float) -> None:
    """Unseen seeds of every case: the count outside is binomial, its upper tail not below SIGNIFICANCE."""
    outside, total = 0, 0
    for cfg, length in CASES.values():
        theory = contraction(profile(stack_of(cfg, tokens=False), length), NUM_INPUTS, coverage)
        final = measure(cfg, length)["inter"][:, -1]
        outside += int(np.sum((final < theory.low[-1]) | (final > theory.high[-1])))
        total += final.size
    assert stats.binomtest(outside, total, 1 - coverage, alternative="greater").pvalue > SIGNIFICANCE


@pytest.mark.long
def test_intervals_are_not_won_by_width() -> None:
    z = standardized()
    # Over all cases the standardized square averages to at least a half: intervals are not much too wide.
    assert np.mean(z**2) > 0.5 + ERRORS * np.sqrt(2 / z.size) * 0.5
    for cfg, length in CASES.values():
        theory = predicted(cfg, length)
        measured = measure(cfg, length)["inter"][:, -1].std(ddof=1)
        half_width = (theory.high[-1] - theory.low[-1]) / 2
        # A measured standard deviation of 24 seeds may be short by four of its own standard errors.
        assert half_width < 2 * 2.6 * measured * (1 + ERRORS / np.sqrt(2 * SEEDS))


# The parts, against direct integration.


@pytest.mark.parametrize("name", ["relu", "gelu", "gelu_tanh", "tanh", "silu"])
@pytest.mark.parametrize("is_gated", [False, True])
@given(rho=st.floats(-0.9, 0.9), std=st.floats(0.05, 1.5))
@settings(max_examples=4)
def test_kernel_derivatives(name: str, is_gated: bool, rho: float, std: float) -> None:
    kernel = finite_width.kernel(name, is_gated, np.array([std]))
    step = 1e-4

    def at(r: float) -> np.ndarray:
        return np.array([part[0] for part in kernel.expand(np.array([r]))])

    low, middle, high = at(rho - step), at(rho), at(rho + step)
    scale = kernel.variance()[0]
    # The quotients' own errors: step² of the next derivatives, below 100 of the kernel here, and STEP² likewise.
    assert middle[1] == pytest.approx((high[0] - low[0]) / (2 * step), abs=1e-5 * scale)
    assert middle[2] == pytest.approx((high[1] - low[1]) / (2 * step), abs=2e-3 * scale)
    assert at(1.0)[0] == pytest.approx(scale, rel=1e-6)


def test_isotropic_tokens_have_the_moments_of_a_sample_correlation() -> None:
    """With m and g isotropic in D dimensions, pairs and seeds together give (1 − ρ²)²/D and −ρ(1 − ρ²)/(2D)."""
    rho, width = np.linspace(0.0, 0.95, 20), 50
    rest = 1 - rho
    overlap = finite_width.Overlap(rest**2 / width, rho * rest / width, 0 * rho, 2 * rest**2 / width)
    over_seeds = 2 * (rho * rest) ** 2 / width
    np.testing.assert_allclose(overlap.cosine_variance(rho) + over_seeds, (1 - rho**2) ** 2 / width, atol=1e-15)
    bias = overlap.cosine_bias(rho) - 2 * rho**2 * rest / width
    np.testing.assert_allclose(bias, -rho * (1 - rho**2) / (2 * width), atol=1e-15)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: finite_width.kernel("gelu", False, np.array([-1.0])), "std_n"),
        (lambda: finite_width.kernel("silu", False, np.array([np.nan])), "std_n"),
        (lambda: finite_width.kernel("swish", True, np.ones(1)), "name"),
        (lambda: finite_width.neuron_moments("relu", -np.ones(1), np.zeros(1), 2), "std_n"),
        (lambda: finite_width.neuron_moments("relu", np.ones(1), np.array([1.1]), 2), "rho_n"),
        (lambda: finite_width.neuron_moments("relu", np.ones(1), np.zeros(1), 0), "highest"),
        (lambda: normal_nodes(0), "count"),
        (lambda: positions.grid(0), "length"),
        (lambda: positions.grid(4, window=0), "window"),
        (lambda: positions.coarse(positions.grid(4), 0), "count"),
        (lambda: predict(stack_of(_GATED), 0, 10), "length"),
        (lambda: predict(stack_of(_GATED), 4, 0), "vocabulary"),
        (lambda: predict(stack_of(_GATED), 4, 10, num_inputs=1), "num_inputs"),
        (lambda: predict(stack_of(_GATED), 4, 10, coverage=1.0), "coverage"),
        (lambda: contraction(profile(stack_of(_GATED, tokens=False), 1), 1), "num_inputs"),
        (lambda: contraction(profile(stack_of(_GATED, tokens=False), 1), None, 0.0), "coverage"),
    ],
)
def test_bad_arguments_are_named(call: Callable[[], object], word: str) -> None:
    with pytest.raises(ValueError, match=rf"^{word}:"):
        call()
