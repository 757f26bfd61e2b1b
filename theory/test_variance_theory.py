"""The positional decay and its mitigations, against the weights written out, Monte Carlo and the real block."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bornbiased_jax import keys
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.theory import attention, attention_weights, mean_field, variance
from bornbiased_jax.theory.stack import Stack
from tests.compilation import THOROUGH
from tests.tiers import nightly_except

STANDARD_ERRORS = 5.0
MITIGATIONS = [
    {},
    {"sink_logit": "zero"},
    {"attention_kernel": "sigmoid", "max_seq_len": 32},
    {"positional_scale": "amplify"},
    {"positional_scale": "attenuate", "max_seq_len": 32, "window": 3},
    {"head_norm": True},
    {"output_gate": "elementwise", "sink_logit": "learned", "window": 5},
    {"positional_scale": "amplify", "head_norm": True, "output_gate": "headwise", "sink_logit": "zero"},
    {"attention_kernel": "clipped", "max_seq_len": 64},
    {"attention_kernel": "softpick"},
    {"attention_kernel": "centred"},
    {"output_gate": "value"},
    {"attention_kernel": "softpick", "window": 5, "positional_scale": "amplify", "output_gate": "value"},
    {"attention_kernel": "centred", "window": 5, "output_gate": "headwise"},
]
SCATTERED = ("softpick", "centred")
"""Kernels whose weights are random at initialization, however small the logits are."""
IDS = [",".join(f"{k}={v}" for k, v in mitigation.items()) or "baseline" for mitigation in MITIGATIONS]


def accepts(prediction, squares, allowance=0.0):
    """At every position, is the prediction [T] within STANDARD_ERRORS of the mean over axis 0 of squares [n, T]?

    Plus a stated relative allowance.
    """
    error = np.std(squares, axis=0) / np.sqrt(squares.shape[0])
    apart = np.abs(np.mean(squares, axis=0) - prediction)
    return bool(np.all(apart <= STANDARD_ERRORS * error + allowance * prediction))


@given(T=st.integers(1, 40), sigma2=st.floats(0.01, 10), n=st.integers(0, 20), w=st.integers(1, 50))
def test_closed_forms(T, sigma2, n, w):
    i = np.arange(1, T + 1)
    longest = T + n
    values = {
        "baseline": variance.output_variance(T, sigma2),
        "window": variance.output_variance(T, sigma2, window=w),
        "zero": variance.output_variance(T, sigma2, sink_logit="zero"),
        "sigmoid": variance.output_variance(T, sigma2, attention_kernel="sigmoid", max_seq_len=longest),
        "amplify": variance.output_variance(T, sigma2, positional_scale="amplify"),
        "attenuate": variance.output_variance(T, sigma2, positional_scale="attenuate", max_seq_len=longest),
        "norm": variance.output_variance(T, sigma2, head_norm=True),
        "gate": variance.output_variance(T, sigma2, output_gate="headwise"),
        "value": variance.output_variance(T, sigma2, output_gate="value"),
        "clipped": variance.output_variance(T, sigma2, attention_kernel="clipped", max_seq_len=longest),
    }
    left = np.clip((1 + 4 / longest) / i - 4 / longest, 0, 1)
    expected = {
        "baseline": sigma2 / i,
        "window": sigma2 / np.minimum(i, w),
        "zero": sigma2 * i / (i + 1) ** 2,
        "sigmoid": sigma2 * i / (longest + 1) ** 2,
        "amplify": sigma2 + 0 * i,
        "attenuate": sigma2 / longest + 0 * i,
        "norm": 1 + 0 * i,
        "gate": sigma2 / (4 * i),
        "value": sigma2 / (4 * i),
        "clipped": sigma2 * i * left**2,
    }
    for name, value in expected.items():
        assert values[name] == pytest.approx(value, rel=1e-12), name


@given(T=st.integers(1, 40), c=st.floats(0, 1))
def test_correlated_values(T, c):
    i = np.arange(1, T + 1)
    assert variance.output_variance(T, 2.0, c) == pytest.approx(2 * (c + (1 - c) / i), rel=1e-12)
    assert variance.output_variance_uniform(i, 2.0, c) == pytest.approx(2 * (c + (1 - c) / i), rel=1e-12)
    # √i then no longer equalizes: it grows as 1 + (i − 1)c. Head-wise RMSNorm still does.
    amplified = variance.output_variance(T, 2.0, c, positional_scale="amplify")
    assert amplified == pytest.approx(2 * (1 + (i - 1) * c), rel=1e-12)
    assert variance.output_variance(T, 2.0, c, head_norm=True) == pytest.approx(np.ones(T), rel=1e-12)


@pytest.mark.parametrize("mitigation", MITIGATIONS, ids=IDS)
def test_running_sums_are_the_matrix_product(mitigation):
    weights = {k: v for k, v in mitigation.items() if k in ("window", "attention_kernel", "sink_logit", "max_seq_len")}
    rng = np.random.default_rng(0)
    mix = rng.normal(size=(9, 9))
    k = mix @ mix.T
    count, weight = variance.initial_weights(9, **weights)
    back = np.arange(9)[:, None] - np.arange(9)
    a = np.where((back >= 0) & (back < count[:, None]), weight[:, None], 0.0)
    plain = {key: value for key, value in mitigation.items() if key in weights}
    covariance = variance.output_covariance(k, variance.Mitigations(**plain))
    product = a @ k @ a.T
    if weights.get("attention_kernel") in SCATTERED:
        # Two queries know nothing of each other's logits; one has more than its mean weights.
        assert np.all(np.diagonal(covariance) >= np.diagonal(product) * (1 - 1e-12))
        np.fill_diagonal(covariance, np.diagonal(product))
    assert covariance == pytest.approx(product, rel=1e-12)
    diagonal = np.diagonal(variance.output_covariance(k, variance.Mitigations(**mitigation, logit_variance=1e-3)))
    assert np.all(diagonal[1:] > 0) and (diagonal[0] > 0) == (weights.get("attention_kernel") != "centred")


@pytest.mark.long
@pytest.mark.parametrize(("kernel", "size"), [("softpick", 1e-4), ("centred", 0.3)])
@pytest.mark.parametrize("window", [None, 3])
def test_random_weights_against_monte_carlo(kernel, size, window):
    """Independent Gaussian logits and correlated values: every entry of the covariance within five standard errors."""
    T, draws = 5, 200_000
    rng = np.random.default_rng(7)
    mix = rng.normal(size=(T, T))
    k = mix @ mix.T / T
    values_NT = rng.normal(size=(draws, T)) @ np.linalg.cholesky(k).T
    scores_NTT = size * rng.normal(size=(draws, T, T))
    back = np.arange(T)[:, None] - np.arange(T)
    seen_TT = (back >= 0) & (back < (window or T))
    if kernel == "softpick":
        above_NTT = np.where(seen_TT, np.expm1(scores_NTT), 0.0)
        weights_NTT = np.maximum(above_NTT, 0) / np.abs(above_NTT).sum(-1, keepdims=True)
    else:
        power_NTT = np.where(seen_TT, np.exp(scores_NTT), 0.0)
        weights_NTT = power_NTT / power_NTT.sum(-1, keepdims=True) - seen_TT / seen_TT.sum(-1, keepdims=True)
    out_NT = np.einsum("NTS,NS->NT", weights_NTT, values_NT)
    products_NTT = out_NT[:, :, None] * out_NT[:, None, :]
    random = variance.Mitigations(attention_kernel=kernel, window=window, logit_variance=size**2)
    expected = variance.output_covariance(k, random)
    error = products_NTT.std(axis=0) / np.sqrt(draws)
    assert np.all(np.abs(products_NTT.mean(axis=0) - expected) <= STANDARD_ERRORS * error + 1e-12)


def test_softpick_of_two_keys_with_one_value():
    """Two keys with the same value: E(a₁ + a₂)², over the angle of the two Gaussian logits, is 1/4 + 1/(2π)."""
    covariance = variance.output_covariance(np.ones((2, 2)), variance.Mitigations(attention_kernel="softpick"))
    assert np.diagonal(covariance) == pytest.approx([1 / 2, 1 / 4 + 1 / (2 * np.pi)], rel=1e-6)


def test_centered_attention_where_its_first_order_ends():
    below, above = (
        variance.output_variance(64, attention_kernel="centred", logit_variance=size)[1:] / size
        for size in (1e-6, 1.001e-6)
    )
    assert below == pytest.approx(above, rel=1e-4)
    assert np.all(variance.output_variance(64, attention_kernel="centred") == 0)


@pytest.mark.parametrize("count", [2, 3, 7, 64])
def test_participation_of_normals_against_monte_carlo(count):
    s = np.abs(np.random.default_rng(count).normal(size=(200_000, count)))
    ratio = (s**2).sum(axis=1) / s.sum(axis=1) ** 2
    error = ratio.std() / np.sqrt(len(ratio))
    assert abs(attention_weights.normal_participation(count) - ratio.mean()) <= STANDARD_ERRORS * error


def test_participation_of_normals_where_it_is_known():
    """Two normals: 1/(1 + |sin 2θ|) has mean 2/π over the circle. Many: π/(2 n), up to a part of order 1/n."""
    assert attention_weights.normal_participation(2) == pytest.approx(2 / np.pi, rel=1e-8)
    large = attention_weights.normal_participation(10**6)
    assert large == pytest.approx(np.pi / 2e6, rel=1e-5)
    with pytest.raises(ValueError, match="count"):
        attention_weights.normal_participation(0)


def real_outputs(mitigation, T, seeds, input_std=1.0):
    """Squared entries of the attention output of one real block, mean over its width. [seeds, T], and the cfg."""
    cfg = ModelConfig(
        num_layers=1, num_heads=2, d_model=32, d_ff=1, vocab_size=2, norm="none", mlp=False, positions="none",
        residual=False, **{"max_seq_len": 32, **mitigation},
    )  # fmt: skip

    def one(number):
        params = init_seed(cfg, number)
        x_BTD = input_std * jax.random.normal(keys.stream_key(number, "inputs"), (1, T, cfg.d_model))
        outputs = apply(cfg, params, x_BTD, logits=False, capture=("attention_output",))
        return jnp.mean(outputs.layers["attention_output"][0, 0] ** 2, axis=(1, 2))

    return np.asarray(jax.jit(jax.vmap(one))(np.arange(seeds, dtype=np.uint32)), np.float64), cfg


# A kernel or gate that others go together with has a longer cell.
ALONE = [{"attention_kernel": "softpick"}, {"attention_kernel": "centred"}, {"output_gate": "value"}]


@pytest.mark.long
@pytest.mark.parametrize(
    "mitigation", nightly_except(MITIGATIONS, *(row for row in MITIGATIONS if row not in ALONE)), ids=IDS
)
def test_the_real_block_at_initialization(mitigation):
    T = 12
    squares, cfg = real_outputs(mitigation, T, 300)
    value_variance = cfg.d_model * 0.02**2
    # Logits of variance l² = (D·0.02²)² raise the mean square weight by a factor of at most e^(l²), and their
    # covariance with the values as much; the gate's logit, of variance D·0.02², raises ¼ by a sixteenth of that.
    logit = value_variance**2
    gate = value_variance / 4 if cfg.output_gate != "none" else 0.0
    allowance = np.expm1(2 * logit) + gate
    kernel = mitigation.get("attention_kernel")
    if kernel == "clipped":
        # γ is taken off: what a logit moves is a larger part of what is left.
        count, left = variance.initial_weights(T, attention_kernel="clipped", max_seq_len=64)
        allowance = allowance + logit * float(np.max(1 / count / left)) ** 2
    if kernel in SCATTERED:
        # A long token has large logits and large values: E|x|⁴ and E|x|⁶ are (1 + 2/D) and (1 + 2/D)(1 + 4/D) times
        # the powers of D, the longest product that enters.
        allowance = allowance + (1 + 2 / cfg.d_model) * (1 + 4 / cfg.d_model) - 1
    expected = variance.output_variance(T, value_variance, **mitigation, logit_variance=logit)
    if cfg.head_norm:
        before = {k: v for k, v in mitigation.items() if k not in ("head_norm", "output_gate")}
        power = variance.output_variance(T, value_variance, **before)
        # The expected epsilon fraction, E[power/(power + ε)], lies below 1 by at most (1 + std²)·ε/power.
        allowance = allowance + 2 * float(np.max(cfg.norm_eps / power))
    assert accepts(expected, squares, allowance)
    assert not accepts(expected * np.sqrt(np.arange(1, T + 1)), squares, allowance)


@settings(max_examples=20)
@given(T=st.integers(1, 30), layers=st.integers(0, 12))
def test_stack_without_residual_is_the_power_of_the_averaging_matrix(T, layers):
    rows = attention.averaging_matrix(T, layers)
    stack = variance.stack_variance(T, layers)
    assert stack.stream[-1] == pytest.approx(np.sum(rows**2, axis=1), rel=1e-10)
    assert stack.output.shape == (layers, T) and stack.stream.shape == (layers + 1, T)
    assert np.all(stack.stream[:, 0] == 1.0)


def test_stack_with_residual_and_norm_against_simulation():
    """A stack written out in numpy: value and output matrices drawn at std 1/√D, so both gains are 1."""
    T, width, layers, repeats = 6, 16, 3, 9000
    rng = np.random.default_rng(2)
    a = attention.averaging_matrix(T)
    x = rng.normal(size=(repeats, T, width))
    for _ in range(layers):
        v = x @ (rng.normal(size=(repeats, width, width)) / np.sqrt(width))
        x = x + (a @ v) @ (rng.normal(size=(repeats, width, width)) / np.sqrt(width))
    squares = np.mean(x**2, axis=-1)
    assert accepts(variance.stack_variance(T, layers, residual=True).stream[-1], squares)
    assert not accepts(1.05 * variance.stack_variance(T, layers, residual=True).stream[-1], squares)
    normed = variance.stack_variance(T, layers, residual=True, norm=True)
    assert normed.output[0] == pytest.approx(1 / np.arange(1, T + 1))
    # After the norm values have unit variance whatever the stream's, so the first position's outputs stay 1.
    assert normed.output[:, 0] == pytest.approx(np.ones(layers))
    # The stream's correlation makes later outputs decay less than 1/i.
    assert np.all(normed.output[1:, 1:] > 1 / np.arange(2, T + 1))


THROUGH = [
    {},
    {"positional_scale": "amplify"},
    {"positional_scale": "attenuate", "max_seq_len": 32},
    {"head_norm": True},
    {"positional_scale": "amplify", "sink_logit": "zero"},
]


def real_stack(mitigation, T, layers, seeds):
    """Mean squares of the attention outputs and of the stream after each real pre-norm block, [seeds, L, T] each."""
    cfg = ModelConfig(
        num_layers=layers, num_heads=2, d_model=64, d_ff=1, vocab_size=2, norm="rmsnorm", norm_eps=1e-9, mlp=False,
        positions="none", init="normal-0.02", **{"max_seq_len": 32, **mitigation},
    )  # fmt: skip

    def one(number):
        params = init_seed(cfg, number)
        x_BTD = 0.02 * jax.random.normal(keys.stream_key(number, "inputs"), (1, T, cfg.d_model))
        outputs = apply(cfg, params, x_BTD, logits=False, capture=("attention_output", "residual")).layers
        return jnp.mean(outputs["attention_output"][:, 0] ** 2, axis=(2, 3)), jnp.mean(
            outputs["residual"][:, 0] ** 2, 2
        )

    output, stream = jax.jit(jax.vmap(one), compiler_options=THOROUGH)(np.arange(seeds, dtype=np.uint32))
    return np.asarray(output, np.float64), np.asarray(stream, np.float64), cfg


@pytest.mark.long
@pytest.mark.parametrize(
    "mitigation",
    nightly_except(THROUGH, {"head_norm": True}),
    ids=[",".join(mitigation) or "baseline" for mitigation in THROUGH],
)
def test_the_mitigations_through_the_real_stack(mitigation):
    T, layers = 10, 3
    output, stream, cfg = real_stack(mitigation, T, layers, 600)
    gains = dict(value_gain=cfg.d_model * 0.02**2, output_gain=cfg.d_model * 0.02**2)
    theory = variance.stack_variance(
        T,
        layers,
        covariance=0.02**2 * np.eye(T),
        residual=True,
        norm=True,
        norm_eps=cfg.norm_eps,
        **gains,
        **mitigation,
    )
    # A logit's variance (D·0.02²)² is neglected, and at finite width each layer of norms shifts a cosine by at most
    # max ρ(1 − ρ²)/2 = 0.2 over the dimensions normalized: D in the stream, K = D/2 in a head.
    for layer in range(layers):
        allowance = np.expm1(2 * (cfg.d_model * 0.02**2) ** 2) + 0.2 * layer * (
            1 / 64 + ("head_norm" in mitigation) / 32
        )
        assert accepts(theory.output[layer], output[:, layer], allowance)
        assert accepts(theory.stream[layer + 1], stream[:, layer], allowance)
        assert not accepts(1.15 * theory.output[layer], output[:, layer], allowance)
    others = [other for other in THROUGH if other != mitigation]
    for other in others:
        wrong = variance.stack_variance(
            T, layers, covariance=0.02**2 * np.eye(T), residual=True, norm=True, norm_eps=cfg.norm_eps, **gains, **other
        )
        assert not accepts(wrong.stream[-1], stream[:, -1], allowance)


def test_what_the_mitigations_leave_of_the_decay():
    """Through a stack with residual: √i equalizes the first layer only, head-wise RMSNorm every layer."""
    T, layers = 64, 6
    options = dict(residual=True, norm=True, value_gain=0.3, output_gain=0.3)
    stacks = {name: variance.stack_variance(T, layers, **options, **mitigation) for name, mitigation in
             (("none", {}), ("amplify", THROUGH[1]), ("attenuate", {"positional_scale": "attenuate"}),
              ("norm", THROUGH[3]))}  # fmt: skip
    i = np.arange(1, T + 1)
    assert stacks["none"].output[0] == pytest.approx(0.3 / i)
    assert stacks["amplify"].output[0] == pytest.approx(0.3 + 0 * i)
    assert stacks["attenuate"].output[0] == pytest.approx(0.3 / T + 0 * i)
    # Values of later layers are correlated, so that √i now amplifies: variance grows with the position.
    assert np.all(np.diff(stacks["amplify"].output[-1]) > 0) and stacks["amplify"].output[-1][-1] > 0.6
    assert np.all(np.diff(stacks["none"].output[-1]) < 0)
    assert stacks["norm"].output == pytest.approx(np.ones((layers, T)))
    assert np.ptp(stacks["norm"].stream[-1]) < 1e-9


def test_the_decay_of_deep_stacks_ends():
    """binom(2n − 2, n − 1)/i for few layers, and everything a copy of position 1 for many."""
    for n in (1, 2, 3, 4):
        stream_T = variance.stack_variance(1024, n).stream[n]
        i = np.arange(1, stream_T.size + 1)
        bound = np.log(stream_T.size) ** (2 * n - 2) / stream_T.size
        assert abs(stream_T[-1] / variance.stack_decay_limit(i[-1], n) - 1) <= bound + 1e-12
    deep = variance.stack_variance(64, 60).stream[-1]
    assert deep == pytest.approx(np.ones(64), abs=1e-6)


def test_gate_std():
    # E[σ(g)²] = ¼ + s²/16 + O(s⁴).
    small = variance.output_variance(1, 1.0, output_gate="headwise", gate_std=0.1)[0]
    assert small == pytest.approx(0.25 + 0.01 / 16, abs=1e-5)
    rng = np.random.default_rng(0)
    squares = (1 / (1 + np.exp(-2 * rng.normal(size=200_000)))) ** 2
    assert accepts(variance.output_variance(1, 1.0, output_gate="headwise", gate_std=2.0), squares[:, None])
    # Between positions, whose gates are independent, the factor is ¼ whatever the spread.
    products = np.prod(1 / (1 + np.exp(-2 * rng.normal(size=(200_000, 2)))), axis=1)
    plain = variance.output_covariance(np.ones((2, 2)))
    gate = variance.Mitigations(output_gate="headwise", gate_std=2.0)
    gated = variance.output_covariance(np.ones((2, 2)), gate)
    assert accepts(gated[0, 1] / plain[0, 1], products[:, None])
    assert not accepts(1.05 * gated[0, 1] / plain[0, 1], products[:, None])


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda: variance.output_variance(0), "T"),
        (lambda: variance.output_variance(3, -1.0), "variance"),
        (lambda: variance.output_variance(3, 1.0, 1.5), "correlation"),
        (lambda: variance.output_variance(3, 1.0, -0.9), "correlation"),
        (lambda: variance.output_variance(3, 1.0, np.eye(2)), "correlation"),
        (lambda: variance.output_variance(3, window=0), "window"),
        (lambda: variance.output_variance(3, attention_kernel="relu"), "attention_kernel"),
        (lambda: variance.output_variance(3, attention_kernel="sigmoid", sink_logit="zero"), "sink_logit"),
        (lambda: variance.output_variance(3, positional_scale="attenuate", max_seq_len=2), "max_seq_len"),
        (lambda: variance.output_variance(3, positional_scale="bigger"), "positional_scale"),
        (lambda: variance.output_variance(3, output_gate="headwise", gate_std=-1.0), "gate_std"),
        (lambda: variance.output_variance(3, head_norm=True, norm_eps=-1.0), "norm_eps"),
        (lambda: variance.output_variance(3, 0.0, head_norm=True), "values"),
        (lambda: variance.output_covariance(np.ones((2, 3))), "values"),
        (lambda: variance.output_variance_uniform(0), "position"),
        (lambda: variance.output_variance_uniform(5, 1.0, -0.5), "correlation"),
        (lambda: variance.stack_variance(3, -1), "layers"),
        (lambda: variance.stack_variance(3, 1, value_gain=0.0), "value_gain"),
        (lambda: variance.stack_variance(3, 1, covariance=np.eye(2)), "covariance"),
        (lambda: variance.stack_variance(3, 0, covariance=-np.eye(3)), "covariance"),
        (lambda: variance.stack_variance(3, 1, output_gain=-1.0), "output_gain"),
        (lambda: variance.initial_weights(0), "T"),
        (lambda: variance.value_covariance(3, -1.0), "variance"),
        (lambda: variance.stack_decay_limit(0, 1), "position"),
        (lambda: variance.stack_decay_limit(3, 0), "layers"),
    ],
)
def test_bad_arguments_are_named(call, word):
    with pytest.raises(ValueError, match=rf"^{word}:"):
        call()


def test_centered_attention_of_one_key_writes_nothing():
    """Its variance is a difference of equal numbers, which rounding left below zero: without a residual, no theory."""
    stack = Stack(num_layers=2, width=16, attention_kernel="centred", residual=False)
    fields = mean_field.profile(stack, 1)
    assert [float(layer.variance_n[0]) for layer in fields.layers[1:]] == [0.0, 0.0]
