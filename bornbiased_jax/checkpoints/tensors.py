"""Tensors of a stored model, read when asked for, and the parameters that they make up."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike
from typing_extensions import TypedDict

from bornbiased_jax.checkpoints import buffers
from bornbiased_jax.checkpoints.layout import FileEntry, Shapes, shape_in_file, unpack
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.memory import FLOAT, check_weights
from bornbiased_jax.parameters import Parameter, Params, parameter_table, unflatten
from bornbiased_jax.schema import cut

Shardings = Callable[[Parameter], jax.sharding.Sharding | None]
"""From a row of the table of parameters to its ``jax.sharding.Sharding``, or None."""
Region = tuple[tuple[int, int], ...]
ALIGNMENT = 64
"""Bytes of which the address of a CPU's array is a multiple."""
TYPES: dict[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    # Numbers of quantized models, which mean something only together with their scales.
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}
"""Types of numbers, as safetensors calls them."""
FLOAT_TYPES = {kind: TYPES[kind].name for kind in ("F64", "F32", "F16", "BF16")}
"""Types of numbers that stand for themselves: as files call them, and as NumPy does."""
_HALF = (ml_dtypes.bfloat16, np.float16)
# Numbers looked at together: they stay in a core's cache.
_CHECKED = 1 << 16


class Tensor(NamedTuple):
    """A tensor of a file, read when asked for.

    Attributes:
        kind: its type, as safetensors or its scheme of quantization calls it.
        shape: as the file lays it out.
        read: reads it, in whatever float type the file has.
    """

    kind: str
    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class NamedTensors:
    """The tensors of a file (or several) under the names that it gives them.

    Attributes:
        where: what to call the file in an error.
        tensors: by name.
        notes: what was noticed in the files, one clause each.
    """

    where: str
    tensors: Mapping[str, Tensor]
    notes: tuple[str, ...] = ()

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every tensor."""
        return {name: tensor.shape for name, tensor in self.tensors.items()}

    @cached_property
    def types(self) -> dict[str, str]:
        """The type of every tensor."""
        return {name: tensor.kind for name, tensor in self.tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """Read one tensor."""
        return self.tensors[name].read()


class Piece(NamedTuple):
    """A parameter, or the part of it that one tensor of a format holds.

    Attributes:
        name: of the tensor and where it lies, for errors.
        place: indices on the leading axes of the parameter: none, the block, or the block and the expert.
        read: reads it.
        tensor: its name alone, where the format has names of its own; else "".
        read_fused: reads that tensor as the file has it, where it has other parameters in it too.
    """

    name: str
    place: tuple[int, ...]
    read: Callable[[], np.ndarray]
    tensor: str = ""
    read_fused: Callable[[], np.ndarray] | None = None


class RunInfo(TypedDict, total=False):
    """The facts that a run records of one of its checkpoints; empty for models of other origin."""

    run: str
    """Its folder."""
    seed: int
    step: int
    """Updates before it."""
    context: int
    """Tokens of a sequence in training."""
    tokenizer_file: str | None


@dataclasses.dataclass(eq=False)
class StoredModel:
    """A model as its format stores it: the headers are read, and the tensors are not.

    Attributes:
        config: its architecture.
        description: one line for a reader.
        pieces: from a parameter's path to what makes it up; nothing for a bias that the file lacks, which is zero.
        files: the files that hold the weights; none of initial weights, or of a run.
        tokenizer_files: where its tokenizer may be.
        seed: of initial weights or a run, None where it is not known.
        is_initial: whether these weights are as initialization left them, known from where they come.
        storage: types of the numbers in the files.
        info: what else the source knows (a run: its seed and step).
        notes: what was noticed in the files, one clause each: what was left out, what lies under another name.
        load: loads all parameters faster than piece by piece, from a type and shardings.
    """

    config: ModelConfig
    description: str
    pieces: Callable[[str], list[Piece]]
    files: tuple[Path, ...] = ()
    tokenizer_files: tuple[Path, ...] = ()
    seed: int | None = None
    is_initial: bool = False
    storage: str = "float32"
    info: RunInfo = dataclasses.field(default_factory=lambda: RunInfo())
    notes: tuple[str, ...] = ()
    load: Callable[[DTypeLike | None, Shardings | None], Params] | None = None


def file_pieces(cfg: ModelConfig, source: NamedTensors, entries: list[FileEntry]) -> Callable[[str], list[Piece]]:
    """Return what makes up each parameter of a file. Fused matrices come apart as the architecture says."""
    pieces: dict[str, list[Piece]] = {}
    for entry in entries:
        for index, path in enumerate(entry.paths):

            def read(entry: FileEntry = entry, index: int = index) -> np.ndarray:
                return unpack(entry, cfg, read_finite(source, entry.name))[index]

            piece = Piece(f"{entry.name} of {source.where}", entry.place, read, entry.name)
            if len(entry.paths) > 1:
                piece = piece._replace(read_fused=partial(read_finite, source, entry.name))
            pieces.setdefault(path, []).append(piece)
    return lambda path: pieces.get(path, [])


def check_entries(
    source: NamedTensors, entries: list[FileEntry], shapes: Shapes, ignored: Callable[[str], bool] = lambda _: False
) -> None:
    """Refuse a file that lacks a tensor, has one in a wrong shape, or has one that is neither needed nor ignored.

    Raises:
        InputError: naming the tensor.
    """
    for entry in entries:
        if entry.name not in source.shapes:
            # The same name after a prefix says most.
            example = next(
                (name for name in source.shapes if name.endswith(entry.name)), min(source.shapes, default="")
            )
            raise InputError(
                f"{source.where} has no tensor {entry.name}, which its configuration asks for (it has {cut(example)}): "
                "give it the names of its configuration, or compare it as it is (seedprint, digest)"
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
            f"{source.where} has a tensor {cut(extra[0])}{more} that an architecture of its configuration does not: "
            "it is a model of another kind"
        )


def wrong_type(name: str, where: str, kind: str) -> InputError:
    """Return the error that refuses a tensor whose numbers are no floats, for the caller to raise."""
    return InputError(f"tensor {name} of {where} is of type {kind}, not F64, F32, F16 or BF16: save it as a float")


def read_finite(source: NamedTensors, name: str) -> np.ndarray:
    """Read one tensor of a file as the file has it.

    Raises:
        InputError: it holds NaN, infinity or numbers beyond float32, or numbers that are no floats.
    """
    if (kind := source.types.get(name, "F32")) not in FLOAT_TYPES:
        raise wrong_type(name, source.where, kind)
    return check_finite(source.read(name), name, source.where)


def check_finite(tensor: np.ndarray, name: str, where: str) -> np.ndarray:
    """Return a tensor of a file whose numbers are finite in float32; they are looked at in parts.

    Raises:
        InputError: it holds NaN, infinity or a number beyond float32.
    """
    # A number of 16 bits whose exponent is all ones is infinite or none.
    infinity = tensor.dtype.type(np.inf).view(np.uint16) if tensor.dtype in _HALF else None
    # As they lie in memory: a transposed matrix is not copied.
    numbers = tensor.ravel(order="K")
    for start in range(0, len(numbers), _CHECKED):
        chunk = numbers[start : start + _CHECKED]
        if infinity is None:
            with np.errstate(over="ignore"):
                is_finite = bool(np.isfinite(chunk.astype(np.float32, copy=False)).all())
        else:
            is_finite = bool((chunk.view(np.uint16) & 0x7FFF).max() < infinity)
        if not is_finite:
            problem = "numbers beyond float32" if np.isfinite(chunk).all() else "NaN or infinite values"
            raise InputError(f"tensor {name} of {where} holds {problem}: train or export it again")
    return tensor


def as_float32(tensor: np.ndarray) -> np.ndarray:
    """Return a tensor as float32, no copy of one that is; of bfloat16 by its bits.

    The cast of bfloat16 asks for the interpreter's lock every few thousand numbers, and waits for it where threads run.
    """
    if tensor.dtype != ml_dtypes.bfloat16:
        return np.asarray(tensor, np.float32)
    if not tensor.flags.c_contiguous and tensor.T.flags.c_contiguous:
        return as_float32(tensor.T).T
    bits = buffers.empty(tensor.shape, np.uint32)
    np.left_shift(tensor.view(np.uint16), 16, dtype=np.uint32, out=bits)
    return bits.view(np.float32)


def read_parameter(pieces: list[Piece], block_shape: tuple[int, ...], layer: int | None) -> np.ndarray:
    """Read one parameter from its pieces, of one block (from 0) where it lies in the blocks.

    It is float32, and not to be written to.
    """
    lead = () if layer is None else (layer,)
    inside = [piece for piece in pieces if piece.place[: len(lead)] == lead or not piece.place]
    if not inside:  # a bias that the configuration has and the file has not
        return np.zeros(block_shape, np.float32)
    if len(inside[0].place) > len(lead):
        return np.stack([as_float32(piece.read()) for piece in inside])
    tensor = inside[0].read()
    return as_float32(tensor if inside[0].place == lead else tensor[layer])


def load_params(model: StoredModel, dtype: DTypeLike | None = None, sharding: Shardings | None = None) -> Params:
    """Load all parameters, each stacked over blocks and put where its sharding says before the next is read.

    Beyond the result itself, at most one parameter and one tensor of the file are in host memory. Where
    parameters are sharded, a host holds only the parts that its own devices need. They are float32 by default.

    Raises:
        InputError: a tensor holds NaN or infinity, or the weights do not fit in memory or in ``dtype``.
    """
    if model.load is not None:
        return model.load(dtype, sharding)
    number_type = jnp.dtype(jnp.float32 if dtype is None else dtype)
    check_weights(model.config, copies=number_type.itemsize / FLOAT)
    flat = {}
    for path, row in parameter_table(model.config).items():
        target = sharding(row) if sharding is not None else None
        flat[path] = _load_parameter(model.pieces(path), row.shape, number_type, target)
    return unflatten(flat)


def _load_parameter(
    pieces: list[Piece], shape: tuple[int, ...], dtype: np.dtype[Any], target: jax.sharding.Sharding | None
) -> jax.Array:
    full_region: Region = tuple((0, size) for size in shape)
    by_device = {} if target is None else _regions(target, shape)
    regions = {full_region} if target is None else set(by_device.values())
    buffers = {region: aligned_zeros([stop - start for start, stop in region], dtype) for region in regions}
    for piece in pieces:
        touched = {region: buffer for region, buffer in buffers.items() if _touches(region, piece.place)}
        if not touched:
            continue
        tensor = piece.read()
        if dtype == np.float16 and np.max(np.abs(tensor), initial=0) > np.finfo(np.float16).max:
            raise InputError(f"tensor {piece.name} does not fit in float16: choose another dtype")
        for region, buffer in touched.items():
            part = tuple(slice(*ends) for ends in region)
            # The tensor is one block's, or one expert's of a block: a part of the buffer's leading axes.
            depth = len(piece.place)
            inside = tuple(index - axis.start for index, axis in zip(piece.place, part[:depth], strict=True))
            buffer[inside] = tensor[part[depth:]]
        del tensor
    # Nobody writes to the buffers any more, so that a CPU's arrays may be they; elsewhere they are copied before the
    # next parameter is read.
    if target is None:
        array: jax.Array = jax.device_put(buffers[full_region], may_alias=True)
    else:
        parts = [jax.device_put(buffers[region], device, may_alias=True) for device, region in by_device.items()]
        array = jax.make_array_from_single_device_arrays(shape, target, parts)
    return array.block_until_ready()


def read_block(cfg: ModelConfig, read: Callable[[str, int], np.ndarray], layer: int) -> Params:
    """Read all parameters of one block (from 0) to the device, as :func:`bornbiased_jax.model.apply` takes them."""
    flat = {}
    for path, row in parameter_table(cfg).items():
        if row.is_stacked:
            flat[path.removeprefix("blocks/")] = _on_device(read(path, layer))
    return unflatten(flat)


def _on_device(tensor: np.ndarray) -> jax.Array:
    """Copy a tensor in C order to where a device wants it; most matrices are transposed in their file."""
    buffer = aligned_zeros(list(tensor.shape), np.dtype(np.float32))
    buffers.copy_to(buffer, tensor)
    # Nobody writes to the buffer any more, so that a CPU's array may be it.
    array: jax.Array = jax.device_put(buffer, may_alias=True)
    return array.block_until_ready()


def aligned_zeros(shape: list[int], dtype: np.dtype[Any]) -> np.ndarray:
    """Allocate zeros that begin where arrays of a CPU do, so that jax takes them as they are, unlike NumPy's own."""
    size = math.prod(shape) * dtype.itemsize
    room = np.zeros(size + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    return np.asarray(room[start : start + size].view(dtype).reshape(shape))


def _touches(region: Region, place: tuple[int, ...]) -> bool:
    return all(start <= index < stop for index, (start, stop) in zip(place, region[: len(place)], strict=True))


def _regions(target: jax.sharding.Sharding, shape: tuple[int, ...]) -> dict[jax.Device, Region]:
    """Return the part of an array that each device of this process holds."""
    indices = target.addressable_devices_indices_map(shape)
    return {
        device: tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))
        for device, index in indices.items()
        if index is not None
    }
