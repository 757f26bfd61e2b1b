"""Safetensors files with the same bytes for the same content, and the format that a file's header names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bornbiased_jax.checkpoints.formats.safetensors import encode_header

TYPES = {np.dtype(np.int8): "I8", np.dtype(np.uint8): "U8", np.dtype("<f2"): "F16", np.dtype("<f4"): "F32"}
"""Names of the types that fingerprints hold."""
# Of a safetensors file, as its specification limits it.
_LARGEST_HEADER = 100_000_000


def encode(metadata: Mapping[str, str], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return the bytes of a file: arrays in the order given, those of the largest numbers first."""
    header = encode_header(metadata, {name: (TYPES[array.dtype], array.shape) for name, array in arrays.items()})
    return header + b"".join(array.tobytes() for array in arrays.values())


def has_format(path: Path | str, name: str) -> bool:
    """Return whether a place is a file whose metadata name this format; False of folders and of no place at all.

    The header alone is read: of a file that was cut short it is known what it was to be.
    """
    # Nothing is read from a pipe, which would wait.
    if not Path(path).is_file():
        return False
    try:
        with Path(path).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            text = file.read(min(size, _LARGEST_HEADER))
    except OSError:
        return False
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        # Cut within the header, which begins with the metadata.
        return len(text) < size and f'"format":"{name}"'.encode() in text
    metadata = header.get("__metadata__") if isinstance(header, dict) else None
    return isinstance(metadata, dict) and metadata.get("format") == name
