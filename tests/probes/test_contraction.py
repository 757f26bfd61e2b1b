"""Streaming sums against the N×N matrix they replace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.probes import contraction
from bornbiased_jax.probes.observe import Observation, mean_cosine_between_positions, unit

CFG = preset("gpt2-tiny", num_layers=2, d_model=16, num_heads=2, vocab_size=32)


def observation(states_LND, intra_LN=None):
    return Observation(
        jnp.asarray(states_LND[:-1]),
        jnp.asarray(states_LND[-1]),
        jnp.zeros(states_LND.shape[1], jnp.int32),
        None if intra_LN is None else jnp.asarray(intra_LN),
    )


def stream(states_LND, last_N, sizes, intra_LN=None):
    order = np.argsort(last_N, kind="stable")
    states, last = states_LND[:, order], last_N[order].astype(np.int32)
    intra = None if intra_LN is None else intra_LN[:, order]
    state, start, update = contraction.init(CFG), 0, jax.jit(contraction.update)
    for size, padding in sizes:
        at = np.minimum(np.arange(start, start + size + padding), len(last) - 1)
        weight = jnp.asarray(np.arange(size + padding) < size, jnp.float32)
        observed = observation(states[:, at], None if intra is None else intra[:, at])
        state = update(state, observed, weight, jnp.asarray(last[at]))
        start += size
    return contraction.reduce(state)


@pytest.mark.parametrize("vocab", [3, 40, 1_000])
@pytest.mark.parametrize("sizes", [[(60, 0)], [(20, 0), (20, 0), (20, 0)], [(32, 0), (28, 4)], [(1, 0), (59, 3)]])
def test_means_and_std_equal_the_pairwise_matrix(vocab, sizes):
    rng = np.random.default_rng(vocab)
    shift = np.asarray([0.0, 0.5, 2.0], np.float32)[:, None, None]
    states = rng.standard_normal((3, 60, 16)).astype(np.float32) + shift
    last = rng.integers(0, vocab, 60)
    record = contraction.summarize(stream(states, last, sizes), d_model=16, intra=False)
    exact = states.astype(np.float64)
    exact /= np.linalg.norm(exact, axis=-1, keepdims=True)
    cosines = np.einsum("lid,ljd->lij", exact, exact)
    off = ~np.eye(60, dtype=bool)
    distinct = off & (last[:, None] != last[None, :])
    got = [*record["inter_cosine_by_layer"], record["inter_cosine_final"]]
    std = [*record["inter_cosine_std_by_layer"], record["inter_cosine_std_final"]]
    every = [*record["inter_cosine_all_pairs_by_layer"], record["inter_cosine_all_pairs_final"]]
    # float32 sums of 60 unit vectors: a relative error of about 60 · 2⁻²⁴ of sums of order 60².
    np.testing.assert_allclose(got, [c[distinct].mean() for c in cosines], atol=2e-6)
    np.testing.assert_allclose(every, [c[off].mean() for c in cosines], atol=2e-6)
    np.testing.assert_allclose(std, [c[off].std() for c in cosines], atol=2e-5)
    assert record["pairs_sharing_last_token"] == pytest.approx(1 - distinct.sum() / off.sum(), abs=1e-6)


def test_states_near_1e_minus_30_keep_their_direction():
    """Footnote 5: norms pass below 1e−8 in deep MLP₀ stacks; the cosine has no epsilon to be swallowed by."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((5, 16)).astype(np.float32)
    np.testing.assert_allclose(unit(jnp.asarray(x * np.float32(1e-30))), unit(jnp.asarray(x)), rtol=1e-5)
    assert np.all(np.asarray(unit(jnp.zeros((2, 4)))) == 0)


def test_intra_cosine_equals_the_matrix():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 7, 16)) + 0.4
    hat = x / np.linalg.norm(x, axis=-1, keepdims=True)
    cosines = np.einsum("bid,bjd->bij", hat, hat)
    exact = (cosines.sum((1, 2)) - 7) / (7 * 6)
    np.testing.assert_allclose(mean_cosine_between_positions(jnp.asarray(x, jnp.float32)), exact, atol=1e-6)


def test_intra_statistics_ignore_padding():
    rng = np.random.default_rng(4)
    states = rng.standard_normal((3, 10, 16)).astype(np.float32)
    intra = rng.uniform(-1, 1, (2, 10)).astype(np.float32)
    sums = stream(states, np.arange(10), [(7, 0), (3, 4)], intra)
    record = contraction.summarize(sums, d_model=16, intra=True)
    np.testing.assert_allclose(record["intra_cosine_by_layer"], intra.mean(1), atol=1e-6)
    np.testing.assert_allclose(record["intra_cosine_std_by_layer"], intra.std(1), atol=1e-5)
