"""Tensors of a checkpoint of ``torch.distributed.checkpoint``: shards, and a pickle that says what is where.

The pickle ``.metadata`` is read as data (:mod:`.torch_file`), and nothing that it names is imported or called. A shard
``….distcp`` is a row of files of ``torch.save``, each with a part of one tensor. The optimizer's state is left out.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bornbiased_jax import schema
from bornbiased_jax.checkpoints.formats.torch_file import Name, Rules, TorchRecord, read_pickle, read_tensor
from bornbiased_jax.checkpoints.tensors import TYPES, Tensor
from bornbiased_jax.errors import InputError, cut_short

METADATA = ".metadata"
_KINDS = {dtype.name: kind for kind, dtype in TYPES.items() if not kind.startswith("F8")}
_MODULE = "torch.distributed.checkpoint"
_CLASSES = """
Metadata TensorStorageMetadata TensorProperties ChunkStorageMetadata BytesStorageMetadata MetadataIndex StorageMeta
_MEM_FORMAT_ENCODING
""".split()
_ALLOWED = frozenset(
    {
        *((f"{_MODULE}.metadata", name) for name in _CLASSES),
        (f"{_MODULE}.filesystem", "_StorageInfo"),
        ("torch.serialization", "_get_layout"),
        ("torch", "Size"),
        *(("torch", name) for name in _KINDS),
        *((module, "PosixPath") for module in ("pathlib", "pathlib._local")),
        ("collections", "OrderedDict"),
        # How Python 3.11.0 to 3.11.3 write a member of an enumeration, which is not looked up either.
        ("builtins", "getattr"),
    }
)
_ENUMERATION = (f"{_MODULE}.metadata", "_MEM_FORMAT_ENCODING")
# What trainers save next to the model, and under which names they save the model.
_NO_MODEL = re.compile(r"(optim|optimizer|lr_scheduler|scheduler|train_state|dataloader|trainer|rng)(\.|_|$)")
_OF_MODEL = ("model.", "state_dict.", "module.")
_LARGEST_PICKLE = 64 << 20
_MOST_AXES = 8


class _Chunk(NamedTuple):
    """A part of a tensor: where it lies in the tensor, and where its file of ``torch.save`` lies in a shard."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    path: Path
    start: int
    length: int


def _read(name: str, kind: str, shape: tuple[int, ...], chunks: list[_Chunk]) -> np.ndarray:
    """Read a tensor from all its parts; refuse one that is cut short, or of another shape or type."""
    tensor = np.empty(shape, TYPES[kind])
    for chunk in chunks:
        with chunk.path.open("rb") as stream:
            stream.seek(chunk.start)
            part = read_tensor(stream.read(chunk.length), f"{chunk.path} at tensor {name}")
        if part.shape != chunk.sizes or part.dtype != tensor.dtype:
            raise InputError(
                f"{chunk.path} has tensor {name} in another shape than {METADATA} says: save the model again"
            )
        tensor[tuple(slice(at, at + size) for at, size in zip(chunk.offsets, chunk.sizes, strict=True))] = part
    return tensor


def locate(path: Path) -> dict[str, Tensor]:
    """Locate the tensors of the model, by the ``.metadata`` of a folder, none read yet.

    Raises:
        InputError: it is corrupted, asks for more than descriptions of tensors, or a shard is missing.
    """
    if path.stat().st_size > _LARGEST_PICKLE:
        raise InputError(f"{path} is larger than any description of tensors: save the model as safetensors")
    content = read_pickle(path.read_bytes(), str(path), Rules(_ALLOWED, _rebuilt, has_objects=True))
    try:
        tensors = _tensors(content, path)
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise InputError(
            f"{path} does not describe tensors as torch.distributed.checkpoint does: save the model again"
        ) from error
    of_model = {name: tensor for name, tensor in tensors.items() if _NO_MODEL.match(name) is None}
    if not of_model:
        raise InputError(f"{path} describes no tensor of a model: name the folder of a model's checkpoint")
    # A trainer saves the model below one name, as in {"model": …, "optim": …}.
    prefix = f"{next(iter(of_model)).partition('.')[0]}."
    if prefix not in _OF_MODEL or not all(name.startswith(prefix) for name in of_model):
        prefix = ""
    return {name.removeprefix(prefix): tensor for name, tensor in of_model.items()}


def _rebuilt(function: Name, arguments: tuple[Any, ...]) -> object:
    """Return sizes as a tuple; everything else that is called says nothing about numbers."""
    if function.name == "getattr" and arguments[:1] != (_ENUMERATION,):
        raise ValueError("an attribute of no enumeration")
    if function.name == "Size":
        return tuple(arguments[0])
    return {} if function.name == "OrderedDict" else TorchRecord(function.name)


def _tensors(content: object, path: Path) -> dict[str, Tensor]:
    """Return the tensors that a description holds."""
    state = _state(content, "Metadata")
    # Where each part lies, by name and offsets.
    places: dict[tuple[str, tuple[int, ...]], tuple[Path, int, int]] = {}
    used: Counter[Path] = Counter()
    for index, info in (pair for key, pair in state["storage_data"].items() if isinstance(key, int)):
        at, place = _state(index, "MetadataIndex"), _state(info, "_StorageInfo")
        start, length = place["offset"], place["length"]
        if place.get("transform_descriptors"):
            raise InputError(f"{path} has compressed parts: save the checkpoint without transforms")
        if at.get("offset") is not None:
            shard = path.parent / Path(place["relative_path"]).name
            _check_shard(shard, start, length)
            places[at["fqn"], at["offset"]] = (shard, start, length)
            used[shard] += length
    # Of parts that lie in one place a small file could ask for a large array.
    if any(num_bytes > shard.stat().st_size for shard, num_bytes in used.items()):
        raise ValueError("parts in one place")
    tensors = {}
    for name, described in state["state_dict_metadata"].items():
        if described.kind != "TensorStorageMetadata" or not described.state["chunks"]:
            continue
        dtype = _state(described.state["properties"], "TensorProperties")
        kind = dtype["dtype"] if isinstance(dtype, dict) else dtype[0]
        if not isinstance(kind, Name) or kind.name not in _KINDS:
            raise InputError(
                f"{path} has {schema.cut(name)} of a type that is not read: save it as bfloat16 or float32"
            )
        shape, type_name = _sizes(described.state["size"]), _KINDS[kind.name]
        chunks = []
        for chunk in described.state["chunks"]:
            entry = _state(chunk, "ChunkStorageMetadata")
            offsets, sizes = _sizes(entry["offsets"]), _sizes(entry["sizes"])
            chunks.append(_Chunk(offsets, sizes, *places[name, offsets]))
        _check_cover(chunks, shape, TYPES[type_name].itemsize)
        tensors[name] = Tensor(type_name, shape, partial(_read, name, type_name, shape, chunks))
    return tensors


def _state(record: object, kind: str) -> Any:  # noqa: ANN401 (of the file)
    """Return the state of an object of this kind."""
    if not isinstance(record, TorchRecord) or record.kind != kind:
        raise TypeError(f"no {kind}")
    return record.state


def _sizes(value: object) -> tuple[int, ...]:
    if not isinstance(value, tuple) or not all(type(size) is int and 0 <= size < 2**48 for size in value):
        raise ValueError("no sizes")
    return value


def _check_shard(shard: Path, start: int, length: int) -> None:
    # Not Path.is_file, which raises where no file can have such a name.
    if not os.path.isfile(shard):
        raise InputError(f"{shard.name} is missing, though {shard.parent / METADATA} names it: fetch that shard")
    if not 0 <= start <= start + length <= shard.stat().st_size:
        raise cut_short(str(shard))


def _check_cover(chunks: list[_Chunk], shape: tuple[int, ...], itemsize: int) -> None:
    """Check whether parts lie inside their shards, and hold every number of a tensor once.

    They do if and only if the corners of all parts, with alternating signs, are those of the tensor.
    """
    if len(shape) > _MOST_AXES:
        raise ValueError("too many axes")
    corners: Counter[tuple[int, ...]] = Counter()

    def add_corners(offsets: tuple[int, ...], sizes: tuple[int, ...], sign: int) -> None:
        for is_end in itertools.product((0, 1), repeat=len(shape)):
            corner = tuple(at + end * size for at, size, end in zip(offsets, sizes, is_end, strict=True))
            corners[corner] += sign * (-1) ** sum(is_end)

    add_corners((0,) * len(shape), shape, -1)
    for chunk in chunks:
        if math.prod(chunk.sizes) * itemsize > chunk.length:
            raise ValueError("a part larger than its file")
        add_corners(chunk.offsets, chunk.sizes, 1)
    if any(corners.values()):
        raise ValueError("parts overlap or are missing")
