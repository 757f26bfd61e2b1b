"""Training in memory: the same updates as a pretraining run, in either mode, and the BOS token in front."""

import contextlib
import dataclasses

import jax
import numpy as np
import pytest

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.config import preset
from bornbiased_jax.experiments._shared import training
from bornbiased_jax.experiments._shared.training import loss_of, train_with_snapshots
from bornbiased_jax.training import PretrainConfig, load_data, pretrain
from bornbiased_jax.training.data import prepend_bos

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    sizes = dict(num_layers=1, num_heads=2, d_model=16, d_ff=24, vocab_size=260, max_seq_len=16)
    return PretrainConfig(
        model=preset("llama-tiny", **sizes), data="builtin:prose", tokenizer="byte", out=str(folder / "run"),
        seeds=(42, 123), context=16, batch_size=4, steps=6, learning_rate=3e-3, min_learning_rate=3e-4, warmup=2,
        tensorboard=False, quiet=True, token_cache=str(folder / "tokens"),
    )  # fmt: skip


def trained(config, bos_id=None):
    observed = []
    weights, seconds = train_with_snapshots(
        config,
        load_data(config).train.with_bos(bos_id),
        on_snapshot=lambda step, weights: observed.append((step, len(weights))),
        interval=4,
        label="test",
        quiet=True,
    )
    assert observed == [(0, 2), (4, 2), (6, 2)]
    assert seconds > 0
    return weights


def close(ours, other):
    # Six updates of at most 3e-3 each; what rounding does to Adam's first steps is far below 1% of one.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), ours, other)


def test_a_step_is_counted_once_the_one_before_it_is_done(config, monkeypatch):
    """Steps are dispatched ahead of the device: counted as they are dispatched, they would promise too early an end."""
    windows, events = load_data(config).train, []

    def dispatch(state, _step, _batches, hooks):
        for number in range(1, 4):
            hooks[0](number, state, f"metrics of {number}")
        return state, 3

    @contextlib.contextmanager
    def bar(*_words, **_options):
        yield lambda _number: events.append("counted")

    monkeypatch.setattr(training, "fit", dispatch)
    monkeypatch.setattr(progress, "bar", bar)
    monkeypatch.setattr(jax, "block_until_ready", lambda value: isinstance(value, str) and events.append(value))
    options = dict(interval=3, label="test", quiet=True)
    train_with_snapshots(dataclasses.replace(config, steps=3), windows, on_snapshot=lambda *_: None, **options)
    assert events == ["counted", "metrics of 1", "counted", "metrics of 2", "counted"]


@pytest.mark.nightly
def test_run_without_bos_equals_pretraining(config):
    pretrain(config)
    for seed, params in zip(config.seeds, trained(config), strict=True):
        close(params, open_checkpoint(f"{config.out}@seed={seed}").params())


@pytest.fixture(scope="module")
def with_bos_in_turn(config):
    return trained(dataclasses.replace(config, seeds_mode="map"), bos_id=259)


def test_seeds_at_once_or_in_turn(config, with_bos_in_turn):
    at_once = trained(dataclasses.replace(config, seeds_mode="vmap"), bos_id=259)
    for actual, other in zip(at_once, with_bos_in_turn, strict=True):
        close(actual, other)


def test_the_bos_token_stands_first_and_the_model_learns_of_it(config, with_bos_in_turn):
    rows = np.arange(12).reshape(2, 6)
    np.testing.assert_array_equal(prepend_bos(rows, 99), [[99, 0, 1, 2, 3, 4], [99, 6, 7, 8, 9, 10]])
    with_bos, plain = with_bos_in_turn[0], trained(dataclasses.replace(config, seeds_mode="map"))[0]
    gap = np.abs(with_bos["embed"]["embedding"] - plain["embed"]["embedding"]).max(axis=-1)
    assert gap[259] > 1e-3
    held = np.random.default_rng(0).integers(0, 256, (5, 17))
    assert loss_of(config.model, with_bos, held) == pytest.approx(np.log(260), abs=0.3)
