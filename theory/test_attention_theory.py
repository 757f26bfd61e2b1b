"""Propositions 4 and 5 against exact arithmetic and against the real Attn₀; the printed forms are refused."""

import functools

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax import keys
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply, attn0, mlp0_config
from bornbiased_jax.theory import attention, mlp
from tests.compilation import THOROUGH

STANDARD_ERRORS = 5.0


def accepts(prediction, samples, allowance=0.0):
    """Is the prediction within STANDARD_ERRORS of the samples' mean, plus a stated allowance?"""
    error = np.std(samples) / np.sqrt(samples.size)
    return bool(abs(np.mean(samples) - prediction) <= STANDARD_ERRORS * error + allowance)


# Proposition 4.


def test_prop4_values():
    assert attention.prop4(128) == pytest.approx(128 / (128 + np.pi - 1), rel=1e-15)
    assert round(float(attention.prop4(128)), 2) == 0.98  # Table 3.
    assert attention.prop4(1) == pytest.approx(1 / np.pi)
    assert attention.prop4_gap(128) == pytest.approx((np.pi - 1) / (128 + np.pi - 1), rel=1e-15)
    assert attention.prop4_after_mlp(64, 0) == 0.0
    assert attention.prop4_after_mlp(64, 1) == pytest.approx(float(attention.prop4(64)), rel=1e-15)


@given(T=st.integers(1, 10**6), rho=st.floats(0, 1))
def test_prop4_and_its_gap(T, rho):
    with mpmath.workdps(60):
        exact = (1 - mpmath.mpf(rho)) / (1 + (T - 1) * mpmath.mpf(rho))
        assert abs(mpmath.mpf(float(attention.prop4_gap(T, rho))) - exact) <= 4e-16 * exact
    assert attention.prop4(T, rho) == pytest.approx(float(attention.averaged_cosine(T, rho)), rel=1e-12, abs=1e-15)


@given(T=st.integers(1, 64), shared=st.floats(0.01, 1), own=st.floats(0, 1), apart=st.floats(0, 1))
def test_averages_where_a_sequence_is_more_alike_than_two(T, shared, own, apart):
    """Tokens √shared·(a + b) + √own·e, with a common to all and b to a sequence: the means' cosine written out."""
    size = shared + own
    cross, within = shared * apart / size, shared / size
    exact = shared * apart / (shared + own / T)
    assert attention.averaged_cosine(T, cross, within) == pytest.approx(exact, rel=1e-12, abs=1e-15)


@given(T=st.integers(1, 64), within=st.floats(0, 1))
def test_two_sequences_are_at_most_as_alike_as_their_means_are_long(T, within):
    most = within + (1 - within) / T
    assert attention.averaged_cosine(T, most, within) == pytest.approx(1, rel=1e-11)
    with pytest.raises(ValueError, match=r"^rho_cross:"):
        attention.averaged_cosine(T, 1.01 * most, within)


SEEDS, WIDTH, LONGEST = 400, 32, 16


@functools.lru_cache
def block():
    """One real MLP₀ block for a batch of seeds, compiled once."""
    cfg = mlp0_config(num_layers=1, d_model=WIDTH, d_ff=2 * WIDTH)

    def one(number, x_BTD):
        params = init_seed(cfg, number)
        return apply(cfg, params, x_BTD, logits=False, capture=("residual",)).layers["residual"][0]

    return jax.jit(jax.vmap(one), compiler_options=THOROUGH)


def averaged_by_the_model(layers, T, seed):
    """Cosine, at position T, of Attn₀ of real MLP₀ blocks, for two sequences a seed. [SEEDS]."""
    stream = jax.random.normal(keys.stream_key(seed, "inputs"), (SEEDS, 2, LONGEST, WIDTH))
    for layer in range(layers):
        stream = block()(np.arange(SEEDS, dtype=np.uint32) + np.uint32(seed + layer * 10**6), stream)
    x_SBD = np.asarray(attn0(stream), np.float64)[:, :, T - 1]
    x_SBD /= np.linalg.norm(x_SBD, axis=-1, keepdims=True)
    return np.sum(x_SBD[:, 0] * x_SBD[:, 1], axis=-1)


@pytest.mark.long
@settings(max_examples=8)
@given(layers=st.integers(1, 3), T=st.integers(1, LONGEST), seed=st.integers(0, 10**6))
def test_prop4_on_real_blocks(layers, T, seed):
    cosines = averaged_by_the_model(layers, T, seed)
    # Finite width shifts the cosine by O(layers/width) of what is left to contract.
    allowance = layers / WIDTH * (1 - float(attention.prop4_after_mlp(T, layers)))
    assert accepts(attention.prop4_after_mlp(T, layers), cosines, allowance)


# Proposition 5.

TABLE = {
    16: [0.6986, 0.9209, 0.9714, 0.9891, 0.9985, 1.0000],
    512: [0.6679, 0.8916, 0.9447, 0.9683, 0.9890, 0.9998],
    2048: [0.6670, 0.8898, 0.9414, 0.9644, 0.9854, 0.9995],
}
DEPTHS = [1, 2, 3, 4, 6, 12]


@pytest.mark.parametrize("T", sorted(TABLE))
def test_the_exact_table_to_four_digits(T):
    exact = attention.prop5_exact(T, 12)
    assert np.round(exact[np.array(DEPTHS) - 1], 4).tolist() == TABLE[T]


def test_the_printed_forms_of_the_table():
    printed = [0.0020, 0.7505, 0.8891, 0.9376, 0.9723, 0.9931]
    assert np.round(attention.prop5_printed(512, DEPTHS), 4).tolist() == printed
    closed = [attention.prop5_closed_form(n) for n in DEPTHS]
    assert np.round(closed, 4).tolist() == [0.6667, 0.8889, 0.9383, 0.9580, 0.9747, 0.9885]


@given(layers=st.integers(1, 150))
def test_the_closed_form_is_the_printed_one_a_layer_later(layers):
    printed = attention.prop5_printed_closed_form(layers + 1)
    assert attention.prop5_closed_form(layers) == pytest.approx(printed, abs=1e-12)


@settings(max_examples=15)
@given(layers=st.integers(1, 25))
def test_the_closed_form_is_the_integral_of_the_correlation(layers):
    """∫ ρ_n(r) dr with density 1, r = e^(−u) by Gauss-Laguerre in (3/2)u: exact for a polynomial times e^(−3u/2)."""
    node, weight = np.polynomial.laguerre.laggauss(40)
    u = node * 2 / 3
    value = attention.pair_correlation_limit(np.exp(-u), layers) * np.exp(u / 2)
    assert np.sum(weight * value) * 2 / 3 == pytest.approx(attention.prop5_closed_form(layers), rel=1e-10)
    # … and with the printed density 2r it is something else.
    printed = attention.prop5_printed_density(layers)
    node, weight = node * 2 / 5, weight * 2 / 5
    value = attention.pair_correlation_limit(np.exp(-node), layers) * np.exp(node / 2)
    assert 2 * np.sum(weight * value) == pytest.approx(printed, rel=1e-10)
    assert printed - attention.prop5_closed_form(layers) > 0.1 / layers**1.5


def test_the_density_of_the_ratio_is_one():
    assert attention.prop5_printed_density(1) == pytest.approx(4 / 5)
    assert attention.prop5_closed_form(1) == pytest.approx(2 / 3)
    index = np.arange(1, 2001)
    ratio = (index[:, None] / index)[np.triu_indices(2000, 1)]
    assert np.mean(ratio < 0.5) == pytest.approx(0.5, abs=1e-3)  # 2r would give 0.25.


@settings(max_examples=20)
@given(T=st.integers(2, 9), layers=st.integers(1, 60))
def test_the_exact_gap_keeps_relative_precision(T, layers):
    """Against 150-digit arithmetic, down to 1e-36."""
    with mpmath.workdps(150):
        power = mpmath.eye(T)
        c = mpmath.matrix(T, T)
        for i in range(T):
            for j in range(i + 1):
                c[i, j] = mpmath.mpf(1) / (i + 1)
        for _ in range(layers):
            power = c * power
        size = [mpmath.sqrt(sum(power[i, j] ** 2 for j in range(T))) for i in range(T)]
        mean = [sum(power[i, j] / size[i] for i in range(T)) / T for j in range(T)]
        exact = 1 - sum(x * x for x in mean)
        gap = attention.prop5_exact_gap(T, layers)[-1]
        assert abs(mpmath.mpf(float(gap)) / exact - 1) < 1e-13


@settings(max_examples=20)
@given(T=st.integers(1, 90), layers=st.integers(1, 20))
def test_the_exact_mean_is_that_of_the_correlation_matrix(T, layers):
    mean = np.mean(attention.prop5_correlations(T, layers))
    assert attention.prop5_exact(T, layers)[-1] == pytest.approx(mean, abs=1e-13)


def test_dropping_negligible_columns_changes_nothing(monkeypatch):
    fast = attention.prop5_exact_gap(300, 60)
    monkeypatch.setattr(attention, "_NEGLIGIBLE", 0.0)
    assert fast == pytest.approx(attention.prop5_exact_gap(300, 60), rel=1e-13)


@pytest.mark.long
def test_the_largest_size_reaches_its_tail():
    gaps = attention.prop5_exact_gap(4096, 96)
    assert np.all(np.diff(gaps) < 0)
    assert gaps[-1] == pytest.approx(float(attention.prop5_finite_asymptote_gap(4096, 96)), rel=1e-11)
    assert gaps[-1] < 1e-51


def test_depth_asymptote():
    existing = {
        1: 0.33333, 2: 0.11111, 3: 0.061728, 5: 0.031628, 12: 0.011466, 24: 0.0054615, 80: 0.0015847
    }  # fmt: skip
    for n, gap in existing.items():
        assert attention.prop5_closed_form_gap(n) == pytest.approx(gap, rel=2e-4)
    for n in [*range(1, 60), 80, 200, 500, 2000]:
        gap = attention.prop5_closed_form_gap(n)
        assert abs(8 * n * gap - 1) <= 1.7 / n
        assert gap == pytest.approx(float(1 - attention.prop5_depth_asymptote(n)), rel=1.7 / n)
    # The printed 1/L² is off tenfold at 80 layers, and not by a constant.
    off = [attention.prop5_closed_form_gap(n) / (1 - attention.prop5_printed(np.inf, n)) for n in (4, 80, 800)]
    assert 0.5 < off[0] < 0.8 and 10 < off[1] < 10.3 and 100 < off[2] < 101


@given(T=st.integers(2, 400), extra=st.integers(0, 30))
@settings(max_examples=25)
def test_finite_asymptote_in_its_stated_range(T, extra):
    layers = int(np.ceil(np.log(2 * T) / np.log(1.5))) + extra
    exact = attention.prop5_exact_gap(T, layers)[-1]
    relative = exact / attention.prop5_finite_asymptote_gap(T, layers) - 1
    assert abs(relative) <= 2 * T * (2 / 3) ** layers + 1e-12
    # The range is not idle: its bound is attained to leading order, with this sign.
    if T > 20 and extra > 12:
        assert relative == pytest.approx(-2 * T * (2 / 3) ** layers, rel=0.1)


def test_finite_asymptote_of_the_note():
    assert attention.prop5_finite_asymptote_gap(16, 12) == pytest.approx(1.27e-6, rel=5e-3)
    assert attention.prop5_exact_gap(16, 12)[-1] == pytest.approx(1.05e-6, rel=6e-3)
    assert 1 - attention.prop5_printed(16, 13) == pytest.approx(5.5e-3, rel=1e-2)


def running_means(T, layers, seed):
    """Mean intra-sequence cosine over the first T ≤ 40 tokens of each of 400 sequences after real Attn₀ blocks."""
    x_STD = jax.random.normal(keys.stream_key(seed, "inputs"), (400, 40, WIDE))
    for _ in range(layers):
        x_STD = attn0(x_STD)
    x_STD = np.asarray(x_STD, np.float64)[:, :T]
    x_STD /= np.linalg.norm(x_STD, axis=-1, keepdims=True)
    return np.sum(np.mean(x_STD, axis=1) ** 2, axis=-1)


# float32 running means: each layer rounds to 6e-8 relatively.
ROUNDING = 1e-6
WIDE = 64


@pytest.mark.long
@pytest.mark.parametrize(("T", "layers"), [(2, 1), (17, 3), (40, 8)])
def test_prop5_on_the_real_block(T, layers):
    means = running_means(T, layers, 3)
    exact = np.mean(mlp.finite_width_cosine(attention.prop5_correlations(T, layers), WIDE))
    assert accepts(exact, means, ROUNDING)


def test_prop5_checker_refuses_the_printed_forms():
    T, layers = 40, 2
    means = running_means(T, layers, 11)
    finite = mlp.finite_width_cosine(attention.prop5_correlations(T, layers), WIDE)
    right = float(np.mean(finite))
    # Everything else gets the whole finite-width shift as an allowance, and is refused all the same.
    shift = 0.2 / WIDE
    assert accepts(right, means, ROUNDING)
    assert accepts(attention.prop5_exact(T, layers)[-1], means, shift)
    assert not accepts(attention.prop5_exact(T, layers + 1)[-1], means, shift)  # Off by one layer.
    assert not accepts(attention.prop5_exact(T, layers - 1)[-1], means, shift)
    assert not accepts(attention.prop5_printed(T, layers), means, shift)
    assert not accepts(attention.prop5_printed_closed_form(layers), means, shift)
    assert not accepts(attention.prop5_printed_density(layers), means, shift)
    assert not accepts(1 - 1.05 * (1 - right), means, ROUNDING)  # A gap that is 5% too large.
    assert not accepts(1.05 * right, means, shift)


def test_attn0_is_the_averaging_matrix():
    x_TD = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    once = np.asarray(attn0(jnp.asarray(x_TD)))
    assert once == pytest.approx(attention.averaging_matrix(7) @ x_TD, abs=1e-6)


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: attention.prop4(0), "T"),
        (lambda: attention.prop4(4, -0.1), "rho_1"),
        (lambda: attention.prop4_after_mlp(4, -1), "layers"),
        (lambda: attention.averaged_cosine(4, 0.9, 0.1), "rho_cross"),
        (lambda: attention.averaged_cosine(4, 0.1, 1.1), "rho_within"),
        (lambda: attention.prop5_exact(0, 3), "T"),
        (lambda: attention.prop5_exact(4, -3), "layers"),
        (lambda: attention.prop5_printed(4, 0), "L"),
        (lambda: attention.prop5_printed_closed_form(1), "L"),
        (lambda: attention.prop5_closed_form(-1), "layers"),
        (lambda: attention.prop5_printed_density(0), "layers"),
        (lambda: attention.pair_correlation_limit(0.0, 2), "ratio"),
        (lambda: attention.prop5_depth_asymptote(0), "layers"),
        (lambda: attention.prop5_finite_asymptote_gap(0, 1), "T"),
    ],
)
def test_bad_arguments_are_named(call, word):
    with pytest.raises(ValueError, match=rf"^{word}:"):
        call()
