"""Tensors of safetensors files, read from the file when asked for, whole or in part.

The library checks a file; the numbers are read by their place in it. A file that is mapped into memory, as the library
maps it, stays in the resident set page by page, so that whoever reads one tensor after the other ends with all of them.

Source: the format's specification (github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from bornbiased_jax import schema
from bornbiased_jax.checkpoints.tensors import NamedTensors
from bornbiased_jax.errors import InputError

_TYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
# Numbers of quantized models, which mean something only together with their scales.
_QUANTIZED = {
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


class _Place(NamedTuple):
    path: Path
    offset: int
    kind: str
    shape: tuple[int, ...]


def open_safetensors(folder: Path, paths: list[Path], *, allows_quantized: bool = False) -> NamedTensors:
    """Locate the tensors of all files, none read yet.

    Args:
        folder: what to call the files in an error.
        paths: of the files.
        allows_quantized: whether tensors of integers and of eight-bit floats are read, as they are stored.

    Raises:
        InputError: a file is truncated or no safetensors file, a name occurs twice, or (when read) a type is no float.
    """
    places: dict[str, _Place] = {}
    for path in paths:
        for name, place in _places(path).items():
            if name in places:
                raise InputError(f"tensor {name} is in more than one file of {folder}: fetch the model again")
            places[name] = place

    types = {**_TYPES, **_QUANTIZED} if allows_quantized else _TYPES

    def located(name: str) -> tuple[_Place, np.dtype]:
        place = places[name]
        if place.kind not in types:
            raise InputError(
                f"tensor {name} of {folder} is of type {place.kind}, not F64, F32, F16 or BF16: save it as a float"
            )
        return place, types[place.kind]

    def read(name: str) -> np.ndarray:
        place, dtype = located(name)
        count = int(np.prod(place.shape, dtype=np.int64))
        return np.fromfile(place.path, dtype, count, offset=place.offset).reshape(place.shape)

    def first(name: str, axis: int, count: int) -> np.ndarray:
        place, dtype = located(name)
        mapped = np.memmap(place.path, dtype, mode="r", offset=place.offset, shape=place.shape)
        # A copy: the mapping goes when this returns.
        return np.array(mapped[(slice(None),) * axis + (slice(count),)])

    shapes = {name: place.shape for name, place in places.items()}
    return NamedTensors(str(folder), shapes, read, first, {name: place.kind for name, place in places.items()})


def _places(path: Path) -> dict[str, _Place]:
    """Locate each tensor in a file that the library finds sound."""
    try:
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"{path} is truncated or no safetensors file ({schema.cut(str(error))}): fetch it again"
        ) from error
    header.pop("__metadata__", None)
    return {
        name: _Place(path, 8 + size + entry["data_offsets"][0], entry["dtype"], tuple(entry["shape"]))
        for name, entry in header.items()
    }
