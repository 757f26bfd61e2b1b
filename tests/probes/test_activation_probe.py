"""MLP pre-activations: the streaming statistics, and Figure 6's two numbers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.probes import batching
from bornbiased_jax.probes.activation import Histogram, preactivation
from tests.model.forward import apply
from tests.tiers import nightly_except


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "batch_size"),
    nightly_except(itertools.product(["gpt2-tiny", "llama-tiny"], [2, 5]), ("gpt2-tiny", 5), ("llama-tiny", 2)),
)
def test_statistics_equal_numpy(name, batch_size, monkeypatch):
    cfg = preset(name, num_layers=2, d_model=32, vocab_size=61, d_ff=40, num_heads=4)
    params = init_seed(cfg, 0)
    tokens = np.random.default_rng(0).integers(0, 61, (5, 6))
    edges = np.linspace(-0.4, 0.4, 9)
    monkeypatch.setattr(batching, "batch_size_for", lambda *sizes: batch_size)
    statistics = preactivation(cfg, params, tokens, edges=edges)
    out = apply(cfg, params, tokens, capture=("mlp_preactivation",))
    u = np.asarray(out.layers["mlp_preactivation"], np.float64).reshape(2, -1)
    np.testing.assert_allclose(statistics.mean_L, u.mean(1), atol=1e-6)
    np.testing.assert_allclose(statistics.std_L, u.std(1), rtol=1e-5)
    for layer in range(2):
        bins = np.histogram(u[layer], edges)[0]
        mine = statistics.histogram_LE[layer] * u.shape[1] * np.diff(edges)
        # A value within float32 rounding of an edge may fall on either side of it.
        assert np.abs(mine - bins).max() <= 1 + 1e-3


@pytest.mark.slow
def test_bins_count_beyond_what_float32_holds():
    batch = {"mlp_preactivation": jnp.zeros((1, 2, 2**23 + 1))}
    histogram = Histogram(jnp.array([-1.0, 0.5, 1.0]))
    bins = jax.jit(lambda batch: histogram(batch)["bins"])(batch)
    assert bins.tolist() == [2**24 + 2, 0]


def test_bins_are_half_open_but_for_the_last():
    batch = {"mlp_preactivation": jnp.array([-1.5, -1.0, 0.0, 0.5, 1.0, 1.5])}
    assert Histogram(jnp.array([-1.0, 0.5, 1.0]))(batch)["bins"].tolist() == [2, 2]


@pytest.mark.slow
def test_figure_6_with_and_without_norm():
    """σ = 0.02·√768 = 0.554 behind a LayerNorm; 0.02 times that, 0.011, on inputs of std 0.02 without."""
    rng = np.random.default_rng(0)
    d, f, tokens = 768, 512, 256
    x = 0.02 * rng.standard_normal((tokens // 8, 8, d))
    for norm, expected in (("layernorm", 0.02 * np.sqrt(d)), ("none", 0.02**2 * np.sqrt(d))):
        cfg = ModelConfig(
            num_layers=1,
            num_heads=1,
            d_model=d,
            d_ff=f,
            vocab_size=2,
            attention=False,
            norm=norm,
            norm_eps=1e-8,
        )
        statistics = preactivation(cfg, init_seed(cfg, 0), x)
        # Σ u² over (tokens × neurons) of rank-d products: relative variance of the mean square is
        # 2/(tokens·f) + 2/(d·tokens) + 2/(d·f); half of its root is that of the std.
        error = 0.5 * np.sqrt(2 / (tokens * f) + 2 / (d * tokens) + 2 / (d * f))
        assert abs(statistics.std_L[0] / expected - 1) < 4.5 * error
        assert abs(statistics.mean_L[0]) < 4.5 * expected / np.sqrt(min(tokens, f))
    assert expected == pytest.approx(0.011, abs=2e-4)


def test_inputs_that_do_not_fit():
    cfg = preset("gpt2-tiny", num_layers=2, d_model=32, vocab_size=61, d_ff=40, num_heads=4)
    params = init_seed(cfg, 0)
    tokens = np.zeros((2, 3), int)
    with pytest.raises(InputError, match="no MLP"):
        preactivation(cfg.replace(mlp=False), params, tokens)
    with pytest.raises(InputError, match="increasing"):
        preactivation(cfg, params, tokens, edges=[0.0, 0.0])
