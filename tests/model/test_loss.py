"""The chunked cross-entropy against the plain formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.model import apply
from bornbiased_jax.model import loss as loss_module
from bornbiased_jax.model.loss import bits_per_byte, chunk_length, loss_of_final, loss_sum, unrolled_blocks
from bornbiased_jax.training.step import State, make_loss, make_train_step, over_seeds


def plain(final, table, labels, axis):
    logits = jnp.einsum("btd,vd->btv" if axis == 1 else "btd,dv->btv", final, table, precision="highest")
    logs = jax.nn.log_softmax(logits, axis=-1)
    chosen = jnp.take_along_axis(logs, jnp.maximum(labels, 0)[..., None], axis=-1)[..., 0]
    return -jnp.sum(jnp.where(labels >= 0, chosen, 0.0))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("chunk", [1, 3, 12])
def test_value_and_gradients(monkeypatch, axis, chunk):
    B, T, D, V = 3, 12, 8, 50
    monkeypatch.setattr(loss_module, "chunk_length", lambda *_: chunk)
    cfg = preset("llama-tiny", tie_embeddings=axis == 1)
    rng = np.random.default_rng(axis)
    final = jnp.asarray(rng.normal(size=(B, T, D)), jnp.float32)
    table = jnp.asarray(rng.normal(size=(D, V) if axis == 0 else (V, D)), jnp.float32)
    labels = jnp.asarray(rng.integers(-10, V, (B, T)), jnp.int32)
    assert (labels < 0).any()

    def ours(final, table):
        params = {"embed": {"embedding": table}, "head": {"kernel": table}}
        return 0.25 * loss_of_final(cfg, params, final, labels, precision="highest")[0]

    want, (want_final, want_table) = jax.value_and_grad(
        lambda final, table: 0.25 * plain(final, table, labels, axis), argnums=(0, 1)
    )(final, table)
    got, (got_final, got_table) = jax.value_and_grad(ours, argnums=(0, 1))(final, table)
    # Sums of some hundred float32 terms of order one: a few times 1e-6.
    np.testing.assert_allclose(got, want, rtol=3e-6)
    np.testing.assert_allclose(ours(final, table), want, rtol=3e-6)
    np.testing.assert_allclose(got_final, want_final, rtol=2e-5, atol=3e-6)
    np.testing.assert_allclose(got_table, want_table, rtol=2e-5, atol=3e-6)


def test_chunks_divide_the_length(monkeypatch):
    cfg = preset("llama-tiny", vocab_size=1000)
    monkeypatch.setattr(loss_module, "CHUNK_CPU", 32_000)
    assert chunk_length(cfg, 4, 64) == 8
    assert chunk_length(cfg, 4, 7) == 7
    assert chunk_length(cfg, 4, 11) == 1
    assert chunk_length(cfg, 400, 64) == 1


def test_bits_per_byte():
    assert bits_per_byte(8 * np.log(2), 4) == pytest.approx(2.0)


CFG = preset("llama-tiny", num_layers=2, num_heads=2, d_model=16, d_ff=24, vocab_size=40)


def tokens(*shape):
    return jnp.asarray(np.random.default_rng(3).integers(0, 40, shape), jnp.int32)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"tie_embeddings": False}, {"tie_embeddings": True}, {"logit_scale": 0.25, "logit_softcap": 0.1}]
)
def test_loss_is_that_of_the_logits(changes):
    cfg = CFG.replace(**changes)
    params = init_seed(cfg, 0)
    batch = tokens(2, 9).at[1, :].set(-1)
    total, count = loss_sum(cfg, params, batch)
    logs = jax.nn.log_softmax(apply(cfg, params, batch[:1, :-1]).logits_BTV, axis=-1)
    want = -jnp.take_along_axis(logs, batch[:1, 1:, None], axis=-1).sum()
    assert count == 8
    np.testing.assert_allclose(total, want, rtol=1e-6)
    remade, _ = loss_sum(cfg, params, batch, remat=True)
    np.testing.assert_allclose(remade, total, rtol=1e-6)
    half, _ = loss_sum(cfg, params, batch, dtype="bfloat16")
    # bfloat16 keeps 8 bits; the logits of an untrained model are small, so the loss moves by far less.
    np.testing.assert_allclose(half, total, rtol=2e-3)


@pytest.mark.slow
def test_blocks_written_out_are_the_loop_over_them(monkeypatch):
    """A loop, blocks without one, and a loop that computes everything again: one loss, one gradient."""
    params = init_seed(CFG, 0)
    batch = tokens(4, 9)
    assert unrolled_blocks(CFG) == 2 and unrolled_blocks(CFG, remat=True) == 1
    results = []
    for deepest, remat in ((2, False), (1, False), (2, True)):
        monkeypatch.setattr(loss_module, "MAX_UNROLLED", deepest)
        grad = jax.value_and_grad(lambda params, remat=remat: loss_sum(CFG, params, batch, remat=remat)[0])
        results.append(jax.jit(grad)(params))
    assert unrolled_blocks(CFG.replace(num_layers=3)) == 1
    for other in results[1:]:
        for actual, reference in zip(jax.tree.leaves(other), jax.tree.leaves(results[0]), strict=True):
            # Gradients of order one over 32 tokens, summed in another order.
            np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-5 * float(jnp.abs(reference).max()))


class _Descent:
    """Plain gradient descent stands for the optimizer: linear in the gradient."""

    @staticmethod
    def update(grads, state, params):
        return jax.tree.map(lambda leaf: -leaf, grads), state


@pytest.mark.slow
def test_accumulation_and_modes_agree():
    """Two micro-batches are one batch; seeds at once are seeds in turn and seeds alone."""
    train_step = make_train_step(make_loss(CFG.replace(num_layers=1)), _Descent())
    step = jax.jit(train_step)
    seeds = jnp.asarray([1, 2, 3], jnp.uint32)
    params = jax.jit(jax.vmap(lambda seed: init_seed(CFG.replace(num_layers=1), seed)))(seeds)
    state = State(params, (), jnp.zeros(3, jnp.int32), seeds)
    batch = tokens(2, 4, 9)
    alone = [step(jax.tree.map(lambda leaf, i=i: leaf[i], state), batch.reshape(1, 8, 9)) for i in range(3)]
    want = jax.tree.map(lambda *leaves: jnp.stack(leaves), *alone)
    for mode in ("vmap", "map"):
        got = jax.jit(over_seeds(train_step, mode))(state, batch)
        for actual, reference in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            # Gradients of order 0.1 summed in another order.
            np.testing.assert_allclose(actual, reference, rtol=1e-5, atol=1e-7)
