"""Memory of large arrays is used again, and never while an array refers to it."""

import ml_dtypes
import numpy as np

from bornbiased_jax.checkpoints.buffers import copy_to, empty, reused_memory
from bornbiased_jax.checkpoints.tensors import as_float32

SHAPE = (1024, 1024)


def place(array):
    return array.__array_interface__["data"][0]


def test_memory_is_used_again_once_no_view_is_left():
    with reused_memory():
        first = empty(SHAPE, np.float32)
        first_place, view = place(first), first[:, 1:].T
        del first
        other = empty(SHAPE, np.float32)
        assert not np.shares_memory(view, other)
        del view
        # A smaller array takes the smallest memory that holds it.
        assert place(empty((1024, 512), np.uint64)) == first_place
        assert place(empty((2, 1024, 1024), np.float32)) not in (first_place, place(other))
    assert empty(SHAPE, np.float32).flags.owndata


def test_no_kind_of_view_loses_its_memory():
    with reused_memory():
        held = {
            "slice": empty(SHAPE, np.float32)[1:, ::2],
            "other type": empty(SHAPE, np.float32).view(np.uint8),
            "buffer": empty(SHAPE, np.float32).data,
            "read only": np.broadcast_to(empty(SHAPE, np.float32), (2, *SHAPE)),
            "masked": np.ma.masked_invalid(empty(SHAPE, np.float32), copy=False),
        }
        others = [empty(SHAPE, np.float32) for _ in held]
        for name, view in held.items():
            assert not any(np.shares_memory(np.asarray(view), other) for other in others), name


def test_copies_are_in_c_order_whatever_lies_where():
    rng = np.random.default_rng(0)
    matrix, stack = rng.standard_normal((300, 700)), rng.standard_normal((3, 20, 10))
    for source in (matrix, matrix.T, matrix[::2, 5:].T, matrix[:0].T, stack, stack.T, stack[0, 0]):
        target = np.full(source.shape, np.nan)
        copy_to(target, source)
        np.testing.assert_array_equal(target, source)


def test_upcast_keeps_numbers_and_layout_in_memory_that_is_used_again():

    numbers = np.random.default_rng(0).standard_normal(SHAPE, np.float32).astype(ml_dtypes.bfloat16)
    with reused_memory():
        # One row lies in either order at once.
        for tensor in (numbers, numbers.T, numbers[:, ::2], numbers[:1], numbers[:1].T, numbers[0]):
            upcast = as_float32(tensor)
            np.testing.assert_array_equal(upcast, tensor.astype(np.float32))
            assert upcast.flags.f_contiguous == tensor.flags.f_contiguous
