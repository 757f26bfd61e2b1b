"""Memory of large arrays, used again within a pass over a model: fresh pages cost more than the numbers in them."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator
from contextvars import ContextVar

import numpy as np
from numpy.typing import DTypeLike

# Smaller arrays come from memory that the allocator has at hand.
_LEAST = 1 << 22
# References to a buffer that nobody uses: the pool's, and the one of the call that counts them.
_UNUSED = 2
_POOL: ContextVar[list[np.ndarray] | None] = ContextVar("pool", default=None)


@contextlib.contextmanager
def reused_memory() -> Iterator[None]:
    """Give the memory of arrays from :func:`empty` to later ones once no array refers to it, in this thread."""
    token = _POOL.set([])
    try:
        yield
    finally:
        _POOL.reset(token)


def empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an array whose numbers are not set, within :func:`reused_memory` in memory that was used before."""
    pool, kind = _POOL.get(), np.dtype(dtype)
    num_bytes = math.prod(shape) * kind.itemsize
    if pool is None or num_bytes < _LEAST:
        return np.empty(shape, kind)
    # Every view of a buffer refers to the buffer itself, so that its references tell whether one is left.
    unused = [i for i in range(len(pool)) if len(pool[i]) >= num_bytes and sys.getrefcount(pool[i]) <= _UNUSED]
    if not unused:
        pool.append(np.empty(num_bytes, np.uint8))
    buffer = pool[min(unused, key=lambda i: len(pool[i]), default=-1)]
    array: np.ndarray = buffer[:num_bytes].view(kind).reshape(shape)
    return array
