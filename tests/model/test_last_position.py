"""The last position alone, under windows and one by one through every captured activation."""

import functools

import jax
import numpy as np
import pytest

from bornbiased_jax import model as models
from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.model.model import CAPTURABLE

CFG = preset("llama-tiny", num_layers=3, num_heads=4, num_kv_heads=2, d_model=32, d_ff=40, vocab_size=61)
T = 7


@pytest.mark.parametrize("changes", [{}, {"window": 3}, {"positional_scale": "amplify"}], ids=str)
def test_every_capture_is_that_of_the_last_position(changes):
    cfg = CFG.replace(**changes)
    params = jax.tree.map(lambda leaf: leaf * 20.0 if leaf.ndim > 2 else leaf, init_seed(cfg, 0))
    tokens = np.random.default_rng(0).integers(0, 61, (2, T))
    names = tuple(name for name in CAPTURABLE if name not in ("attention_received", "router_logits"))
    run = functools.partial(apply, cfg, params, tokens, capture=names)
    every, last = run(), run(positions="last")
    # float32 sums of tens of terms, relative to the largest entry.
    close = functools.partial(np.testing.assert_allclose, rtol=0)
    close(last.final_BTD, every.final_BTD[:, -1:], atol=1e-5)
    assert np.ptp(np.asarray(every.final_BTD), axis=1).max() > 0.1
    for name in names:
        expected = np.asarray(every.layers[name])
        if name not in ("keys", "values"):
            axis = 3 if name == "attention_weights" else 2
            expected = np.take(expected, [-1], axis=axis)
        close(last.layers[name], expected, atol=1e-5 * np.abs(expected).max(), err_msg=name)


def test_no_copy_of_the_blocks_is_made():
    """All blocks but the last, sliced off, would be another model in memory."""
    cfg = preset("llama-tiny", num_layers=8, d_model=64, d_ff=512, num_heads=2, vocab_size=61)
    shapes = models.parameter_shapes(cfg)
    weights = 4 * models.count_parameters(shapes["blocks"])
    run = jax.jit(lambda params, x: models.apply(cfg, params, x, positions="last", logits=False).final_BTD)
    planned = run.lower(shapes, jax.ShapeDtypeStruct((1, 8), np.int32)).compile().memory_analysis()
    # A block in the loop and the last one, two of eight; all but the last would be seven.
    assert planned.temp_size_in_bytes < weights / 2
