"""Memory of large arrays: used again within a pass over a model, and copied into in the order that caches want.

Fresh pages cost more than the numbers in them, and so does a transposed matrix that is read number by number.
"""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np
from numpy.typing import DTypeLike

# Smaller arrays come from memory that the allocator has at hand.
_LEAST = 1 << 22
# Rows and columns of a matrix that are transposed at once: a tile fits in the cache.
_TILE = 256
_UNUSED: ContextVar[list[np.ndarray] | None] = ContextVar("unused", default=None)


@contextlib.contextmanager
def reused_memory() -> Iterator[None]:
    """Give the memory of arrays from :func:`empty` to later ones once no array refers to it, in this thread."""
    token = _UNUSED.set([])
    try:
        yield
    finally:
        _UNUSED.reset(token)


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an array whose numbers are not set, within :func:`reused_memory` in memory that was used before."""
    unused, kind = _UNUSED.get(), np.dtype(dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    if unused is None or num_bytes < _LEAST:
        return np.empty(shape, kind)
    # The smallest memory that holds the array.
    large_enough = [i for i in range(len(unused)) if len(unused[i]) >= num_bytes]
    if large_enough:
        buffer = unused.pop(min(large_enough, key=lambda i: len(unused[i])))
    else:
        buffer = np.empty(num_bytes, np.uint8)
    # Between the array and its memory lies a memoryview. So every view of the array refers to the array and not to the
    # memory: when the array is gone, no view of it is left.
    array: np.ndarray = np.frombuffer(buffer[:num_bytes].data, kind)
    weakref.finalize(array, unused.append, buffer).atexit = False
    return array.reshape(shape)


def copy_to(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array into one of the same shape in C order; a transposed matrix tile by tile."""
    if source.ndim != 2 or source.flags.c_contiguous:
        target[...] = source
        return
    # Tiles stand in rows whose length is no power of two, which would fill a few sets of the cache alone.
    room = np.empty((_TILE, _TILE + 16), source.dtype)
    for start in range(0, source.shape[0], _TILE):
        for first in range(0, source.shape[1], _TILE):
            columns = source[start : start + _TILE, first : first + _TILE].T
            tile = room[: columns.shape[0], : columns.shape[1]]
            tile[...] = columns
            target[start : start + _TILE, first : first + _TILE] = tile.T
