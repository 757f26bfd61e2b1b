"""Weights from a file to arrays, one tensor at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.checkpoints.layout import Entry, Shapes, shape_in_file, unpack
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.init import parameter_shapes
from bornbiased_jax.parameters import Params, flatten, unflatten

Shardings = Callable[[str, tuple[int, ...]], Any]
"""From the path ("blocks/mlp/up/kernel") and the shape of a parameter to its ``jax.sharding.Sharding``, or None."""
Region = tuple[tuple[int, int], ...]
ALIGNMENT = 64
"""Bytes of which the address of a CPU's array is a multiple."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A file (or several) of named tensors.

    Attributes:
        where: what to call it in an error.
        shapes: of every tensor, as the file lays it out.
        read: one tensor by name, in whatever float type the file has.
        first: the beginning of one tensor along an axis, by name, axis and count, without reading it whole.
        types: of every tensor, as the file's format calls them; empty where nobody asks.
    """

    where: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], np.ndarray]
    first: Callable[[str, int, int], np.ndarray]
    types: Mapping[str, str] = dataclasses.field(default_factory=dict)


class Located(NamedTuple):
    """A file (or several) whose configuration is read, and whose tensors are not yet.

    ``entries`` say what lies where, ``shapes`` which parameters they make up, ``ignored`` which tensors are none, and
    ``blocked`` whether any was quantised in contiguous blocks, as far as the file says.
    """

    cfg: ModelConfig
    source: Source
    entries: list[Entry]
    shapes: Shapes
    description: str
    files: tuple[Path, ...]
    tokenizer_files: tuple[Path, ...]
    ignored: Callable[[str], bool] = lambda name: False
    blocked: bool = False


def check_entries(source: Source, entries: list[Entry], shapes: Shapes, ignored: Callable[[str], bool]) -> None:
    """Refuse a file that lacks a tensor, has one in a wrong shape, or has one that no parameter needs.

    Raises:
        InputError: naming the tensor.
    """
    for entry in entries:
        if entry.name not in source.shapes:
            raise InputError(
                f"{source.where} has no tensor {entry.name}, which its configuration asks for: fetch it again"
            )
        shape, expected = tuple(source.shapes[entry.name]), shape_in_file(entry, shapes)
        if shape != expected:
            raise InputError(
                f"tensor {entry.name} of {source.where} has shape {list(shape)}, but its configuration asks for "
                f"{list(expected)}: the weights and the configuration are of different models"
            )
    names = {entry.name for entry in entries}
    extra = sorted(name for name in source.shapes if name not in names and not ignored(name))
    if extra:
        more = f" (and {len(extra) - 1} more)" if len(extra) > 1 else ""
        raise InputError(
            f"{source.where} has a tensor {extra[0]}{more} that an architecture of its configuration does not: "
            "it is a model of another kind"
        )


def load(
    cfg: ModelConfig,
    source: Source,
    entries: list[Entry],
    shapes: Shapes,
    *,
    dtype: Any = None,
    sharding: Shardings | None = None,
    ignored: Callable[[str], bool] = lambda name: False,
) -> Params:
    """Load the parameters of a file, each stacked over layers and put where its sharding says before the next is read.

    Beyond the result itself, at most one parameter and one tensor of the file are in host memory. Where
    parameters are sharded, a host holds only the parts that its own devices need.

    Args:
        cfg: the architecture.
        source: the file.
        entries: what lies where in it.
        shapes: of the parameters that the file holds. Biases of the config that it lacks become zero.
        dtype: of the result; float32 by default.
        sharding: where each parameter goes; by default the default device.
        ignored: tensors of the file that are known to be no parameters.

    Raises:
        InputError: a tensor is missing, unknown, of a wrong shape, or holds NaN or infinity.
    """
    check_entries(source, entries, shapes, ignored)
    dtype = jnp.dtype(dtype or jnp.float32)
    # The tensors of the file that make up each parameter.
    holders: dict[str, list[tuple[Entry, int]]] = {}
    for entry in entries:
        for index, path in enumerate(entry.paths):
            holders.setdefault(path, []).append((entry, index))
    flat = {}
    for path, leaf in flatten(parameter_shapes(cfg)).items():
        shape = tuple(leaf.shape)
        target = sharding(path, shape) if sharding is not None else None
        flat[path] = _leaf(cfg, source, holders.get(path, []), shape, dtype, target)
    return unflatten(flat)


def _leaf(
    cfg: ModelConfig,
    source: Source,
    holders: list[tuple[Entry, int]],
    shape: tuple[int, ...],
    dtype: Any,
    target: Any,
) -> jax.Array:
    full_region: Region = tuple((0, size) for size in shape)
    places = {None: full_region} if target is None else _regions(target, shape)
    buffers = {region: aligned_zeros([stop - start for start, stop in region], dtype) for region in places.values()}
    for entry, index in holders:
        touched = {region: buffer for region, buffer in buffers.items() if _touches(region, entry.place)}
        if not touched:
            continue
        tensor = unpack(entry, cfg, read_finite(source, entry.name, dtype))[index]
        for region, buffer in touched.items():
            part = tuple(slice(*ends) for ends in region)
            # The tensor is one layer's, or one expert's of a layer: a part of the buffer's leading axes.
            depth = len(entry.place)
            inside = tuple(index - axis.start for index, axis in zip(entry.place, part[:depth], strict=True))
            buffer[inside] = tensor[part[depth:]]
        del tensor
    # Nobody writes to the buffers any more, so that a CPU's arrays may be they; elsewhere they are copied before the
    # next parameter is read.
    if target is None:
        return jax.block_until_ready(jax.device_put(buffers[full_region], may_alias=True))
    parts = [jax.device_put(buffers[region], device, may_alias=True) for device, region in places.items()]
    return jax.block_until_ready(jax.make_array_from_single_device_arrays(shape, target, parts))


def aligned_zeros(shape: list[int], dtype: Any) -> np.ndarray:
    """Allocate zeros that begin where arrays of a CPU do, so that jax takes them as they are, unlike NumPy's own."""
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return room[start : start + size].view(dtype).reshape(shape)


def _touches(region: Region, place: tuple[int, ...]) -> bool:
    return all(start <= index < stop for index, (start, stop) in zip(place, region[: len(place)], strict=True))


def _regions(target: Any, shape: tuple[int, ...]) -> dict[Any, Region]:
    """Return the part of an array that each device of this process holds."""
    indices = target.addressable_devices_indices_map(shape)
    return {
        device: tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
        for device, index in indices.items()
    }


def read_finite(
    source: Source, name: str, dtype: Any = np.float32, *, first: tuple[int, int] | None = None
) -> np.ndarray:
    """Read one tensor of a file as the file has it.

    Args:
        source: the file.
        name: of the tensor.
        dtype: that it is to fit in.
        first: an axis and a count: only the beginning along that axis, all by default.

    Raises:
        InputError: it holds NaN or infinity, or does not fit in float16 where that is asked for.
    """
    tensor = source.read(name) if first is None else source.first(name, *first)
    # A sum is finite only if every term is, and is found without an array of flags; one that overflows
    # is looked at term by term.
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(tensor, dtype=np.float32)
    if not np.isfinite(total) and not np.all(np.isfinite(tensor.astype(np.float32))):
        raise InputError(f"tensor {name} of {source.where} holds NaN or infinite values: fetch or train it again")
    if dtype == np.float16 and np.max(np.abs(tensor), initial=0) > np.finfo(np.float16).max:
        raise InputError(f"tensor {name} of {source.where} does not fit in float16: choose another dtype")
    return tensor
