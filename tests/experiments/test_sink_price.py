"""How unevenly activations are spread, against NumPy and SciPy on the activations themselves; verdicts on prices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.config import preset
from bornbiased_jax.experiments.sinks import price_tables, sink_training
from bornbiased_jax.experiments.sinks.sink_training import sites
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply

CFG = preset("llama-tiny", num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, d_ff=24, vocab_size=41)
TOKENS = np.random.default_rng(0).integers(0, 41, (5, 9))


@pytest.mark.slow
def test_every_site_against_a_second_computation(monkeypatch):
    monkeypatch.setattr(sink_training, "batch_size_for", lambda *sizes: 2)
    params = jax.tree.map(lambda leaf: leaf * 6.0 if leaf.ndim > 1 else leaf, init_seed(CFG, 1))
    unevenness = sink_training.unevenness(CFG, params, TOKENS)
    captured = apply(CFG, params, jnp.asarray(TOKENS), capture=sites(CFG)).layers
    for site, measured in unevenness.items():
        x_LNTC = np.asarray(captured[site], np.float64).reshape(CFG.num_layers, 5, 9, -1)
        norm_LNT = np.linalg.norm(x_LNTC, axis=-1)
        assert measured["largest"] == pytest.approx(np.abs(x_LNTC).max(), rel=1e-5)
        # float32 sums of fourth powers of some hundred entries.
        kurtosis_L = [stats.kurtosis(x_NTC, axis=None, fisher=False) for x_NTC in x_LNTC]
        assert measured["kurtosis"] == pytest.approx(max(kurtosis_L), rel=1e-4)
        dispersion_L = (norm_LNT.max(axis=2) / np.median(norm_LNT, axis=2)).mean(axis=1)
        assert measured["dispersion"] == pytest.approx(dispersion_L.max(), rel=1e-5)
    # What the linear maps read is normalized, what they add up to is not.
    assert unevenness["attention_input"]["dispersion"] < unevenness["residual"]["dispersion"]


def test_a_model_has_the_sites_of_its_parts():
    assert sites(CFG.replace(attention=False)) == ("mlp_input", "mlp_hidden", "residual")
    assert sites(CFG.replace(mlp=False))[-2:] == ("attention_output", "residual")


def test_an_interval_around_zero_is_no_equality():
    intervals = [(-0.015, 0.133), (0.01, 0.02), (-0.02, -0.01)]
    assert [price_tables._worth(0.0, 0.4, interval) for interval in intervals] == [
        "no sinks, loss undecided",
        "no sinks, higher loss",
        "no sinks, lower loss",
    ]
