"""The kernels of attention at the ends of their ranges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.model.attention import KERNELS, SOFTPICK_EPSILON
from bornbiased_jax.parameters import flatten

T = 6
SEEN = jnp.tril(jnp.ones((T, T), bool))[None, None]


def weights(name, scores_TS, longest=12):
    return np.asarray(KERNELS[name](jnp.asarray(scores_TS, jnp.float32)[None, None], SEEN, longest))[0, 0]


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_not_seen_weighs_nothing_whatever_its_logit(name):
    scores = np.random.default_rng(0).standard_normal((T, T))
    wild = np.where(np.asarray(SEEN[0, 0]), scores, 500.0)
    np.testing.assert_array_equal(weights(name, wild), weights(name, scores))
    assert np.all(weights(name, wild)[~np.asarray(SEEN[0, 0])] == 0)

    def loss(scores_TS):
        return jnp.sum(KERNELS[name](scores_TS[None, None], SEEN, 12) ** 2)

    assert np.all(np.isfinite(jax.grad(loss)(jnp.asarray(wild, jnp.float32))))


@pytest.mark.parametrize("name", KERNELS)
def test_huge_logits_stay_finite(name):
    scores = np.zeros((T, T))
    scores[:, 1], scores[:, 2] = 3e4, -3e4
    found = weights(name, scores)
    assert np.all(np.isfinite(found))
    # The key with the huge logit takes everything that there is to take.
    np.testing.assert_allclose(found[-1, 1], 1 - 1 / T if name == "centred" else 1.0, rtol=1e-6)


def test_equal_logits():
    """Born: uniform for the softmax, nothing for the centred and for softpick, nothing beyond a length for clipped."""
    scores = np.zeros((T, T))
    assert np.all(weights("softpick", scores) == 0)
    np.testing.assert_allclose(weights("centred", scores), 0, atol=2.0**-24)
    row = weights("clipped", scores)
    # gamma = -4/12: (1 + 1/3)/i - 1/3 is positive up to i = 3, 0 at 4.
    np.testing.assert_allclose(row[:, 0], np.maximum((4 / 3) / np.arange(1, T + 1) - 1 / 3, 0), atol=2.0**-22)


def test_small_logits_keep_relative_precision_in_softpick():
    scores = np.full((T, T), 1e-7)
    scores[:, 0] = -1e-7
    expected = 1e-7 / (T * 1e-7 + SOFTPICK_EPSILON)
    np.testing.assert_allclose(weights("softpick", scores)[-1, 1:], expected, rtol=1e-5)


@pytest.mark.parametrize("kernel", sorted(set(KERNELS) - {"softmax"}))
def test_an_extra_logit_needs_the_softmax(kernel):
    with pytest.raises(InputError, match="extra logit of a softmax"):
        ModelConfig(attention_kernel=kernel, sink_logit="zero")


def test_a_gate_of_zero_halves_every_value():
    cfg = ModelConfig(num_layers=1, num_heads=2, d_model=16, d_ff=16, vocab_size=11, output_gate="value")
    params = init_seed(cfg, 0)
    assert flatten(params)["blocks/attention/value_gate/kernel"].shape == (1, 8, 8)
    gate = params["blocks"]["attention"].pop("value_gate")
    tokens = jnp.arange(6)[None]
    plain = apply(cfg.replace(output_gate="none"), params, tokens, capture=("values",)).layers["values"]
    params["blocks"]["attention"]["value_gate"] = jax.tree.map(jnp.zeros_like, gate)
    gated = apply(cfg, params, tokens, capture=("values",)).layers["values"]
    np.testing.assert_array_equal(gated, plain / 2)
