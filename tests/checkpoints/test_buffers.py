"""Memory of large arrays is used again, and never while an array refers to it."""

import ml_dtypes
import numpy as np

from bornbiased_jax.checkpoints.buffers import empty, reused_memory
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


def test_upcast_keeps_numbers_and_layout_in_memory_that_is_used_again():

    numbers = np.random.default_rng(0).standard_normal(SHAPE, np.float32).astype(ml_dtypes.bfloat16)
    with reused_memory():
        for tensor in (numbers, numbers.T, numbers[:, ::2]):
            upcast = as_float32(tensor)
            np.testing.assert_array_equal(upcast, tensor.astype(np.float32))
            assert upcast.flags.f_contiguous == tensor.flags.f_contiguous
