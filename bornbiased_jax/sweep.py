"""Run a function of one seed over hundreds of seeds.

The work is always: a birth (seed → weights), a stream of input batches folded into a small state, and
a last reduction. Seeds run in chunks; within a chunk they are vmapped, or taken one after the other by
``lax.map``; over a mesh with an axis ``seed`` each device takes its part. The result does not depend
on any of this beyond the rounding of matrix products whose shapes differ (see ``tests/test_sweep.py``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bornbiased_jax import hardware, parallel
from bornbiased_jax.errors import InputError
from bornbiased_jax.keys import check_seed

Mode = Literal["auto", "vmap", "map"]
CPU_BUDGET_BYTES = 2 * 2**30
MAX_CHUNK = 256
MAX_SHARDS = 4
STEADY_CHUNK = 8


class Work(NamedTuple):
    """What is done for each seed; all pure functions, traced once per chunk size.

    Equal works (the same function objects) share their compiled programs between calls.
    """

    birth: Callable[[jax.Array], Any] | None
    """seed (uint32 scalar) → parameters; None where the parameters are given to :func:`sweep`."""
    zero: Callable[[], Any]
    """→ the empty state"""
    step: Callable[[Any, Any, Any], Any]
    """(parameters, state, batch) → state"""
    finish: Callable[[Any, Any], Any]
    """(parameters, state) → a small pytree of arrays"""


class Plan(NamedTuple):
    """How the seeds are laid out."""

    mode: Literal["vmap", "map"]
    chunk: int
    bytes_per_seed: int
    cpu_shards: int = 1
    """Parts of a chunk that run side by side on one device, each in a thread of its own."""
    devices: int = 1

    @property
    def at_once(self) -> int:
        """Seeds in one program on one device: another number moves the last digits of a result."""
        return self.chunk // (self.cpu_shards * self.devices)


def plan(
    work: Work,
    batch: Any,
    num_seeds: int,
    *,
    mode: Mode = "auto",
    chunk: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
    weights: Any = None,
    steady: bool = False,
) -> Plan:
    """Choose mode and chunk from the memory that one seed needs.

    On a CPU the products of one seed fill the cores but what lies between them does not, so seeds run
    one after the other in as many CPU shards as there are cores (at most ``MAX_SHARDS``). On an accelerator
    they are vmapped, as many as fit in 60% of its memory by the compiler's own account of one seed.

    With ``steady`` the same seed gives the same bits whatever the number of seeds, of cores and the memory of the
    machine: one seed in a program at a time, or, where they are vmapped, as many as the sizes of the model say (or
    ``chunk``). Cores then only say how many programs run side by side.

    Raises:
        InputError: a chunk below 1, or a mesh without an axis ``seed``.
    """
    if chunk is not None and chunk < 1:
        raise InputError(f"chunk={chunk} is not at least 1")
    if mesh is not None and "seed" not in mesh.axis_names:
        raise InputError(f"the mesh has axes {', '.join(mesh.axis_names)}: a sweep needs an axis seed")
    # One given model is one seed: its devices share the inputs.
    devices = 1 if mesh is None or work.birth is None else mesh.shape["seed"]
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    params = _shapes(weights) if work.birth is None else jax.eval_shape(work.birth, seed)
    state = jax.eval_shape(work.zero)
    held = _bytes(state) + (0 if work.birth is None else _bytes(params))
    on_cpu = jax.default_backend() == "cpu"
    chosen: Literal["vmap", "map"] = ("map" if on_cpu else "vmap") if mode == "auto" else mode
    budget = float(CPU_BUDGET_BYTES)
    if not on_cpu:
        limit = hardware.device_memory()
        budget = 0.6 * limit if limit else budget
    threaded = on_cpu and mesh is None and chosen == "map"
    # A steady layout follows from sizes alone.
    if steady:
        if chosen == "vmap":
            most = min(STEADY_CHUNK, max(1, CPU_BUDGET_BYTES // max(1, held)))
            return Plan(chosen, (math.ceil(chunk / devices) if chunk else most) * devices, held, 1, devices)
        shards = min(MAX_SHARDS, hardware.cores(), chunk or num_seeds) if threaded else 1
        return Plan(chosen, shards * devices, held, shards, devices)
    # Else as many seeds as fit in the budget.
    if chosen == "vmap":
        held += _scratch(work, params, state, batch)
    if chunk is None:
        chunk = int(min(MAX_CHUNK, max(1, budget // max(1, held)))) * devices
    shards = min(MAX_SHARDS, hardware.cores(), chunk, num_seeds) if threaded else 1
    # Equal parts for all devices and CPU shards.
    parts = devices * shards
    chunk = min(chunk, math.ceil(num_seeds / parts) * parts)
    rounded = math.ceil(chunk / devices) * devices if shards == 1 else chunk // shards * shards
    return Plan(chosen, rounded, held, shards, devices)


def _bytes(tree: Any) -> int:
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _shapes(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree)


def _scratch(work: Work, params: Any, state: Any, batch: Any) -> int:
    """Return the temporary memory of one step of one seed, as the compiler plans it."""
    leaves, structure = jax.tree.flatten(_shapes((params, state, batch)))
    return _planned(work, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))


@functools.lru_cache(maxsize=64)
def _planned(work: Work, structure: Any, leaves: tuple[tuple[tuple[int, ...], Any], ...]) -> int:
    # Kept, because what is compiled to be asked is not what will run: each call would pay for it again.
    arguments = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    analysis = jax.jit(work.step).lower(*arguments).compile().memory_analysis()
    return int(getattr(analysis, "temp_size_in_bytes", 0) or 0)


class Lifted(NamedTuple):
    """The compiled functions over a chunk of seeds."""

    birth: Callable[[Any], tuple[Any, Any]]
    step: Callable[[Any, Any, Any], Any]
    finish: Callable[[Any, Any], Any]


@functools.lru_cache(maxsize=16)
def lift(work: Work, mode: Literal["vmap", "map"], mesh: jax.sharding.Mesh | None = None) -> Lifted:
    """Compile the three functions over a leading axis of seeds; the state is donated at each step."""

    def over_seeds(fn: Callable[..., Any], mapped: tuple[Any, ...], shared: tuple[Any, ...] = ()) -> Any:
        if mode == "vmap":
            axes = (0,) * len(mapped) + (None,) * len(shared)
            return jax.vmap(fn, in_axes=axes)(*mapped, *shared)
        return jax.lax.map(lambda args: fn(*args, *shared), mapped)

    def over_mesh(fn: Callable[..., Any], in_specs: tuple[PartitionSpec, ...]) -> Callable[..., Any]:
        # What is done to one given model the compiler cuts itself, by where weights and inputs lie.
        if mesh is None or work.birth is None:
            return fn
        # check_vma: a scan inside starts from constants, which the checker takes for replicated.
        return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=PartitionSpec("seed"), check_vma=False)

    by_seed, everywhere = PartitionSpec("seed"), PartitionSpec()

    def born(seed: jax.Array) -> tuple[Any, Any]:
        return None if work.birth is None else work.birth(seed), work.zero()

    def step(params: Any, state: Any, batch: Any) -> Any:
        if work.birth is None:
            return over_seeds(lambda seed_state, p, b: work.step(p, seed_state, b), (state,), (params, batch))
        return over_seeds(work.step, (params, state), (batch,))

    def finish(params: Any, state: Any) -> Any:
        if work.birth is None:
            return over_seeds(lambda seed_state, p: work.finish(p, seed_state), (state,), (params,))
        return over_seeds(work.finish, (params, state))

    return Lifted(
        birth=jax.jit(over_mesh(lambda seeds: over_seeds(born, (seeds,)), (by_seed,))),
        step=jax.jit(over_mesh(step, (by_seed, by_seed, everywhere)), donate_argnums=(1,)),
        finish=jax.jit(over_mesh(finish, (by_seed, by_seed))),
    )


def sweep(
    work: Work,
    seeds: Sequence[int],
    batches: Callable[[], Iterable[Any]],
    *,
    mode: Mode = "auto",
    chunk: int | None = None,
    mesh: jax.sharding.Mesh | None = None,
    advance: Callable[[int], None] | None = None,
    weights: Any = None,
    steady: bool = False,
) -> Iterator[tuple[int, Any]]:
    """Run the work for every seed and yield (seed, result on the host) in the order given.

    Args:
        work: birth, zero, step and finish of one seed.
        seeds: distinct or not; results come in this order.
        batches: called once per chunk; yields pytrees of equal shapes.
        mode: "vmap", "map" (one after the other) or "auto".
        chunk: seeds held in memory together; chosen by memory unless given.
        mesh: devices along an axis ``seed``; where weights are given, along ``data`` and ``fsdp``, and batches are to
            be multiples of their number. It may be of several processes, which all call this alike and get all results.
        weights: the parameters, the same for every seed, where ``work.birth`` is None.
        advance: called with the number of (real) seeds after each batch, for a progress display.
        steady: the same bits for a seed whatever else is asked for (see :func:`plan`): for what is kept in a store.

    Raises:
        InputError: no seeds, or a bad seed.
    """
    seeds = [check_seed(seed) for seed in seeds]
    if not seeds:
        raise InputError("no seeds: give at least one, as in --seeds 0:8 or --seeds 42,43")
    distinct = list(dict.fromkeys(seeds))
    first = next(iter(batches()))
    layout = plan(work, first, len(distinct), mode=mode, chunk=chunk, mesh=mesh, weights=weights, steady=steady)
    lifted = lift(work, layout.mode, mesh)
    if mesh is not None:
        cut = PartitionSpec("seed") if work.birth is not None else PartitionSpec()
        lifted = _over(lifted, mesh, cut)
        weights = None if weights is None else parallel.place_params(weights, mesh)
    results: dict[int, Any] = {}
    for start in range(0, len(distinct), layout.chunk):
        part = distinct[start : start + layout.chunk]
        # The last chunk is padded, so that one compiled program serves all.
        padded = part + [part[-1]] * (layout.chunk - len(part))
        tick = functools.partial(_tick, advance, len(part))
        result = _run_chunk(lifted, padded, layout.cpu_shards, weights, batches(), tick)
        for i, seed in enumerate(part):
            results[seed] = jax.tree.map(lambda leaf, i=i: leaf[i], result)
    # Seeds given twice are computed once.
    for seed in seeds:
        yield seed, results[seed]


def _over(lifted: Lifted, mesh: jax.sharding.Mesh, seeds: PartitionSpec) -> Lifted:
    """Make the functions take arrays on the host and return results on the host, in every process of a mesh."""
    rows = PartitionSpec(parallel.BATCH_AXES) if seeds == PartitionSpec() else PartitionSpec()
    return Lifted(
        birth=lambda chunk_seeds: lifted.birth(parallel.place(chunk_seeds, mesh, seeds)),
        step=lambda params, state, batch: lifted.step(params, state, parallel.place(batch, mesh, rows)),
        finish=lambda params, state: parallel.fetch(lifted.finish(params, state)),
    )


def _tick(advance: Callable[[int], None] | None, num_seeds: int) -> None:
    if advance is not None:
        advance(num_seeds)


def _run_chunk(
    lifted: Lifted, seeds: list[int], shards: int, weights: Any, batches: Iterable[Any], tick: Callable[[], None]
) -> Any:
    size = len(seeds) // shards
    parts = [np.asarray(seeds[i * size : (i + 1) * size], np.uint32) for i in range(shards)]

    def step(shard: int, batch: Any) -> None:
        states[shard] = lifted.step(params[shard], states[shard], batch)
        # Wait, so that batches do not pile up in memory and progress is honest.
        jax.block_until_ready(jax.tree.leaves(states[shard])[:1])

    with ThreadPoolExecutor(shards) as threads:
        born, states = map(list, zip(*threads.map(lifted.birth, parts), strict=True))
        params = [weights if drawn is None else drawn for drawn in born]
        for batch in batches:
            list(threads.map(step, range(shards), [batch] * shards))
            tick()
        results = list(
            threads.map(lambda shard: jax.device_get(lifted.finish(params[shard], states[shard])), range(shards))
        )
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)
