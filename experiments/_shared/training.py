"""Training in memory with snapshots on the way, and the loss of what was trained."""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.experiments.base import Entry
from bornbiased_jax.model.loss import loss_sum
from bornbiased_jax.parameters import Params
from bornbiased_jax.training import PretrainConfig, State, begin, fit
from bornbiased_jax.training.data.windows import Windows, batches, held_out
from bornbiased_jax.training.setup import Data, load_data

LARGER: Entry = {
    "changes": {"num_layers": 4, "d_model": 256, "num_heads": 8, "d_ff": 688, "vocab_size": 4_096},
    "schedule": {
        "tokenizer": "bpe:4096",
        "steps": 2_080,
        "batch_size": 32,
        "context": 256,
        "learning_rate": 1e-3,
        "min_learning_rate": 1e-4,
        "warmup": 100,
    },
}
"""Settings of models four blocks deep, 256 wide and 17 million tokens long, for hours of two cores."""
SHORTER: Entry = {"steps": 240, "warmup": 24}
"""What 2 million tokens change in that schedule, for a quarter of an hour a model."""


def in_memory(
    cfg: ModelConfig, data: str, schedule: Entry, seeds: Sequence[int] = (0,), **options: object
) -> PretrainConfig:
    """Configure a run on the bytes of a text of which nothing is written."""
    fields: Entry = {"tokenizer": "bytes", "tensorboard": False, "quiet": True, **schedule, **options}
    return PretrainConfig(model=cfg, data=data, out="unused", seeds=tuple(seeds), **fields)


def token_batches(config: PretrainConfig, windows: Windows) -> Iterator[jax.Array]:
    """Return an iterator over the batches of a run's steps, [accumulation, micro-batch, T + 1]."""
    shape = (config.accumulation, config.micro_batch, config.context + 1)
    stream = batches(windows, batch_size=config.batch_size, data_seed=config.data_seed)
    return (jnp.asarray(rows).reshape(shape) for rows in itertools.islice(stream, config.steps))


def train_with_snapshots(
    config: PretrainConfig,
    windows: Windows,
    *,
    on_snapshot: Callable[[int, list[Params]], None],
    interval: int,
    label: str,
    quiet: bool,
) -> tuple[list[Params], float]:
    """Train all seeds on the same data in the same order, under a progress bar; nothing is written.

    Args:
        config: the run; ``out`` and ``data`` are not used.
        windows: what is trained on, as :func:`bornbiased_jax.training.load_data` gives it for the run, with a BOS token
            in front or without.
        on_snapshot: called with the step and every seed's weights, before the first step, every ``interval`` steps and
            at the end.
        interval: see above.
        label: of the progress bar.
        quiet: show none.

    Returns:
        The weights of each seed, and the seconds that a step of one seed takes: those of the fastest stretch between
        two snapshots, which leaves out compilation and most of what else the machine does.
    """
    state, step = begin(config)
    steps = config.steps
    assert steps is not None  # begin refuses such a run
    # The step of the last snapshot, and when training continued after it.
    last, clock = 0, 0.0
    former: object = None
    stretches: list[float] = []

    def weights(state: State) -> list[Params]:
        return [jax.tree.map(lambda leaf, at=index: leaf[at], state.params) for index in range(len(config.seeds))]

    def on_step(number: int, state: State, metrics: object) -> None:
        nonlocal last, clock, former
        # Steps are dispatched ahead of the device: with the former one done, no more than one is counted early.
        jax.block_until_ready(former)
        former = metrics
        advance(1)
        if number % interval == 0 or number == steps:
            jax.block_until_ready(state)
            stretches.append((time.perf_counter() - clock) / (number - last))
            on_snapshot(number, weights(state))
            last, clock = number, time.perf_counter()

    with progress.bar(steps, label, unit="steps", quiet=quiet) as advance:
        on_snapshot(0, weights(state))
        clock = time.perf_counter()
        state, _ = fit(state, step, token_batches(config, windows), [on_step])
    # The first stretch has the compilation in it.
    return weights(state), min(stretches[1:] or stretches) / len(config.seeds)


class WatchedRun(NamedTuple):
    """A run in memory, its data, and what was seen at each snapshot."""

    config: PretrainConfig
    data: Data
    snapshots: list[Entry]


def watch(
    settings: Entry,
    cfg: ModelConfig,
    text: str,
    look: Callable[[int, list[Params]], Entry | None],
    *,
    label: str,
    quiet: bool,
    held_out_count: int = 64,
    **options: object,
) -> WatchedRun:
    """Train the seeds of an experiment at once on a text, and look at every snapshot.

    Args:
        settings: ``seeds``, ``schedule`` and ``every``, the steps between two snapshots.
        cfg: the architecture.
        text: the corpus.
        look: called with the step and every seed's weights; returns what is kept next to the ``step`` and the
            ``held_out_loss`` of each seed, or None where nothing is.
        label: of the progress bar.
        quiet: show no progress.
        held_out_count: rows of held-out text that the loss is of, at most.
        options: further fields of the run.
    """
    config = in_memory(cfg, text, settings["schedule"], settings["seeds"], **options)
    data = load_data(config)
    held_NT = held_out_rows(data.validation, held_out_count)
    snapshots: list[Entry] = []

    def on_snapshot(step: int, weights: list[Params]) -> None:
        if (seen := look(step, weights)) is not None:
            losses = [loss_of(cfg, params, held_NT) for params in weights]
            snapshots.append({"step": step, **seen, "held_out_loss": losses})

    every = settings["every"]
    train_with_snapshots(config, data.train, on_snapshot=on_snapshot, interval=every, label=label, quiet=quiet)
    return WatchedRun(config, data, snapshots)


def held_out_rows(windows: Windows, count: int) -> np.ndarray:
    """Return the first windows of held-out text, at most ``count`` of them: [N, T + 1]."""
    rows_NT = np.concatenate(list(held_out(windows, count, batch_size=count)))
    return np.asarray(rows_NT[rows_NT[:, 0] >= 0])


def mean_loss(cfg: ModelConfig, params: Params, rows_NT: jax.Array) -> jax.Array:
    """Compute the mean next-token loss over rows [N, T], in nats per token: traced, all rows at once."""
    total, count = loss_sum(cfg, params, rows_NT)
    return total / count


def loss_of(cfg: ModelConfig, params: Params, rows_NT: np.ndarray) -> float:
    """Compute the mean next-token loss over rows [N, T], in nats per token."""
    total = count = 0.0
    for start in range(0, len(rows_NT), 16):
        nats, tokens = _loss(cfg, params, jnp.asarray(rows_NT[start : start + 16]))
        total, count = total + float(nats), count + float(tokens)
    return total / count


@functools.partial(jax.jit, static_argnums=0)
def _loss(cfg: ModelConfig, params: Params, rows_NT: jax.Array) -> tuple[jax.Array, jax.Array]:
    return loss_sum(cfg, params, rows_NT)
