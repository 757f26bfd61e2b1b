"""What makes two sets of weights the same: shape, type and every byte."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from bornbiased_jax.parallel import on_host
from bornbiased_jax.parameters import Params, flatten

_HALF = (ml_dtypes.bfloat16, np.float16)
# Numbers that are sorted or compared at once, and those that are looked at to cut a tensor into such parts.
_PART, _SAMPLE = 1 << 22, 1 << 16


def tensor_digests(params: Params) -> dict[str, str]:
    """Return SHA-256 of every tensor by path, of parameters of the blocks layer by layer ("blocks/mlp/up/kernel/3").

    Hashed are the type, the shape and the bytes of the array in C order, so that equal digests mean equal
    tensors, whatever file or device they came from. Layers that a descendant left frozen show as equal.
    """
    return {name: tensor_digest(tensor) for name, tensor in _tensors(params)}


def tensor_digest(tensor: np.ndarray) -> str:
    """Return SHA-256 of one tensor: its type, its shape and its bytes in C order."""
    hasher = hashlib.sha256(f"{tensor.dtype.name}{list(tensor.shape)}".encode())
    hasher.update(np.ascontiguousarray(tensor).view(np.uint8).data)
    return hasher.hexdigest()


def value_digest(tensor: np.ndarray) -> str:
    """Return SHA-256 of one tensor's type, size and sorted bytes: equal for the same numbers in any order and shape.

    A transposed or rearranged copy of a tensor has the digest of the original.
    """
    hasher = hashlib.sha256(f"{tensor.dtype.name}{tensor.size}".encode())
    bits = np.ascontiguousarray(tensor).ravel().view(f"u{tensor.dtype.itemsize}")
    for part in _sorted_parts(bits):
        hasher.update(part.view(np.uint8).data)
    return hasher.hexdigest()


def _sorted_parts(bits_N: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the numbers of a row in ascending order, part by part: a sorted copy of a large embedding is too much."""
    if len(bits_N) <= _PART:
        yield np.sort(bits_N)
        return
    # About equal parts, found from some of the numbers.
    few = np.sort(bits_N[:: max(1, len(bits_N) // _SAMPLE)])
    edges = np.unique(few[:: max(1, len(few) * _PART // len(bits_N))][1:])
    for low, high in zip([None, *edges], [*edges, None], strict=True):
        yield np.sort(np.concatenate([_between(piece, low, high) for piece in _pieces(bits_N)]))


def _between(piece: np.ndarray, low: np.integer[Any] | None, high: np.integer[Any] | None) -> np.ndarray:
    """Select numbers from ``low`` on and below ``high``; None where there is no end."""
    inside = np.ones(len(piece), bool) if low is None else piece >= low
    numbers: np.ndarray = piece[inside if high is None else inside & (piece < high)]
    return numbers


def _pieces(row_N: np.ndarray) -> Iterator[np.ndarray]:
    return (row_N[start : start + _PART] for start in range(0, len(row_N), _PART))


def is_constant(tensor: np.ndarray) -> bool:
    """Tell whether a tensor holds one number throughout."""
    row_N = np.ascontiguousarray(tensor).ravel()
    return all(bool((piece == row_N[0]).all()) for piece in _pieces(row_N))


def _tensors(params: Params) -> Iterator[tuple[str, np.ndarray]]:
    """Yield every tensor with its name, those of the blocks layer by layer.

    Numbers stored in half precision are the float32 numbers that they are: a file has one digest however it is read.
    """
    for path, leaf in flatten(params).items():
        array = on_host(leaf)
        layers = ((f"{path}/{index}", layer) for index, layer in enumerate(array))
        for name, tensor in layers if path.startswith("blocks/") else ((path, array),):
            yield name, tensor.astype(np.float32) if tensor.dtype in _HALF else tensor


def digest(params: Params) -> str:
    """Return SHA-256 of all tensor digests with their paths, in the order of the paths.

    >>> import numpy as np
    >>> ones = {"embed": {"embedding": np.ones((2, 3), np.float32)}}
    >>> digest(ones) == digest({"embed": {"embedding": np.ones((3, 2), np.float32)}})
    False
    """
    return combine(tensor_digests(params))


def combine(digests: dict[str, str]) -> str:
    """Combine digests into one, whatever order they come in."""
    lines = "".join(f"{name} {value}\n" for name, value in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()
