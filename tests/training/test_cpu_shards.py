"""Parts of a batch on the cores of one CPU: the same update, the same bits at every call."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.training import PretrainConfig, cpu_shards
from bornbiased_jax.training.cpu_shards import CpuShardsStep, cache_chunks, cpu_shards_for, stacked
from bornbiased_jax.training.optimizer import make_optimizer
from bornbiased_jax.training.step import State, make_loss, make_train_step
from tests.tiers import nightly_except

pytestmark = pytest.mark.as_users

CFG = preset("llama-tiny", num_layers=1, d_model=16, d_ff=24, num_heads=2, vocab_size=64)
LOSS = make_loss(CFG)
RULE = make_optimizer(PretrainConfig(model=CFG, data="none", out="none", warmup=2), 8)


@functools.cache
def _drawn(seeds: int) -> State:
    params = jax.tree.map(lambda *leaves: np.stack(leaves), *[init_seed(CFG, seed) for seed in range(seeds)])
    return State(params, jax.vmap(RULE.init)(params), np.zeros(seeds, np.int32), np.arange(seeds, dtype=np.uint32))


def initializations(seeds: int) -> State:
    """The state of untrained models, drawn once and handed out as arrays that may be given on."""
    return jax.tree.map(jnp.array, _drawn(seeds))


def batches(count: int, *shape: int) -> list[jax.Array]:
    rng = np.random.default_rng(7)
    return [jnp.asarray(rng.integers(0, CFG.vocab_size, shape), jnp.int32) for _ in range(count)]


def sharded(state: State, batch: jax.Array, count: int) -> CpuShardsStep:
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    return CpuShardsStep(LOSS, RULE, abstract, jax.ShapeDtypeStruct(batch.shape, batch.dtype), shards=count)


@pytest.mark.slow
@pytest.mark.parametrize(("seeds", "count", "rows"), nightly_except([(3, 2, 256), (1, 3, 8), (1, 1, 24)], (1, 3, 8)))
def test_cpu_shards_make_the_same_update(monkeypatch, seeds, count, rows):
    """Two updates by one, two and three shards, in one chunk and in several, for one seed and three."""
    monkeypatch.setattr(cpu_shards, "ROWS" if count == 1 else "ROWS_SHARD", rows)
    rounds = batches(2, 2, 6, 9)
    assert cache_chunks(12 // count, 8, rows) == {256: 1, 24: 4, 8: 4}[rows]
    step = jax.jit(make_train_step(LOSS, RULE))
    states = [jax.tree.map(lambda leaf, seed=seed: leaf[seed], initializations(seeds)) for seed in range(seeds)]
    measured = []
    for batch in rounds:
        done = [step(state, batch) for state in states]
        states = [state for state, _ in done]
        measured.append({name: np.stack([values[name] for _, values in done]) for name in ("loss", "grad_norm")})
    program = sharded(initializations(seeds), rounds[0], count)
    state = initializations(seeds)
    for batch, want in zip(rounds, measured, strict=True):
        state, got = program(state, batch)
        for name in want:
            assert got[name].shape == (seeds,)
            np.testing.assert_allclose(got[name], want[name], rtol=1e-5)
    want_params = jax.tree.map(lambda *leaves: np.stack(leaves), *[state.params for state in states])
    initial = initializations(seeds).params
    moved = jax.tree.map(
        lambda before, after: np.abs(np.asarray(after) - np.asarray(before)).max(), initial, want_params
    )
    for actual, reference, far in zip(*map(jax.tree.leaves, (stacked(state).params, want_params, moved)), strict=True):
        # Adam divides by the gradient's size: where a gradient is near nothing, rounding moves its update most.
        assert far > 0
        np.testing.assert_allclose(actual, reference, rtol=0, atol=0.02 * far)
        assert np.abs(np.asarray(actual) - np.asarray(reference)).mean() < 1e-4 * far


@pytest.mark.slow
def test_the_same_bits_at_every_call():
    """Threads decide when a part is computed, and nothing else."""
    (batch,) = batches(1, 1, 8, 17)
    program = sharded(initializations(2), batch, 2)
    first, measured = program(initializations(2), batch)
    for _ in range(5):
        again, results = program(initializations(2), batch)
        for actual, reference in zip(
            jax.tree.leaves((again, results)), jax.tree.leaves((first, measured)), strict=True
        ):
            np.testing.assert_array_equal(actual, reference)


@pytest.mark.slow
def test_who_takes_cpu_shards(monkeypatch):
    """A small model as many as divide its batch, and a large one none."""
    monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda: 4)
    assert [cpu_shards_for(CFG, sequences) for sequences in (1, 2, 6, 7, 16)] == [1, 2, 3, 1, 4]
    monkeypatch.setattr("bornbiased_jax.hardware.cores", lambda: 64)
    assert cpu_shards_for(CFG, 64) == cpu_shards.MAX_SHARDS
    assert cpu_shards_for(preset("llama-nano"), 16) == 1
    (batch,) = batches(1, 1, 3, 9)
    with pytest.raises(ValueError, match="3 sequences do not divide among 2 shards"):
        sharded(initializations(1), batch, 2)


def test_chunks_that_fit_a_cache():
    assert [cache_chunks(*shape, 64) for shape in ((4, 16), (8, 16), (6, 16), (7, 16), (3, 128))] == [1, 2, 2, 7, 3]
