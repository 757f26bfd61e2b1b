"""Tensors of safetensors files, read from the file when asked for; headers of such files.

The library checks a file; the numbers are read by their place in it. A file that is mapped into memory, as the library
maps it, stays in the resident set page by page, so that whoever reads one tensor after the other ends with all of them.

Source: the format's specification (github.com/huggingface/safetensors).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from bornbiased_jax import schema
from bornbiased_jax.checkpoints import buffers
from bornbiased_jax.checkpoints.tensors import TYPES, Tensor, wrong_type
from bornbiased_jax.errors import InputError, cut_short

# A file begins with the number of bytes of its header, in so many bytes.
_LENGTH = 8
_LONGEST_HEADER = 100_000_000
"""Bytes of a header that the library reads at most."""


def locate(path: Path) -> dict[str, Tensor]:
    """Locate each tensor in a file that the library finds sound.

    Raises:
        InputError: it is cut short, or no safetensors file.
    """
    try:
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(size))
    except (SafetensorError, OSError) as error:
        if _is_cut_short(path):
            raise cut_short(f"{path}, whose {path.stat().st_size:,} bytes do not hold what they announce,") from error
        raise InputError(
            f"{path} is no safetensors file ({schema.cut(str(error))}): save the model again, as safetensors"
        ) from error
    header.pop("__metadata__", None)
    return {
        name: _tensor(path, name, entry["dtype"], tuple(entry["shape"]), 8 + size + entry["data_offsets"][0])
        for name, entry in header.items()
    }


def _tensor(path: Path, name: str, kind: str, shape: tuple[int, ...], offset: int) -> Tensor:
    """Return a tensor at its place in a file."""

    def number_type() -> np.dtype[Any]:
        if kind not in TYPES:
            raise wrong_type(name, str(path.parent), kind)
        return TYPES[kind]

    def read() -> np.ndarray:
        tensor = buffers.empty(shape, number_type())
        with path.open("rb") as stream:
            stream.seek(offset)
            num_bytes = stream.readinto(tensor.reshape(-1).view(np.uint8).data)
        if num_bytes != tensor.nbytes:
            raise cut_short(f"{path}, which ends before tensor {name} does,")
        return tensor

    return Tensor(kind, shape, read)


def encode_header(metadata: Mapping[str, str], tensors: Mapping[str, tuple[str, tuple[int, ...]]]) -> bytes:
    """Return the beginning of a file, which the numbers of its tensors follow in the same order.

    The library's own writer wants all tensors at once, and has the metadata in another order each time.

    Args:
        metadata: of the file.
        tensors: type, as the format calls it, and shape of each by name.
    """
    header: dict[str, object] = {"__metadata__": metadata}
    # Where each tensor begins and ends among the numbers.
    start = 0
    for name, (kind, shape) in tensors.items():
        end = start + math.prod(shape) * TYPES[kind].itemsize
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    # The header is padded, so that the numbers are aligned.
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH)
    return len(text).to_bytes(_LENGTH, "little") + text


def _is_cut_short(path: Path) -> bool:
    """Tell whether a file that is not sound ends within its header, or before the last number that the header names."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(_LENGTH), "little")
            if size < _LENGTH + length:
                # Any eight bytes are a length; that of a header has its limit, and it begins with a brace.
                return length <= _LONGEST_HEADER and stream.read(1) in (b"", b"{")
            header = json.loads(stream.read(length))
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        return bool(_LENGTH + length + max(ends, default=0) > size)
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return False
