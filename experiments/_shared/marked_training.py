"""A small training loop whose sequences may begin with a mark: where sinks grow within minutes on two cores.

Windows of packed text begin anywhere, so a small model has little to tell the first token by, and grows no
sink in the time that two cores have. An id of its own at the first position, as a beginning-of-sequence token
is, makes the first position recognisable, and sinks come within a thousand steps. The optimiser, the schedule
and the order of the data are those of :mod:`bornbiased_jax.pretrain`; there are no checkpoints.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.data.windows import batches
from bornbiased_jax.models import init_seed
from bornbiased_jax.models.loss import loss_sum
from bornbiased_jax.models.parameters import Params
from bornbiased_jax.pretrain.optimiser import optimiser
from bornbiased_jax.pretrain.settings import PretrainConfig
from bornbiased_jax.pretrain.setup import Data
from bornbiased_jax.pretrain.step import Mode, State, make_train_step, over_seeds


def mark(rows_NT: np.ndarray, mark_id: int) -> np.ndarray:
    """The mark in front, and the last id dropped: the same shape."""
    front = np.full((len(rows_NT), 1), mark_id, rows_NT.dtype)
    return np.concatenate([front, rows_NT[:, :-1]], axis=1)


def train(
    config: PretrainConfig,
    data: Data,
    *,
    mark_id: int | None,
    look: Callable[[int, list[Params]], None],
    every: int,
    advance: Callable[[int], None],
) -> tuple[list[Params], float]:
    """Train all seeds on the same data in the same order; nothing is written.

    Unless ``config.seeds_mode`` says otherwise, seeds are vmapped, and on a CPU taken one after the other within one
    program, which is faster there.

    Args:
        config: the run; ``out`` is not used.
        data: what :func:`bornbiased_jax.pretrain.setup.load_data` gives for it.
        mark_id: an id that the tokenizer does not have, put at the first position of every sequence; or None.
        look: called with the step and every seed's weights, before the first step, every ``every`` steps and
            at the end.
        every: see above.
        advance: called with 1 after each step.

    Returns:
        The weights of each seed, and the seconds that a step of one seed takes: those of the fastest stretch between
        two looks, which leaves out compilation and most of what else the machine does.
    """
    assert config.steps is not None
    cfg, rule = config.model, optimiser(config, config.steps)
    born = [init_seed(cfg, seed) for seed in config.seeds]
    params_S = jax.tree.map(lambda *leaves: jnp.stack(leaves), *born)
    state = State(params_S, jax.vmap(rule.init)(params_S))
    mode: Mode = "map" if jax.default_backend() == "cpu" else "vmap"
    mode = mode if config.seeds_mode == "auto" else config.seeds_mode
    step = jax.jit(over_seeds(make_train_step(cfg, rule, dtype=config.dtype), mode), donate_argnums=0)
    stream = batches(data.train, batch_size=config.batch_size, data_seed=config.data_seed)

    def weights() -> list[Params]:
        return [jax.tree.map(lambda leaf, at=index: leaf[at], state.params) for index in range(len(config.seeds))]

    stretches: list[float] = []
    started, start = 0, time.perf_counter()
    for number in range(config.steps + 1):
        if number % every == 0 or number == config.steps:
            jax.block_until_ready(state)
            if number > started:
                stretches.append((time.perf_counter() - start) / (number - started))
            look(number, weights())
            started, start = number, time.perf_counter()
        if number < config.steps:
            rows = next(stream)
            rows = rows if mark_id is None else mark(rows, mark_id)
            state, _ = step(state, jnp.asarray(rows)[None])
            advance(1)
    # The first stretch has the compilation in it.
    return weights(), min(stretches[1:] or stretches) / len(config.seeds)


def loss_of(cfg: ModelConfig, params: Params, rows_NT: np.ndarray) -> float:
    """Mean next-token loss over rows [N, T], in nats per token."""
    total = count = 0.0
    for start in range(0, len(rows_NT), 16):
        nats, tokens = _loss(cfg, params, jnp.asarray(rows_NT[start : start + 16]))
        total, count = total + float(nats), count + float(tokens)
    return total / count


@functools.partial(jax.jit, static_argnums=0)
def _loss(cfg: ModelConfig, params: Params, rows_NT: jax.Array) -> tuple[jax.Array, jax.Array]:
    return loss_sum(cfg, params, rows_NT)
