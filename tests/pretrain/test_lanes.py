"""Parts of a batch on the cores of one CPU: the same update, the same bits at every call."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax import keys
from bornbiased_jax.config import preset
from bornbiased_jax.models import init
from bornbiased_jax.pretrain import PretrainConfig, lanes
from bornbiased_jax.pretrain.lanes import LanedStep, lane_pieces, lanes_for, stacked
from bornbiased_jax.pretrain.optimiser import optimiser
from bornbiased_jax.pretrain.step import State, make_train_step

CFG = preset("llama-tiny", num_layers=1, d_model=16, d_ff=24, num_heads=2, vocab_size=64)
RULE = optimiser(PretrainConfig(model=CFG, data="none", out="none", warmup=2), 8)


def births(seeds: int) -> State:
    params = jax.jit(jax.vmap(lambda seed: init(CFG, key=keys.init_key(seed))))(jnp.arange(seeds, dtype=jnp.uint32))
    return State(params, jax.jit(jax.vmap(RULE.init))(params))


def batches(count: int, *shape: int) -> list[jax.Array]:
    rng = np.random.default_rng(7)
    return [jnp.asarray(rng.integers(0, CFG.vocab_size, shape), jnp.int32) for _ in range(count)]


def laned(state: State, batch: jax.Array, count: int) -> LanedStep:
    abstract = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    return LanedStep(CFG, RULE, abstract, jax.ShapeDtypeStruct(batch.shape, batch.dtype), lanes=count)


@pytest.mark.parametrize(("seeds", "count", "rows"), [(3, 2, 256), (1, 3, 8)])
def test_lanes_make_the_same_update(monkeypatch, seeds, count, rows):
    """Two updates by two and three lanes, in one piece and in several, for one seed and three."""
    monkeypatch.setattr(lanes, "ROWS", rows)
    rounds = batches(2, 2, 6, 9)
    assert lane_pieces(12 // count, 8) == {256: 1, 8: 4}[rows]
    step = jax.jit(make_train_step(CFG, RULE))
    states = [jax.tree.map(lambda leaf, seed=seed: leaf[seed], births(seeds)) for seed in range(seeds)]
    measured = []
    for batch in rounds:
        done = [step(state, batch) for state in states]
        states = [state for state, _ in done]
        measured.append({name: np.stack([found[name] for _, found in done]) for name in ("loss", "grad_norm")})
    program = laned(births(seeds), rounds[0], count)
    state = births(seeds)
    for batch, want in zip(rounds, measured, strict=True):
        state, got = program(state, batch)
        for name in want:
            assert got[name].shape == (seeds,)
            np.testing.assert_allclose(got[name], want[name], rtol=1e-5)
    want_params = jax.tree.map(lambda *leaves: np.stack(leaves), *[state.params for state in states])
    born = births(seeds).params
    moved = jax.tree.map(lambda before, after: np.abs(np.asarray(after) - np.asarray(before)).max(), born, want_params)
    for ours, theirs, far in zip(*map(jax.tree.leaves, (stacked(state).params, want_params, moved)), strict=True):
        # Adam divides by the gradient's size: where a gradient is near nothing, rounding moves its update most.
        assert far > 0
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=0.02 * far)
        assert np.abs(np.asarray(ours) - np.asarray(theirs)).mean() < 1e-4 * far


def test_the_same_bits_at_every_call():
    """Threads decide when a part is computed, and nothing else."""
    (batch,) = batches(1, 1, 8, 17)
    program = laned(births(2), batch, 2)
    first, measured = program(births(2), batch)
    for _ in range(5):
        again, found = program(births(2), batch)
        for ours, theirs in zip(jax.tree.leaves((again, found)), jax.tree.leaves((first, measured)), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_who_takes_lanes(monkeypatch):
    """A small model on one CPU, as many parts as divide its batch; a large model and a mesh take none."""
    monkeypatch.setattr(lanes, "cores", lambda: 4)
    assert [lanes_for(CFG, sequences, 1) for sequences in (1, 2, 6, 7, 16)] == [1, 2, 3, 1, 4]
    monkeypatch.setattr(lanes, "cores", lambda: 64)
    assert lanes_for(CFG, 64, 1) == lanes.MAX_LANES
    assert lanes_for(preset("llama-nano"), 16, 1) == 1
    assert lanes_for(CFG, 16, 2) == 1
    (batch,) = batches(1, 1, 3, 9)
    with pytest.raises(ValueError, match="3 sequences do not divide among 2 lanes"):
        laned(births(1), batch, 2)
