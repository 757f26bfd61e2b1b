"""Unevenness of activations against NumPy and SciPy on the captured activations themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bornbiased_jax.config import preset
from bornbiased_jax.models import apply, init_seed
from bornbiased_jax.probes.unevenness import measure_unevenness, sites

CFG = preset("llama-tiny", num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, d_ff=24, vocab_size=41)
TOKENS = np.random.default_rng(0).integers(0, 41, (5, 9))


@pytest.mark.slow
def test_every_site_against_a_second_computation():
    params = jax.tree.map(lambda leaf: leaf * 6.0 if leaf.ndim > 1 else leaf, init_seed(CFG, 1))
    calls = []
    found = measure_unevenness(CFG, params, TOKENS, batch_size=2, advance=calls.append)
    assert calls == [2, 2, 1]
    captured = apply(CFG, params, jnp.asarray(TOKENS), capture=sites(CFG)).layers
    for site, unevenness in found.items():
        for block in range(CFG.num_layers):
            x_NTC = np.asarray(captured[site][block], np.float64).reshape(5, 9, -1)
            norm_NT = np.linalg.norm(x_NTC, axis=-1)
            assert unevenness.largest_L[block] == pytest.approx(np.abs(x_NTC).max(), rel=1e-5)
            # float32 sums of fourth powers of some hundred entries.
            assert unevenness.kurtosis_L[block] == pytest.approx(
                stats.kurtosis(x_NTC, axis=None, fisher=False), rel=1e-4
            )
            expected = (norm_NT.max(axis=1) / np.median(norm_NT, axis=1)).mean()
            assert unevenness.dispersion_L[block] == pytest.approx(expected, rel=1e-5)
    # What the linear maps read is normalised, what they add up to is not.
    assert found["attention_input"].dispersion_L.max() < found["residual"].dispersion_L.max()


def test_a_model_has_the_sites_of_its_parts():
    assert sites(CFG.replace(attention=False)) == ("mlp_input", "mlp_hidden", "residual")
    assert sites(CFG.replace(mlp=False))[-2:] == ("attention_output", "residual")
