"""Place arrays on devices: the mesh, and the rules that lay parameters and batches on it.

The models know nothing of this. A mesh has three axes: ``seed`` (each device holds some of the seeds), ``data`` (each
device sees a part of the batch) and ``fsdp`` (the same, and the matrices are cut too). Where a parameter is cut follows
from its named axes in the table of parameters: along ``fsdp``, but for :data:`UNCUT`.
"""

from __future__ import annotations

import functools
import hashlib
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import ArrayLike

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.parameters import Axis, Parameter, Params, flatten, parameter_table, unflatten
from bornbiased_jax.schema import whole

PyTree = Any
"""A tree of arrays, or of their shapes or places."""

AXES = ("seed", "data", "fsdp")
BATCH_AXES = ("data", "fsdp")
UNCUT: frozenset[Axis] = frozenset(("layer", "shared_expert", "channel"))
"""Named axes of parameters that ``fsdp`` does not cut: the scan over layers walks along its own, others are small."""
PIECE_BYTES = 1 << 25
"""Of an array over several processes, so much passes between them at once on its way to the host."""
_LOST = re.compile("gloo|nccl|coordination service|heartbeat|connection (closed|reset|refused)", re.IGNORECASE)
HEARTBEAT_SECONDS = 15
"""A process of a computation that has not been heard of for so long is taken for dead, and the others end too."""


def parse_mesh(text: str | None) -> dict[str, int]:
    """Parse ``"data=2,fsdp=2"`` into {"seed": 1, "data": 2, "fsdp": 2}; None or "" gives 1 for each axis.

    Raises:
        InputError: an unknown axis, an axis named twice, or a size that is not a positive integer.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, (word.strip() for word in (text or "").split(","))):
        name, _, value = part.partition("=")
        if name not in AXES:
            raise InputError(f"mesh axis {name!r} is unknown: the axes are {', '.join(AXES)}, as in data=2,fsdp=2")
        if name in sizes:
            raise InputError(f"mesh axis {name!r} is given twice: give it once")
        size = whole(value)
        if size is None or size < 1:
            raise InputError(f"mesh axis {part!r} has no size: write it as {name}=2")
        sizes[name] = size
    return {name: sizes.get(name, 1) for name in AXES}


def build_mesh(sizes: Mapping[str, int] | None = None) -> Mesh:
    """Build a mesh over the first devices (all processes' devices), with every axis of ``AXES``.

    Args:
        sizes: of the axes, as :func:`parse_mesh` gives them. None puts every device on ``data``.

    Raises:
        InputError: the sizes ask for more devices than there are, or leave out those of a process.
    """
    available = jax.device_count()
    sizes = {"data": available} if sizes is None else dict(sizes)
    shape = tuple(sizes.get(name, 1) for name in AXES)
    num_devices = math.prod(shape)
    if num_devices > available:
        raise InputError(
            f"the mesh {_text(sizes)} needs {num_devices} devices, but there are {available}: make it smaller "
            "(on a CPU, JAX_NUM_CPU_DEVICES=N makes N devices)"
        )
    if jax.process_count() > 1 and num_devices != available:
        raise InputError(
            f"the mesh {_text(sizes)} uses {num_devices} of {available} devices: "
            "with several processes it must use them all"
        )
    kinds = (AxisType.Auto,) * len(AXES)
    return jax.make_mesh(shape, AXES, axis_types=kinds, devices=jax.devices()[:num_devices])


def _text(sizes: Mapping[str, int]) -> str:
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def initialize_distributed(coordinator: str, num_processes: int, process_id: int) -> None:
    """Join a computation of several processes; call it before anything touches a device.

    Args:
        coordinator: ``HOST:PORT`` of process 0, reachable by all.
        num_processes: how many there are.
        process_id: which of them this is, from 0.

    Raises:
        InputError: an address, count or number that cannot be, or a coordinator that does not answer.
    """
    check_process(coordinator, num_processes, process_id)
    try:
        jax.distributed.initialize(coordinator, num_processes, process_id, heartbeat_timeout_seconds=HEARTBEAT_SECONDS)
    except RuntimeError as error:
        raise InputError(
            f"cannot join the computation at {coordinator} as process {process_id} of {num_processes}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def check_process(coordinator: str, num_processes: int, process_id: int) -> None:
    """Refuse an address, count or number of processes that cannot be.

    Raises:
        InputError: it cannot.
    """
    host, _, port = coordinator.rpartition(":")
    if not host or not 0 < (whole(port) or 0) < 65536:
        raise InputError(f"coordinator {coordinator!r} is not of the form HOST:PORT")
    if num_processes < 1:
        raise InputError(f"the number of processes, {num_processes}, is not at least 1")
    if not 0 <= process_id < num_processes:
        raise InputError(f"process id {process_id} is not from 0 to {num_processes - 1}")


def lost_process(error: BaseException) -> bool:
    """Return whether an error says that another process of this computation is gone."""
    return jax.process_count() > 1 and _LOST.search(str(error)) is not None


def parameter_spec(parameter: Parameter, mesh: Mesh) -> PartitionSpec:
    """Return the partition of one parameter of one model.

    A matrix is cut along ``fsdp`` in the largest of its dimensions that divide evenly and are none of :data:`UNCUT`.
    Vectors are whole everywhere, as they cost nothing.
    """
    ways = mesh.shape.get("fsdp", 1)
    # Several named axes in one dimension lie one after the other: the outer one is cut.
    fits = [at for at, axes in enumerate(parameter.axes) if axes[0] not in UNCUT and parameter.shape[at] % ways == 0]
    if ways == 1 or not fits or not parameter.is_matrix:
        return PartitionSpec()
    return PartitionSpec(*(None,) * max(fits, key=lambda at: parameter.shape[at]), "fsdp")


def tree_shardings(cfg: ModelConfig, tree: PyTree, mesh: Mesh) -> PyTree:
    """Return a ``NamedSharding`` for every leaf of a training state, all of which have a leading axis of seeds.

    A leaf of the optimizer's state is placed like the parameter whose path its own path ends with. Counters and
    adapters follow the seeds alone.
    """
    table = parameter_table(cfg)
    by_seed = "seed" if mesh.shape["seed"] > 1 else None

    def place_leaf(path: tuple[jax.tree_util.KeyEntry, ...], _: jax.ShapeDtypeStruct) -> NamedSharding:
        names = _names(path)
        suffixes = ("/".join(names[start:]) for start in range(len(names)))
        row = next((table[suffix] for suffix in suffixes if suffix in table), None)
        spec = () if row is None else tuple(parameter_spec(row, mesh))
        return NamedSharding(mesh, PartitionSpec(by_seed, *spec) if by_seed or spec else PartitionSpec())

    return jax.tree_util.tree_map_with_path(place_leaf, tree)


def _names(path: tuple[jax.tree_util.KeyEntry, ...]) -> list[str]:
    return [str(entry.key) for entry in path if isinstance(entry, jax.tree_util.DictKey)]


def batch_sharding(mesh: Mesh, axis: int = 0) -> NamedSharding:
    """Return the sharding of a batch, rows along ``data`` and ``fsdp``; ``axis`` is the axis of rows."""
    return NamedSharding(mesh, PartitionSpec(*(None,) * axis, BATCH_AXES))


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of an array that is the same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def check_rows(sizes: Mapping[str, int], rows: int) -> None:
    """Refuse a batch whose rows do not divide evenly over the axes ``data`` and ``fsdp``.

    Raises:
        InputError: they do not.
    """
    parts = sizes["data"] * sizes["fsdp"]
    if rows % parts:
        raise InputError(
            f"{rows} sequences do not divide over data={sizes['data']} × fsdp={sizes['fsdp']}: make the "
            f"batch (divided by the accumulation steps) a multiple of {parts}"
        )


def batch_part(mesh: Mesh, rows: int) -> tuple[int, int]:
    """Return (index, count): this process needs part ``index`` of ``count`` equal parts of a batch's rows.

    Processes whose devices hold the same rows (for other seeds) need the same part.

    Raises:
        InputError: the rows do not divide evenly over the devices.
    """
    check_rows(mesh.shape, rows)
    indices = batch_sharding(mesh).addressable_devices_indices_map((rows,)).values()
    spans = [index[0].indices(rows)[:2] for index in indices if index is not None]
    low, high = min(start for start, _ in spans), max(stop for _, stop in spans)
    size = high - low
    if rows % size or low % size:
        raise InputError("the mesh gives the processes unequal parts of the batch: put data before fsdp evenly")
    return low // size, rows // size


def place_batch(local: np.ndarray, mesh: Mesh, axis: int, rows: int) -> jax.Array:
    """Make one array over all processes from this process's part of the rows.

    Args:
        local: this process's rows along ``axis``.
        mesh: where to.
        axis: the axis of rows.
        rows: how many rows there are in all.
    """
    shape = (*local.shape[:axis], rows, *local.shape[axis + 1 :])
    placed: jax.Array = jax.make_array_from_process_local_data(batch_sharding(mesh, axis), local, shape)
    return placed


def on_host(array: ArrayLike) -> np.ndarray:
    """Return an array on the host; one that other processes hold parts of is gathered by a call in all of them.

    It is gathered piece by piece: no device holds all of it.
    """
    if not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated:
        return np.asarray(array)
    assert isinstance(array.sharding, NamedSharding)
    gathered = np.empty(array.shape, array.dtype)
    # Along an axis that is not cut: for a piece of a cut one the whole would be put together first.
    cut = tuple(array.sharding.spec) + (None,) * array.ndim
    axis = max((axis for axis in range(array.ndim) if cut[axis] is None), key=lambda axis: array.shape[axis])
    length = array.shape[axis]
    size = min(length, max(1, PIECE_BYTES * length // array.nbytes))
    for start in range(0, length, size):
        # The last begins early, so that one program serves all.
        begin = min(start, length - size)
        place = (slice(None),) * axis + (slice(begin, begin + size),)
        piece = _piece(array, begin, size, axis, array.sharding)
        gathered[place] = multihost_utils.process_allgather(piece, tiled=True)
    return gathered


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _piece(array: jax.Array, begin: int, size: int, axis: int, sharding: NamedSharding) -> jax.Array:
    piece = jax.lax.dynamic_slice_in_dim(array, begin, size, axis)
    placed: jax.Array = jax.lax.with_sharding_constraint(piece, sharding)
    return placed


def place(tree: PyTree, mesh: Mesh, spec: PartitionSpec | None = None) -> PyTree:
    """Place arrays on the host, the same in every process, on all devices of a mesh.

    Args:
        tree: of arrays.
        mesh: where to.
        spec: how each is cut; whole everywhere by default.
    """
    sharding = NamedSharding(mesh, spec or PartitionSpec())
    return jax.tree.map(lambda leaf: place_array(leaf, sharding), tree)


def shardings(mesh: Mesh | None) -> Callable[[Parameter], NamedSharding] | None:
    """Return a function from a parameter to its sharding on a mesh; None where there is no mesh.

    A checkpoint is opened with it. Matrices are cut along ``fsdp``.
    """
    return None if mesh is None else lambda parameter: NamedSharding(mesh, parameter_spec(parameter, mesh))


def place_params(cfg: ModelConfig, params: Params, mesh: Mesh) -> Params:
    """Place the parameters of one model on a mesh, each matrix cut along ``fsdp``; those that lie so already stay."""
    table = parameter_table(cfg)
    places = {path: NamedSharding(mesh, parameter_spec(table[path], mesh)) for path in table}
    return unflatten({path: place_array(leaf, places[path]) for path, leaf in flatten(params).items()})


def place_array(array: ArrayLike, sharding: jax.sharding.Sharding) -> jax.Array:
    """Place an array that every process has on devices; one that lies there already is returned as it is."""
    if isinstance(array, jax.Array) and array.sharding.is_equivalent_to(sharding, array.ndim):
        return array
    local = on_host(array)
    return jax.make_array_from_callback(local.shape, sharding, lambda index: local[index])


def batch_axes(mesh: Mesh | None) -> tuple[int, ...]:
    """Return the sizes of ``data`` and ``fsdp``: a batch is cut along both, and sums of products along the second."""
    return (1, 1) if mesh is None else tuple(mesh.shape[name] for name in BATCH_AXES)


def tree_bytes(tree: PyTree) -> int:
    """Count the bytes of all arrays of a tree, or of their shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def fetch(tree: PyTree) -> PyTree:
    """Fetch small arrays to the host of every process, however they are spread."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return multihost_utils.process_allgather(tree, tiled=True)


def agree(value: str, description: str) -> None:
    """Check that every process has the same text.

    Raises:
        InputError: they differ; the sentence says in what.
    """
    if jax.process_count() == 1:
        return
    digest = np.frombuffer(hashlib.sha256(value.encode()).digest(), np.uint8)
    digests = np.asarray(multihost_utils.process_allgather(jnp.asarray(digest)))
    if not (digests == digests[0][None, :]).all():
        raise InputError(f"the processes do not have the same {description}: give every process the same")
