"""Sweep a probe over hundreds of seeds.

A probe is three pure functions of one model: an empty state, the state after one more batch of inputs, and a last
reduction. Seeds run in chunks; within a chunk they are vmapped, or taken one after the other by ``lax.map``; over a
mesh with an axis ``seed`` each device takes its part. The result does not depend on any of this beyond the rounding of
matrix products whose shapes differ (see ``tests/test_sweep.py``).
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from bornbiased_jax import hardware, parallel
from bornbiased_jax.errors import InputError
from bornbiased_jax.keys import check_seed
from bornbiased_jax.parallel import PyTree, tree_bytes

SweepMode = Literal["auto", "vmap", "map"]
CPU_BUDGET_BYTES = 2 * 2**30
DRAWING = 3
"""Times the bytes of its weights that a seed takes at most while they are drawn, with random bits next to them."""
MAX_CHUNK = 256
MAX_SHARDS = 4
STEADY_CHUNK = 8


class Probe(NamedTuple):
    """A measurement of one model on batches of inputs; pure functions, traced once per chunk size.

    Equal probes (the same function objects) share their compiled programs between calls.
    """

    init: Callable[[], PyTree]
    """→ the empty state"""
    update: Callable[[PyTree, PyTree, PyTree], PyTree]
    """(state, parameters, batch) → state"""
    finish: Callable[[PyTree, PyTree], PyTree]
    """(state, parameters) → a small pytree of arrays"""


InitParams = Callable[[jax.Array], PyTree]
"""seed (uint32 scalar) → parameters"""


@dataclasses.dataclass(frozen=True)
class SweepOptions:
    """Layout of a sweep.

    Attributes:
        mode: "vmap", "map" (one after the other) or "auto".
        chunk: seeds held in memory together; chosen by memory unless given.
        mesh: devices along an axis ``seed``; for one given model along ``data`` and ``fsdp``, and batches are to be
            multiples of their number. It may be of several processes, which all call this alike and get all results.
        steady: the same bits for a seed whatever else is swept (see :func:`plan`): for results kept in a store.
    """

    mode: SweepMode = "auto"
    chunk: int | None = None
    mesh: jax.sharding.Mesh | None = None
    steady: bool = False


DEFAULT = SweepOptions()


class Plan(NamedTuple):
    """The layout of the seeds."""

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


def plan(probe: Probe, params: PyTree, batch: PyTree, num_seeds: int, options: SweepOptions = DEFAULT) -> Plan:
    """Choose mode and chunk from the memory that one seed needs.

    On a CPU the products of one seed fill the cores but what lies between them does not, so seeds run
    one after the other in as many CPU shards as there are cores (at most ``MAX_SHARDS``). On an accelerator
    they are vmapped, as many as fit in 60% of its memory by the compiler's own account of one seed.

    With ``steady`` the same seed gives the same bits whatever the number of seeds, of cores and the memory of the
    machine: one seed in a program at a time, or, where they are vmapped, as many as the sizes of the model say (or
    ``chunk``). Cores then only say how many programs run side by side.

    Args:
        probe: as of :func:`sweep`.
        params: as of :func:`sweep`.
        batch: the first one; unused with ``steady``.
        num_seeds: how many.
        options: the choices that are fixed already.

    Raises:
        InputError: a chunk below 1, no such mode, or a mesh without an axis ``seed``.
    """
    chunk, mesh = options.chunk, options.mesh
    if options.mode not in get_args(SweepMode):
        raise InputError(f"mode {options.mode!r} is not one of {', '.join(get_args(SweepMode))}")
    if chunk is not None and chunk < 1:
        raise InputError(f"chunk={chunk} is not at least 1")
    if mesh is not None and "seed" not in mesh.axis_names:
        raise InputError(f"the mesh has axes {', '.join(mesh.axis_names)}: a sweep needs an axis seed")
    # One given model is one seed: its devices share the inputs.
    devices = 1 if mesh is None or not callable(params) else mesh.shape["seed"]
    seed = jax.ShapeDtypeStruct((), jnp.uint32)
    shapes = jax.eval_shape(params, seed) if callable(params) else _shapes(params)
    state = jax.eval_shape(probe.init)
    state_bytes = tree_bytes(state) + (tree_bytes(shapes) if callable(params) else 0)
    on_cpu = jax.default_backend() == "cpu"
    mode: Literal["vmap", "map"] = ("map" if on_cpu else "vmap") if options.mode == "auto" else options.mode
    budget = float(CPU_BUDGET_BYTES)
    if not on_cpu:
        limit = hardware.device_memory()
        budget = 0.6 * limit if limit else budget
    threaded = on_cpu and mesh is None and mode == "map"
    # A steady layout follows from sizes alone.
    if options.steady:
        if mode == "vmap":
            most = min(STEADY_CHUNK, max(1, CPU_BUDGET_BYTES // max(1, state_bytes)))
            return Plan(mode, (math.ceil(chunk / devices) if chunk else most) * devices, state_bytes, 1, devices)
        shards = min(_side_by_side(state_bytes), chunk or num_seeds) if threaded else 1
        return Plan(mode, shards * devices, state_bytes, shards, devices)
    # Else as many seeds as fit in the budget.
    if mode == "vmap":
        state_bytes += _scratch_bytes(probe, state, shapes, batch)
    if chunk is None:
        chunk = int(min(MAX_CHUNK, max(1, budget // max(1, state_bytes)))) * devices
    shards = min(_side_by_side(state_bytes), chunk, num_seeds) if threaded else 1
    # Chunks of about one size, so that the last is hardly padded; equal parts for all devices and CPU shards.
    parts = devices * shards
    chunk = min(chunk, math.ceil(num_seeds / math.ceil(num_seeds / chunk) / parts) * parts)
    rounded = math.ceil(chunk / devices) * devices if shards == 1 else chunk // shards * shards
    return Plan(mode, rounded, state_bytes, shards, devices)


def _side_by_side(state_bytes: int) -> int:
    """Return how many programs of one seed run at once on a CPU: as many as cores, and as fit into its memory."""
    shards, free = min(MAX_SHARDS, hardware.cores()), hardware.available_memory()
    return shards if free is None else min(shards, max(1, int(free // (DRAWING * max(1, state_bytes)))))


def _shapes(tree: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.result_type(leaf)), tree)


def _scratch_bytes(probe: Probe, state: PyTree, params: PyTree, batch: PyTree) -> int:
    """Return the temporary memory of one update of one seed, as the compiler plans it."""
    leaves, structure = jax.tree.flatten(_shapes((state, params, batch)))
    return _planned_bytes(probe, structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves))


@functools.lru_cache(maxsize=64)
def _planned_bytes(
    probe: Probe, structure: jax.tree_util.PyTreeDef, leaves: tuple[tuple[tuple[int, ...], PyTree], ...]
) -> int:
    # Cached: a program that is compiled to be asked for its memory is not the one that runs.
    arguments = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    analysis = jax.jit(probe.update).lower(*arguments).compile().memory_analysis()
    return int(getattr(analysis, "temp_size_in_bytes", 0) or 0)


class _SeedsProbe(NamedTuple):
    """A probe compiled over a leading axis of seeds."""

    start: Callable[[PyTree], tuple[PyTree, PyTree]]
    """seeds → (states, parameters or None)"""
    update: Callable[[PyTree, PyTree, PyTree], PyTree]
    finish: Callable[[PyTree, PyTree], PyTree]


@functools.lru_cache(maxsize=16)
def _compiled(
    probe: Probe, init_params: InitParams | None, mode: Literal["vmap", "map"], mesh: jax.sharding.Mesh | None
) -> _SeedsProbe:
    """Compile a probe over a leading axis of seeds.

    The state is donated at each update. With a mesh the functions take arrays of the host, in each of its processes,
    and ``finish`` returns such.
    """
    num_mapped = 1 if init_params is None else 2

    def over_seeds(function: Callable[..., PyTree], *arguments: PyTree) -> PyTree:
        # State and drawn parameters have an axis of seeds; given parameters and the batch have none.
        mapped, shared = arguments[:num_mapped], arguments[num_mapped:]
        if mode == "vmap":
            return jax.vmap(function, in_axes=(0,) * len(mapped) + (None,) * len(shared))(*arguments)
        return jax.lax.map(lambda seed_arguments: function(*seed_arguments, *shared), mapped)

    def start(seed: jax.Array) -> tuple[PyTree, PyTree]:
        return probe.init(), None if init_params is None else init_params(seed)

    functions: dict[str, Callable[..., PyTree]] = {
        "start": lambda seeds: over_seeds(start, seeds),
        "update": lambda state, params, batch: over_seeds(probe.update, state, params, batch),
        "finish": lambda state, params: over_seeds(probe.finish, state, params),
    }
    by_seed, everywhere = PartitionSpec("seed"), PartitionSpec()
    if mesh is not None and init_params is not None:
        in_specs = {"start": (by_seed,), "update": (by_seed, by_seed, everywhere), "finish": (by_seed, by_seed)}
        # check_vma: a scan inside starts from constants, which the checker takes for replicated.
        functions = {
            name: jax.shard_map(function, mesh=mesh, in_specs=in_specs[name], out_specs=by_seed, check_vma=False)
            for name, function in functions.items()
        }
    begin, finish = jax.jit(functions["start"]), jax.jit(functions["finish"])
    update = jax.jit(functions["update"], donate_argnums=(0,))
    if mesh is None:
        return _SeedsProbe(begin, update, finish)
    # The compiler itself cuts the work on one given model, by the places of weights and inputs.
    seeds_spec, batch_spec = (
        (by_seed, everywhere) if init_params is not None else (everywhere, PartitionSpec(parallel.BATCH_AXES))
    )
    return _SeedsProbe(
        lambda seeds: begin(parallel.place(seeds, mesh, seeds_spec)),
        lambda state, params, batch: update(state, params, parallel.place(batch, mesh, batch_spec)),
        lambda state, params: parallel.fetch(finish(state, params)),
    )


def sweep(
    probe: Probe,
    params: PyTree,
    seeds: Sequence[int],
    batches: Callable[[], Iterable[PyTree]],
    options: SweepOptions = DEFAULT,
    *,
    advance: Callable[[int, PyTree], None] | None = None,
) -> Iterator[tuple[int, PyTree]]:
    """Run a probe on the model of every seed and yield (seed, result on the host) in the order given, chunk by chunk.

    Args:
        probe: the measurement.
        params: draws the parameters of a seed (:data:`InitParams`); or the parameters of one model, for every seed,
            placed on the mesh.
        seeds: results come in this order.
        batches: called once per chunk; yields pytrees of equal shapes.
        options: the layout.
        advance: called with the number of (real) seeds and the batch after each batch, for a progress display.

    Raises:
        InputError: no seeds, or a bad seed.
    """
    seeds = [check_seed(seed) for seed in seeds]
    if not seeds:
        raise InputError("no seeds: give at least one, as in --seeds 0:8 or --seeds 42,43")
    layout = plan(probe, params, next(iter(batches())), len(seeds), options)
    compiled = _compiled(probe, params if callable(params) else None, layout.mode, options.mesh)
    weights = None if callable(params) else params
    for start in range(0, len(seeds), layout.chunk):
        part = seeds[start : start + layout.chunk]
        # The last shard is padded, so that one compiled program serves all; shards without a seed are left out.
        size = layout.chunk // layout.cpu_shards
        padded = np.asarray(part + [part[-1]] * (-len(part) % size), np.uint32)
        tick = None if advance is None else functools.partial(advance, len(part))
        result = _sweep_chunk(compiled, weights, np.split(padded, len(padded) // size), batches(), tick)
        for i, seed in enumerate(part):
            yield seed, jax.tree.map(lambda leaf, i=i: leaf[i], result)


def _sweep_chunk(
    compiled: _SeedsProbe,
    weights: PyTree,
    shards: Sequence[np.ndarray],
    batches: Iterable[PyTree],
    tick: Callable[[PyTree], None] | None,
) -> PyTree:
    """Run a compiled probe on the seeds of each shard, each shard in a thread of its own."""

    def update(shard: int, batch: PyTree) -> None:
        states[shard] = compiled.update(states[shard], params[shard], batch)
        # Wait, so that batches do not pile up in memory and progress is honest.
        jax.block_until_ready(jax.tree.leaves(states[shard])[:1])

    with ThreadPoolExecutor(len(shards)) as threads:
        states, weights_by_shard = map(list, zip(*threads.map(compiled.start, shards), strict=True))
        params = [weights if shard_weights is None else shard_weights for shard_weights in weights_by_shard]
        for batch in batches:
            list(threads.map(update, range(len(shards)), [batch] * len(shards)))
            if tick is not None:
                tick(batch)
        results = list(threads.map(lambda *arguments: jax.device_get(compiled.finish(*arguments)), states, params))
    return jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)
