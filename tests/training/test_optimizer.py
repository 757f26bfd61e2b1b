"""AdamW against its formulas, and the schedule at its corners."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.init import init_seed
from bornbiased_jax.parameters import flatten
from bornbiased_jax.training import pretrain, read_metrics
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.optimizer import decay_mask, learning_rate, make_optimizer, muon_dimensions

CFG = preset("qwen3-tiny", num_layers=2, d_model=16, num_heads=2, num_kv_heads=1, d_ff=24, vocab_size=32)
RUN = PretrainConfig(model=CFG, data="x", out="run", warmup=3, steps=10, clip=0.5)


def written_out(peak, floor, warmup, steps, count):
    """The rate of update ``count`` (from 0) by the formula: linear to the peak, then half a cosine to the floor."""
    if count < warmup:
        return peak * (count + 1) / warmup
    way = min(1.0, (count - warmup) / max(1, steps - 1 - warmup))
    return floor + 0.5 * (peak - floor) * (1 + np.cos(np.pi * way))


@pytest.mark.parametrize("warmup, steps, floor", [(3, 10, 1e-4), (1, 7, 0.0), (0, 1, 1e-4), (9, 9, 1e-4), (20, 5, 0.0)])
def test_schedule_is_the_formula(warmup, steps, floor):
    run = PretrainConfig(model=CFG, data="x", out="run", warmup=warmup, steps=steps, min_learning_rate=floor)
    rates = jax.vmap(learning_rate(run, steps))(jnp.arange(steps + 3))
    expected = [written_out(1e-3, floor, warmup, steps, count) for count in range(steps + 3)]
    # Near the floor a rate is a small difference of numbers of the size of the peak: float32 roundings of those.
    np.testing.assert_allclose(rates, expected, rtol=1e-6, atol=1e-3 * 2**-22)


def test_only_matrices_decay():
    decays = flatten(decay_mask(CFG))
    exempt = {path.split("/")[-1] for path, decay in decays.items() if not decay}
    taken = {path.split("/")[-1] for path, decay in decays.items() if decay}
    assert exempt == {"scale"} and taken == {"kernel", "embedding"}
    biased = flatten(decay_mask(preset("gpt2-tiny", sink_logit="learned")))
    assert {path.split("/")[-1] for path, decay in biased.items() if not decay} == {"scale", "bias", "sink_logit"}


@pytest.mark.slow
def test_three_updates_by_hand():
    """Two seeds at once, each with its own norm to clip, against AdamW written out in float64."""
    chain = make_optimizer(RUN, 10)
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[init_seed(CFG, seed) for seed in (1, 2)])
    state = jax.vmap(chain.init)(params)
    update = jax.jit(jax.vmap(chain.update))
    mask, rate = flatten(decay_mask(CFG)), learning_rate(RUN, 10)
    expected = {path: np.asarray(leaf, np.float64) for path, leaf in flatten(params).items()}
    first = {path: np.zeros_like(leaf) for path, leaf in expected.items()}
    second = {path: np.zeros_like(leaf) for path, leaf in expected.items()}
    rng = np.random.default_rng(0)
    for count in range(3):
        scale = np.asarray([0.001, 3.0])
        grads = {
            path: rng.normal(size=leaf.shape) * scale.reshape(2, *(1,) * (leaf.ndim - 1))
            for path, leaf in expected.items()
        }
        tree = jax.tree.unflatten(
            jax.tree.structure(params), [jnp.asarray(grads[path], jnp.float32) for path in _paths(params)]
        )
        updates, state = update(tree, state, params)
        params = jax.tree.map(jnp.add, params, updates)
        norm = np.sqrt(sum((grad**2).reshape(2, -1).sum(1) for grad in grads.values()))
        assert norm[0] < RUN.clip < norm[1]
        for path, grad in grads.items():
            shape = (2, *(1,) * (grad.ndim - 1))
            grad = grad * np.minimum(1.0, RUN.clip / norm).reshape(shape)
            first[path] = 0.9 * first[path] + 0.1 * grad
            second[path] = 0.95 * second[path] + 0.05 * grad**2
            mean, square = first[path] / (1 - 0.9 ** (count + 1)), second[path] / (1 - 0.95 ** (count + 1))
            step = mean / (np.sqrt(square) + RUN.epsilon) + RUN.weight_decay * mask[path] * expected[path]
            expected[path] = expected[path] - float(rate(jnp.asarray(count))) * step
    for path, leaf in flatten(params).items():
        # A step is about 1e-3 and has a relative error of a few float32 roundings (6e-8 each).
        np.testing.assert_allclose(leaf, expected[path], rtol=1e-6, atol=3e-8, err_msg=path)


def _paths(tree):
    return ["/".join(str(entry.key) for entry in path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


@pytest.mark.parametrize(
    "name, expected",
    [
        ("constant", [1e-3] * 7),
        ("linear", [1e-3, 8.5e-4, 7e-4, 5.5e-4, 4e-4, 2.5e-4, 1e-4]),
        # A fifth of ten updates is two: the rate stays up to the third from the end.
        ("wsd", [1e-3] * 5 + [5.5e-4, 1e-4]),
    ],
)
def test_schedules_by_name_reach_peak_and_minimum(name, expected):
    run = PretrainConfig(model=CFG, data="x", out="run", warmup=3, steps=10, schedule=name)
    rates = jax.vmap(learning_rate(run, 10))(jnp.arange(10))
    np.testing.assert_allclose(rates, [1e-3 / 3, 2e-3 / 3, 1e-3, *expected], rtol=1e-5)


@pytest.mark.slow
def test_muon_of_stacked_blocks_is_muon_of_each_matrix():
    """Two updates of stacks [layer, in, out] and [layer, expert, in, out] against Optax on one matrix at a time."""
    sizes = dict(num_layers=2, d_model=16, num_heads=2, num_kv_heads=1, d_ff=24, vocab_size=32, shared_expert_width=20)
    cfg = preset("mixtral-tiny", **sizes)
    run = PretrainConfig(model=cfg, data="x", out="run", optimizer="muon", clip=1e9, warmup=0, schedule="constant")
    params, rng = init_seed(cfg, 1), np.random.default_rng(0)
    grads = [jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape), jnp.float32), params) for _ in range(2)]

    def second_update(optimizer, params, grads):
        state = optimizer.init(params)
        _, state = optimizer.update(grads[0], state, params)
        return optimizer.update(grads[1], state, params)[0]

    second_update = jax.jit(second_update, static_argnums=0)
    updates = flatten(second_update(make_optimizer(run, 10), params, grads))
    alone = optax.contrib.muon(run.learning_rate, weight_decay=run.weight_decay, consistent_rms=0.2)
    kernels = [path for path, dimensions in flatten(muon_dimensions(cfg)).items() if dimensions is not None]
    assert {path.split("/")[-2] for path in kernels} == {"query", "key", "value", "output", "gate", "up", "down"}
    assert len([path for path in kernels if "/shared_expert/" in path]) == 3
    for path in kernels:
        weights, first, second = (flatten(tree)[path] for tree in (params, *grads))
        for index in np.ndindex(weights.shape[:-2]):
            expected = second_update(alone, weights[index], [first[index], second[index]])
            # Five Newton–Schulz iterations in float32, batched or not.
            np.testing.assert_allclose(updates[path][index], expected, rtol=1e-4, atol=1e-7, err_msg=path)


@pytest.mark.nightly
def test_muon_learns_and_resumes_to_the_same_bits(tmp_path):
    (tmp_path / "text.txt").write_text("the river under a stone bird and the sun\n\n" * 80)
    runs = []
    for name, parts in (("whole", (8,)), ("parts", (4, 8))):
        for steps in parts:
            config = PretrainConfig(
                model=preset("llama-tiny", num_layers=2, d_model=16, num_heads=2, d_ff=24, vocab_size=256),
                data=str(tmp_path / "text.txt"), tokenizer="bytes", out=str(tmp_path / name), context=16, batch_size=4,
                steps=steps, schedule_steps=8, warmup=1, learning_rate=1e-2, optimizer="muon", schedule="wsd",
                token_cache=str(tmp_path / "tokens"), tensorboard=False, quiet=True,
            )  # fmt: skip
            summary = pretrain(config)
        runs.append(summary)
    assert runs[1]["resumed_from"] == 4 and runs[0]["digests"] == runs[1]["digests"]
    losses = [line["loss"][0] for line in read_metrics(config.out)]
    assert losses[-1] < losses[0] - 0.5
