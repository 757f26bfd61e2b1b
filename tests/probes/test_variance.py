"""Positional variance: the streaming moments against NumPy, and every mitigation against its closed form."""

import functools

import jax
import numpy as np
import pytest

from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.probes import batching
from bornbiased_jax.probes.variance import discrepancy, position_moments
from bornbiased_jax.theory.variance import output_variance
from tests.model.forward import apply

D, T, N, MAX = 64, 16, 1000, 64
ATTENTION = dict(num_layers=1, num_heads=4, d_model=D, d_ff=8, vocab_size=3, mlp=False, norm="none", max_seq_len=MAX)
MITIGATIONS = {
    "baseline": {},
    "no-positions": dict(positions="none"),
    "amplify": dict(positional_scale="amplify"),
    "attenuate": dict(positional_scale="attenuate"),
    "head-norm": dict(head_norm=True, norm_eps=1e-12),
    "gate-headwise": dict(output_gate="headwise"),
    "gate-elementwise": dict(output_gate="elementwise"),
    "sink-zero": dict(sink_logit="zero"),
    "sink-learned": dict(sink_logit="learned"),
    "sigmoid": dict(attention_kernel="sigmoid"),
    "window": dict(window=5),
    "window-amplify-gate": dict(window=5, positional_scale="amplify", output_gate="headwise"),
}
# σ² of the values of unit inputs, standard deviation of a gate's logit and of an attention logit at initialization.
VALUE_VARIANCE = D * 0.02**2
GATE_STD = 0.02 * np.sqrt(D)
LOGIT_STD = D * 0.02**2


@functools.cache
def measure(name, seed=0):
    """Pooled variance [T] of one untrained attention block on isotropic Gaussian vectors, as for Figure 9."""
    cfg = ModelConfig(**ATTENTION, **MITIGATIONS[name])
    params = init_seed(cfg, seed)
    x_NTD = np.random.default_rng(seed).standard_normal((N, T, D)).astype(np.float32)
    moments = position_moments(cfg, params, x_NTD, quantities=("attention_output",))
    return moments["attention_output"].pooled_LT[0]


def predict(changes):
    # The shift of a sigmoid and the attenuation divide by the longest length, whatever T is here.
    existing = {key: value for key, value in changes.items() if key not in ("positions", "norm_eps")}
    gate = dict(gate_std=GATE_STD) if "output_gate" in changes else {}
    return output_variance(T, VALUE_VARIANCE, max_seq_len=MAX, **existing, **gate)


def relative_tolerance(standard_errors=4.5):
    """Of a pooled variance, as a share of its expectation.

    Given the weights, the N outputs of width D are Gaussian with a covariance ∝ W Wᵀ, whose participation is
    about 1/(1/D + 1/D): relative variance 2·(2/D)/N. The weights, D² of them, add 2/D². A gate multiplies by
    squares whose relative spread is GATE_STD, shared within a head (4 heads), and its variance is known to
    √(2/D) only. Attention is not quite uniform: weights vary by LOGIT_STD, whose square enters the variance.
    """
    sampling = np.sqrt(2 * (2 / D) / N + 2 / D**2 + GATE_STD**2 / (4 * N))
    return standard_errors * sampling + 3 * LOGIT_STD**2 + GATE_STD**2 / 4 * np.sqrt(2 / D)


@pytest.mark.parametrize("name", MITIGATIONS)
def test_variance_at_untrained_model_equals_theory(name):
    measured, expected = measure(name), predict(MITIGATIONS[name])
    assert relative_tolerance() < 0.15
    np.testing.assert_allclose(measured, expected, rtol=relative_tolerance())


@pytest.fixture(scope="module")
def model():
    cfg = preset("llama-tiny", num_layers=3, d_model=32, vocab_size=61, d_ff=40, num_heads=4)
    params = init_seed(cfg, 0)
    params = jax.tree.map(lambda leaf: leaf * 10.0 if leaf.ndim > 2 else leaf, params)
    return cfg, params, np.random.default_rng(0).integers(0, 61, (7, 6))


@pytest.mark.parametrize("batch_size", [3, 7])
def test_moments_equal_numpy(model, batch_size, monkeypatch):
    cfg, params, tokens = model
    names = ("attention_output", "residual", "values", "mlp_update")
    observed = []
    monkeypatch.setattr(batching, "batch_size_for", lambda *sizes: batch_size)
    moments = position_moments(cfg, params, tokens, quantities=names, advance=observed.append)
    assert sum(observed) == 7
    out = apply(cfg, params, tokens, capture=names)
    for name in names:
        x_LNTW = np.asarray(out.layers[name], np.float64).reshape(3, 7, 6, -1)
        first = moments[name]
        largest = np.square(x_LNTW).max()
        close = dict(rtol=1e-5, atol=1e-6 * largest)
        np.testing.assert_allclose(first.mean_LTW, x_LNTW.mean(1), rtol=1e-5, atol=1e-6 * np.sqrt(largest))
        np.testing.assert_allclose(first.pooled_LT, x_LNTW.var(axis=(1, 3)), **close)
        np.testing.assert_allclose(first.across_LT, x_LNTW.var(axis=1, ddof=1).mean(-1), **close)


def test_a_large_shared_mean_costs_no_digits(model, monkeypatch):
    """Vectors around 1000 with a spread of 1: squares less squares would leave nothing in float32."""
    cfg, params, _ = model
    silent = jax.tree.map(np.zeros_like, params)
    x = np.random.default_rng(0).standard_normal((50, 3, 32)) + 1000.0
    monkeypatch.setattr(batching, "batch_size_for", lambda *sizes: 20)
    moments = position_moments(cfg, silent, x, quantities=("residual",))["residual"]
    expected = x.astype(np.float32).astype(np.float64).var(axis=0, ddof=1).mean(-1)
    # Rounding of the batch's mean near 1000: 1000·2⁻²⁴ each, squared and against a spread of one: below 1e-3.
    np.testing.assert_allclose(moments.across_LT[0], expected, rtol=1e-3)


def test_discrepancy():
    np.testing.assert_allclose(discrepancy(np.array([[8.0, 1.0, 2.0, 4.0]])), [4.0])
    with pytest.raises(InputError, match="at least 2"):
        discrepancy(np.ones((2, 1)))


def test_inputs_that_do_not_fit(model):
    cfg, params, tokens = model
    with pytest.raises(InputError, match="at least 2"):
        position_moments(cfg, params, tokens[:1])
    with pytest.raises(InputError, match="unknown quantity 'logits'"):
        position_moments(cfg, params, tokens, quantities=("logits",))
    with pytest.raises(InputError, match="no attention"):
        position_moments(cfg.replace(attention=False), params, tokens)
    with pytest.raises(InputError, match="no MLP"):
        position_moments(cfg.replace(mlp=False), params, tokens, quantities=("mlp_update",))
