"""What is computed of an object is computed once for it and its arguments, and for no other."""

from bornbiased_jax.lineage.memoized import memoized


class Model:
    def __init__(self, size):
        self.size, self.calls = size, 0

    @memoized
    def scaled(self, factor, *, shift=0):
        self.calls += 1
        return self.size * factor + shift


def test_a_value_is_computed_once_for_each_object_and_arguments():
    small, large = Model(2), Model(3)
    for _ in range(2):
        assert [small.scaled(1), small.scaled(5), small.scaled(5, shift=1), large.scaled(5)] == [2, 10, 11, 15]
    assert (small.calls, large.calls) == (3, 1)
