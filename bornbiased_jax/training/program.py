"""Compile a run: the state of all its seeds on the devices, and the program that updates it."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, Sharding
from numpy.typing import ArrayLike

from bornbiased_jax import hardware, parallel, progress
from bornbiased_jax.checkpoints.formats.run import trained_shapes
from bornbiased_jax.errors import is_out_of_memory
from bornbiased_jax.init import init_seed
from bornbiased_jax.model.adapters import init_adapter
from bornbiased_jax.parameters import Params
from bornbiased_jax.training.config import PretrainConfig
from bornbiased_jax.training.cpu_shards import CpuShardsStep, cpu_shards_for
from bornbiased_jax.training.optimizer import make_optimizer
from bornbiased_jax.training.step import Metrics, Mode, State, make_loss, make_train_step, over_seeds

MEMORY_FRACTION = 0.9
Program = jax.stages.Compiled | CpuShardsStep
"""``program(state, tokens_ABT1, frozen) -> state, metrics``, of all seeds."""


def abstract_state(config: PretrainConfig, optimizer: optax.GradientTransformation, mesh: Mesh) -> State:
    """Return shapes, types and shardings of the state of all seeds."""
    count = len(config.seeds)
    trained = trained_shapes(config.model, config.adapter)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype), trained)
    # The optimizer's moments have the shapes of the parameters, and lie where these do.
    moments = jax.eval_shape(jax.vmap(optimizer.init), shapes)
    step, seed = (jax.eval_shape(lambda dtype=dtype: jnp.zeros(count, dtype)) for dtype in (jnp.int32, jnp.uint32))
    state = State(shapes, moments, step, seed)
    places = parallel.tree_shardings(config.model, state, mesh)
    abstract: State = jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), state, places
    )
    return abstract


def first_state(
    config: PretrainConfig, optimizer: optax.GradientTransformation, abstract: State, initial: Params | None
) -> State:
    """Return every seed's initial weights (bitwise ``seed:N@MODEL``), or the ones passed in; or its initial adapter.

    Args:
        config: the run.
        optimizer: of one seed.
        abstract: where the state goes.
        initial: weights to begin with, of one seed [...] or of all [S, ...]; an adapter does not ask for them.
    """
    places = jax.tree.map(lambda leaf: leaf.sharding, abstract)
    seeds, adapter = np.asarray(config.seeds, np.uint32), config.adapter
    if initial is None or adapter is not None:
        # Untrained weights, or an untrained adapter: each seed's from its own key, drawn where they will lie.
        draw = init_seed if adapter is None else lambda cfg, seed: init_adapter(cfg, adapter, seed)
        draw_seeds = jax.vmap(lambda seed: draw(config.model, seed))
        params = jax.jit(draw_seeds, out_shardings=places.params)(seeds)
    else:
        # Weights to begin with: each device takes its part of the host's arrays.
        def put(leaf: ArrayLike, target: jax.ShapeDtypeStruct) -> jax.Array:
            values = np.broadcast_to(np.asarray(leaf, np.float32), target.shape)
            return jax.make_array_from_callback(target.shape, target.sharding, lambda index: values[index])

        params = jax.tree.map(put, initial, abstract.params)
    moments = jax.jit(jax.vmap(optimizer.init), out_shardings=places.optimizer)(params)
    by_seed = [(np.zeros_like(seeds, np.int32), places.step), (seeds, places.seed)]
    return State(params, moments, *(parallel.place_array(values, place) for values, place in by_seed))


def rows_sharding(mesh: Mesh) -> Sharding | None:
    """Return how the sequences [B, …] of a micro-batch lie on the mesh; None on one device."""
    return parallel.batch_sharding(mesh) if mesh.size > 1 else None


def compile_step(
    config: PretrainConfig,
    optimizer: optax.GradientTransformation,
    abstract: State,
    mesh: Mesh,
    frozen: Params | None = None,
) -> tuple[Program, Mode]:
    """Compile the step of all seeds, its state donated; also return whether seeds run at once or in turn.

    An adapter is trained on ``frozen`` weights, one copy for all seeds.

    "auto" takes them in turn on a CPU, which one seed fills, and at once elsewhere, unless the compiler finds that
    this does not fit in 90% of the device's memory. On one CPU the batch is cut into chunks that fit its caches, a
    small model's into a part for each core; a mesh cuts the batch already.

    Returns:
        ``program(state, tokens_ABT1, frozen) -> state, metrics``, and "vmap" or "map".
    """
    loss_fn = make_loss(config.model, config.adapter, dtype=config.dtype, remat=config.remat, rows=rows_sharding(mesh))
    # Batch [A, B, T + 1], its sequences split over the mesh.
    shape = (config.accumulation, config.micro_batch, config.context + 1)
    batch = jax.ShapeDtypeStruct(shape, jnp.int32, sharding=parallel.batch_sharding(mesh, axis=1))

    def compile_mode(mode: Mode) -> Program:
        if mode == "map" and jax.default_backend() == "cpu" and mesh.size == 1:
            shards = cpu_shards_for(config.model, config.batch_size)
            return CpuShardsStep(loss_fn, optimizer, abstract, batch, shards=shards, frozen=frozen)
        places = jax.tree.map(lambda leaf: leaf.sharding, abstract), parallel.replicated(mesh)
        step = over_seeds(make_train_step(loss_fn, optimizer), mode)
        return jax.jit(step, donate_argnums=(0,), out_shardings=places).lower(abstract, batch, frozen).compile()

    if config.seeds_mode != "auto":
        return compile_mode(config.seeds_mode), config.seeds_mode
    if mesh.shape["seed"] > 1:
        return compile_mode("vmap"), "vmap"
    if jax.default_backend() == "cpu" or len(config.seeds) == 1:
        return compile_mode("map"), "map"
    # "auto" on an accelerator: all seeds at once if the compiled program fits in memory.
    limit = hardware.device_memory()
    try:
        program = compile_mode("vmap")
        plan = program.memory_analysis() if isinstance(program, jax.stages.Compiled) else None
        needed = plan.temp_size_in_bytes + plan.argument_size_in_bytes if plan is not None else 0
        if not limit or needed <= MEMORY_FRACTION * limit:
            return program, "vmap"
    except jax.errors.JaxRuntimeError as error:
        if not is_out_of_memory(error):
            raise
    progress.note(f"{len(config.seeds)} seeds at once do not fit in memory: taking them one after the other")
    return compile_mode("map"), "map"


def begin(
    config: PretrainConfig, frozen: Params | None = None
) -> tuple[State, Callable[[State, jax.Array], tuple[State, Metrics]]]:
    """Make the initial weights of a run's seeds and the step that trains them on one device, for :func:`.train.fit`.

    Unless ``config.seeds_mode`` says otherwise seeds are vmapped, and on a CPU taken one after the other within one
    program, which is faster there. The order of sums does not depend on the number of cores.

    Args:
        config: the run; its ``steps`` must be given, ``out`` and ``data`` are not used.
        frozen: the weights that ``config.adapter`` is trained on; the state is then the adapter's at its beginning.

    Returns:
        The state, leaves [S, ...], and ``step(state, tokens_ABT1) -> state, {"loss" [S], "grad_norm" [S]}``,
        compiled at its first call, its state donated.
    """
    if config.steps is None:
        raise ValueError("a run in memory needs its number of steps")
    if (config.adapter is None) != (frozen is None):
        raise ValueError("an adapter and its base weights go together")
    optimizer = make_optimizer(config, config.schedule_steps or config.steps)
    mesh = parallel.build_mesh(parallel.parse_mesh(None))
    state = first_state(config, optimizer, abstract_state(config, optimizer, mesh), None)
    mode: Mode = "map" if jax.default_backend() == "cpu" else "vmap"
    mode = mode if config.seeds_mode == "auto" else config.seeds_mode
    loss_fn = make_loss(config.model, config.adapter, dtype=config.dtype, remat=config.remat)
    program = jax.jit(over_seeds(make_train_step(loss_fn, optimizer), mode), donate_argnums=0)
    return state, lambda state, tokens_ABT1: program(state, tokens_ABT1, frozen)
