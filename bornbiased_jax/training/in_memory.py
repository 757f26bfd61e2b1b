"""Train in memory: a state, a step and batches in, the trained state out; nothing is written.

:func:`bornbiased_jax.training.pretrain` puts checkpoints, metrics and signals around the same loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import jax

from bornbiased_jax import parallel
from bornbiased_jax.parameters import Params
from bornbiased_jax.training.optimiser import optimiser
from bornbiased_jax.training.settings import PretrainConfig
from bornbiased_jax.training.setup import abstract_state, first_state
from bornbiased_jax.training.step import Mode, State, make_train_step, over_seeds

Measured = dict[str, jax.Array]
Step = Callable[[Any, Any], tuple[Any, Measured]]


def train(
    state: Any,
    step: Step,
    batches: Iterable[Any],
    on_step: Callable[[int, Any, Measured], None] | None = None,
    *,
    first: int = 0,
) -> tuple[Any, int]:
    """Update a state with one batch after the other, until there are no more.

    Args:
        state: where to begin. A step that donates its state gives these arrays up.
        step: ``step(state, batch) -> state, measured``, as :func:`begin` makes it.
        batches: what the step takes; the loop ends with them. The next one is asked for after ``on_step``.
        on_step: called after every update with the number of updates made, the new state and what the step measured.
            Neither is waited for, so that the next step can follow at once; the next step may donate the state.
        first: updates made before.

    Returns:
        The last state, and the number of updates made.

    >>> train(0.0, lambda state, batch: (state + batch, {}), [1.0, 2.0, 4.0])
    (7.0, 3)
    """
    number = first
    for batch in batches:
        state, measured = step(state, batch)
        number += 1
        if on_step is not None:
            on_step(number, state, measured)
    return state, number


def begin(config: PretrainConfig, frozen: Params | None = None) -> tuple[State, Step]:
    """Make the initial weights of a run's seeds and the step that trains them on one device, for :func:`train`.

    Unless ``config.seeds_mode`` says otherwise seeds are vmapped, and on a CPU taken one after the other within one
    program, which is faster there. The order of sums does not depend on the number of cores.

    Args:
        config: the run; its ``steps`` must be given, ``out`` and ``data`` are not used.
        frozen: the weights that ``config.adapter`` is trained beside; the state is then the adapter's at its beginning.

    Returns:
        The state, leaves [S, ...], and ``step(state, tokens_ABT1) -> state, {"loss" [S], "grad_norm" [S]}``,
        compiled at its first call, its state donated.
    """
    if config.steps is None:
        raise ValueError("a run in memory needs its number of steps")
    rule = optimiser(config, config.schedule_steps or config.steps)
    mesh = parallel.build_mesh(parallel.parse_mesh(None))
    state = first_state(config, rule, abstract_state(config, rule, mesh), None)
    mode: Mode = "map" if jax.default_backend() == "cpu" else "vmap"
    mode = mode if config.seeds_mode == "auto" else config.seeds_mode
    adapter = config.adapter
    if (adapter is None) != (frozen is None):
        raise ValueError("an adapter and the weights beside it go together")
    step = make_train_step(config.model, rule, dtype=config.dtype, remat=config.remat, adapter=adapter)
    compiled = jax.jit(over_seeds(step, mode), donate_argnums=0)
    return state, compiled if frozen is None else lambda state, batch: compiled(state, batch, frozen)
