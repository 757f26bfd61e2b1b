"""Roundings that make two tensors equal: to 16 bits, and to 8 bits bare or with scales as quantized files have them.

With scales, one of two tensors is what 8 bits gave of the other: its numbers lie on a grid (whole numbers, or floats of
8 bits, times a scale for each group), and the other's, rounded to that grid, are the same. The scale of a group follows
from its largest number, which formats map to the largest code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np

_PIECE, _FIRST = 1 << 22, 1 << 12
# How far a number may lie from its code, and from halfway between two: what float32 leaves of a product and a quotient.
_TOLERANCE = 1e-5
# What float32 leaves of numbers next to 1, of both tensors.
_LAST_BITS = 2.0**-22
# How far a scale in 16 bits may lie from the one that it was rounded from.
_SCALE_TOLERANCE = 2.0**-8
# The least scale, of groups of zeros.
_TINY = np.float32(1e-30)
# The largest code of e4m3.
_MOST_FLOAT8 = 448.0
# Numbers of a tensor that fits one form alone.
_LARGE = 1 << 20

Cast = Callable[[np.ndarray], np.ndarray]
Groups = tuple[np.ndarray, np.ndarray]
"""Two tensors cut alike into groups that share a scale, [G, N] both."""
Grouping = Callable[[np.ndarray, np.ndarray], Iterator[Iterator[Groups]]]
"""Yields each way of cutting two tensors of two axes: all groups of one way must be equal, of any way."""


def _cast_to(dtype: type) -> Cast:
    """Return what rounds to a type and gives float32 back."""
    return lambda numbers: numbers.astype(dtype).astype(np.float32)


_bfloat16, _float16 = _cast_to(ml_dtypes.bfloat16), _cast_to(np.float16)


def _int8(numbers: np.ndarray) -> np.ndarray:
    """Round to whole numbers from −128 to 127."""
    integers: np.ndarray = np.clip(np.rint(numbers), -128, 127)
    return integers


def _float8(numbers: np.ndarray) -> np.ndarray:
    """Round to e4m3, four significant bits down to steps of 2⁻⁹; what is above the largest code is cut off there.

    In float32 alone, which threads share better than casts: halfway between two codes it may be either.
    """
    cut = np.clip(numbers, -_MOST_FLOAT8, _MOST_FLOAT8)
    # Veltkamp's splitting of 24 bits into 20 and 4: shifted − (shifted − cut).
    shifted = cut * np.float32(2**20 + 1)
    rounded: np.ndarray = shifted - cut
    np.subtract(shifted, rounded, out=rounded)
    # Few numbers are so small that steps no longer shrink with them.
    small = np.nonzero(np.abs(cut, out=shifted) < 2.0**-6)
    rounded[small] = np.rint(cut[small] * 512) / 512
    return rounded


@dataclasses.dataclass(frozen=True)
class Rounding:
    """A way to round a tensor.

    Attributes:
        name: for a sentence, after "equal after rounding to".
        cast: rounds numbers to codes, without scales.
        bits: of a number.
        grouping: which numbers share a scale; None without scales.
        largest: codes that the largest number of a group may have.
        widest: half the largest step, as a fraction of the largest number of a tensor, with room for a rounding to 16
            bits before.
    """

    name: str
    cast: Cast
    bits: int
    grouping: Grouping | None = None
    largest: tuple[float, ...] = ()
    widest: float = 0.0

    def makes_equal(self, base: np.ndarray, suspect: np.ndarray, difference: float) -> bool:
        """Return whether two tensors of one shape are equal after this rounding.

        Args:
            base: float32; with scales, either of the two may be the one in 8 bits.
            suspect: float32.
            difference: the largest between their numbers.
        """
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            if self.grouping is None:
                return self._gives_one_code(base, suspect)
            # Other models differ by far more than any step: they cost no search.
            if difference > self.widest * _largest(base):
                return False
            base, suspect = _matrix(base), _matrix(suspect)
            return any(self._fits(way) for pair in ((base, suspect), (suspect, base)) for way in self.grouping(*pair))

    def _gives_one_code(self, base: np.ndarray, suspect: np.ndarray) -> bool:
        """Return whether codes are equal and not all zero: all numbers that are small enough have the code zero."""
        has_codes = False
        for first, second in pieces(base, suspect):
            codes = self.cast(first)
            if not np.array_equal(codes, self.cast(second)):
                return False
            has_codes = has_codes or bool(codes.any())
        return has_codes

    def makes_equal_less_one(self, base: np.ndarray, suspect: np.ndarray) -> bool:
        """Return whether two scales of norms are equal after this rounding of what a file has: scales less 1.

        Some families store g and multiply by 1 + g, of which float32 keeps the last bits of g no more.

        Args:
            base: 1 + g, float32.
            suspect: the same of the other model.
        """
        offsets = base - np.float32(1), suspect - np.float32(1)
        return any(self._rounds_offsets(*pair) for pair in (offsets, offsets[::-1]))

    def _rounds_offsets(self, grid_N: np.ndarray, other_N: np.ndarray) -> bool:
        codes_N = self.cast(grid_N)
        low_N, high_N = (self.cast(other_N + np.float32(side)) for side in (-_LAST_BITS, _LAST_BITS))
        is_on_grid = np.abs(grid_N - codes_N).max() <= _LAST_BITS
        # Rounding keeps the order: what may become a code lies between the roundings of both ends.
        return bool(is_on_grid and ((low_N <= codes_N) & (codes_N <= high_N)).all())

    def _fits(self, way: Iterator[Groups]) -> bool:
        """Check groups in threads, once the first ones fit."""
        first = next(way, None)
        if first is None or not self._on_grid(*first):
            return False
        with ThreadPoolExecutor(2) as pool:
            return all(pool.map(lambda groups: self._on_grid(*groups), way))

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # each thread has a state of its own
    def _on_grid(self, grid_GN: np.ndarray, other_GN: np.ndarray) -> bool:
        """Check that one tensor lies on a grid of its own, group by group, and the other rounds to it."""
        num_groups, size = grid_GN.shape
        for groups in _parts(num_groups, size):
            largest = _largest_of_groups(grid_GN[groups]), _largest_of_groups(other_GN[groups])
            is_equal_g = np.zeros(len(largest[0]), bool)
            for code in self.largest:
                # Groups that have their scale are done.
                left = np.flatnonzero(~is_equal_g) if is_equal_g.any() else slice(None)
                tensors = grid_GN[groups][left], other_GN[groups][left]
                is_equal_g[left] = self._has_codes(*tensors, largest[0][left], largest[1][left], np.float32(code))
                if is_equal_g.all():
                    break
            if not is_equal_g.all():
                return False
        return True

    def _has_codes(
        self,
        grid_GN: np.ndarray,
        other_GN: np.ndarray,
        largest_G1: np.ndarray,
        other_largest_G1: np.ndarray,
        code: np.float32,
    ) -> np.ndarray:
        """Return of each group whether both tensors have the same codes, if its largest number has this one.

        Args:
            grid_GN: the tensor on a grid.
            other_GN: the one that was rounded to it.
            largest_G1: the largest numbers of the groups of the first.
            other_largest_G1: those of the other one.
            code: of the largest number on the grid.
        """
        # A file may keep its scales in fewer bits than those that its numbers were rounded by, which the other gives.
        scale_G1 = np.maximum(largest_G1 / code, _TINY)
        code_G1 = largest_G1 / scale_G1
        own_G1 = other_largest_G1 / code_G1
        own_G1 = np.where(np.abs(own_G1 / scale_G1 - 1) <= _SCALE_TOLERANCE, own_G1, scale_G1)
        is_equal_G = np.ones(len(grid_GN), bool)
        for columns in _parts(grid_GN.shape[1]):
            numbers_Gn = grid_GN[:, columns] / scale_G1
            codes_Gn = self.cast(numbers_Gn)
            is_equal_G &= (np.abs(numbers_Gn - codes_Gn) <= _TOLERANCE * np.abs(codes_Gn)).all(axis=1)
            if not is_equal_G.any():
                break
            rounds_G = np.zeros(len(grid_GN), bool)
            for numbers_Gn in _sources(other_GN[:, columns], scale_G1, own_G1, code_G1):
                rounds_G |= self._rounds_to(numbers_Gn, codes_Gn)
                if rounds_G.all():
                    break
            is_equal_G &= rounds_G
        return is_equal_G

    def _rounds_to(self, numbers_GN: np.ndarray, codes_GN: np.ndarray) -> np.ndarray:
        """Return of each group whether numbers round to codes; halfway between two, to either."""
        is_equal_GN = self.cast(numbers_GN) == codes_GN
        groups, columns = np.nonzero(~is_equal_GN)
        # What is off lies halfway, up to what float32 leaves, or makes the group another.
        if groups.size:
            numbers_n, codes_n = numbers_GN[groups, columns], codes_GN[groups, columns]
            ends = [self.cast(numbers_n * np.float32(1 + side)) for side in (-_TOLERANCE, _TOLERANCE)]
            is_equal_GN[groups, columns] = (ends[0] == codes_n) | (ends[1] == codes_n)
        is_equal_G: np.ndarray = is_equal_GN.all(axis=1)
        return is_equal_G


def pieces(base: np.ndarray, suspect: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Cut two tensors of one shape alike, in pieces that fit a cache; in the order of memory, where it is the same."""
    if base.T.flags.c_contiguous and suspect.T.flags.c_contiguous:
        base, suspect = base.T, suspect.T
    base_N, suspect_N = base.reshape(-1), suspect.reshape(-1)
    return ((base_N[part], suspect_N[part]) for part in _parts(len(base_N)))


def _parts(count: int, size: int = 1) -> Iterator[slice]:
    """Cut rows of a size: first a small part, which tells most tensors apart, then parts that fit a cache."""
    first, step = (max(1, numbers // max(1, size)) for numbers in (_FIRST, _PIECE))
    yield slice(0, first)
    yield from (slice(start, start + step) for start in range(first, count, step))


def _matrix(tensor: np.ndarray) -> np.ndarray:
    """Return a tensor of any number of axes with two: the first, and all others."""
    return np.atleast_2d(tensor) if tensor.ndim < 3 else tensor.reshape(len(tensor), -1)


def _sources(
    other_GN: np.ndarray, scale_G1: np.ndarray, own_G1: np.ndarray, code_G1: np.ndarray
) -> Iterator[np.ndarray]:
    """Yield what a file's numbers may have been rounded from, the likeliest first, over the scale.

    Args:
        other_GN: the numbers before they were rounded.
        scale_G1: the scale as the file has it.
        own_G1: the scale as those numbers give it.
        code_G1: of the largest number of each group.
    """
    yield other_GN / scale_G1
    yield other_GN / own_G1
    # Files in 8 bits are often made of ones in 16, whose numbers were rounded once before, and some libraries divide in
    # 16 bits too.
    for cast in (_bfloat16, _float16):
        rounded_GN = cast(other_GN)
        yield rounded_GN / scale_G1
        yield rounded_GN / (cast(own_G1 * code_G1) / code_G1)
        yield cast(rounded_GN / scale_G1)


def _largest_of_groups(groups_GN: np.ndarray) -> np.ndarray:
    largest_G1: np.ndarray = np.maximum(groups_GN.max(axis=1, keepdims=True), -groups_GN.min(axis=1, keepdims=True))
    return largest_G1


def _largest(tensor: np.ndarray) -> float:
    return max(float(tensor.max()), -float(tensor.min()))


def _by_tensor(first: np.ndarray, second: np.ndarray) -> Iterator[Iterator[Groups]]:
    yield iter([(first.reshape(1, -1), second.reshape(1, -1))])


def _by_rows_of(size: int | None) -> Grouping:
    """Return what cuts rows of a file into blocks of a size; into none for a channel each."""

    def grouping(first: np.ndarray, second: np.ndarray) -> Iterator[Iterator[Groups]]:
        # Rows of a file are columns of a matrix here, and rows of a table are rows.
        for left, right in ((first, second), (first.T, second.T)):
            rows, columns = left.shape
            width = size or columns
            if columns % width == 0:
                parts = _parts(rows, columns)
                yield ((left[part].reshape(-1, width), right[part].reshape(-1, width)) for part in parts)

    return grouping


_by_channel = _by_rows_of(None)


def _by_squares_of(side: int) -> Grouping:
    """Return what cuts a matrix into squares; those at its ends are what is left."""

    def squares(tensor: np.ndarray, rows: slice, columns: slice) -> np.ndarray:
        band = tensor[rows, columns]
        of_columns = band.reshape(len(band), -1, min(side, band.shape[1]))
        return of_columns.swapaxes(0, 1).reshape(of_columns.shape[1], -1)

    def groups(first: np.ndarray, second: np.ndarray) -> Iterator[Groups]:
        num_rows, num_columns = first.shape
        end_of_squares = num_columns - num_columns % side
        # One square first, which tells most tensors apart; then squares side by side.
        ends = [(0, min(side, num_columns)), (side, end_of_squares), (end_of_squares, num_columns)]
        for row in range(0, num_rows, side):
            for start, end in ends if row == 0 else ((0, end_of_squares), (end_of_squares, num_columns)):
                if start < end:
                    place = slice(row, row + side), slice(start, end)
                    yield squares(first, *place), squares(second, *place)

    def grouping(first: np.ndarray, second: np.ndarray) -> Iterator[Iterator[Groups]]:
        # Squares of a transposed matrix are the same: bands of it are cut in the order of memory.
        is_transposed = first.T.flags.c_contiguous and second.T.flags.c_contiguous
        yield groups(first.T, second.T) if is_transposed else groups(first, second)

    return grouping


# −128 where a range of 255 steps is mapped, 126 where the scale is kept in bfloat16.
_LARGEST_INT8 = (127.0, 128.0, 126.0)
# A matrix that was rounded as a part of a fused one need not have that one's largest number, and a scale that is a
# power of two maps the largest of a block to any of the large codes.
_LARGE_INT8 = (127.0, 128.0, *(float(code) for code in range(126, 63, -1)))
_LARGE_FLOAT8 = tuple(float(code) for code in (*range(448, 255, -32), *range(240, 127, -16)))

_E4M3 = "8 bits (e4m3) with a scale for each"
ROUNDINGS: dict[str, Rounding] = {
    rounding.name: rounding
    for rounding in (
        Rounding("bfloat16", _bfloat16, 16),
        Rounding("float16", _float16, 16),
        Rounding("8 bits (e4m3)", _cast_to(ml_dtypes.float8_e4m3fn), 8),
        Rounding("8 bits (e5m2)", _cast_to(ml_dtypes.float8_e5m2), 8),
        Rounding("8 bits with a scale for each tensor", _int8, 8, _by_tensor, _LARGE_INT8, 1 / 100),
        Rounding("8 bits with a scale for each channel", _int8, 8, _by_channel, _LARGEST_INT8, 1 / 128),
        Rounding("8 bits with a scale for each block of 32", _int8, 8, _by_rows_of(32), _LARGEST_INT8, 1 / 128),
        Rounding(f"{_E4M3} tensor", _float8, 8, _by_tensor, _LARGE_FLOAT8, 1 / 14),
        Rounding(f"{_E4M3} channel", _float8, 8, _by_channel, (_MOST_FLOAT8,), 1 / 25),
        *(
            Rounding(f"{_E4M3} block of {side} × {side}", _float8, 8, _by_squares_of(side), (_MOST_FLOAT8,), 1 / 25)
            for side in (128, 64, 32)
        ),
        *(
            Rounding(f"{_E4M3} block of {size}", _float8, 8, _by_rows_of(size), _LARGE_FLOAT8, 1 / 7)
            for size in (128, 32)
        ),
    )
}
"""By name, the finest first; with scales, those that the most numbers share."""

FINE = tuple(name for name, rounding in ROUNDINGS.items() if rounding.bits == 16)


class Explanations:
    """The roundings that make every tensor equal that was seen: one for all, or 16 bits for some and 8 for others."""

    def __init__(self) -> None:
        coarse = [name for name, rounding in ROUNDINGS.items() if rounding.bits == 8]
        self._left: list[tuple[str, ...]] = [(name,) for name in ROUNDINGS]
        # Norms and tables of a file in 8 bits are often kept in 16.
        self._left += [(second, first) for second in coarse for first in FINE]

    def see(self, base: np.ndarray, suspect: np.ndarray, difference: float, *, is_scale: bool = False) -> None:
        """Drop what does not explain how two tensors differ.

        Args:
            base: float32.
            suspect: float32, of the same shape.
            difference: the largest between their numbers.
            is_scale: whether they are scales of a norm, which a file may store less 1.
        """
        candidates = list(dict.fromkeys(name for names in self._left for name in names))
        fits: set[str] = set()
        # What 16 bits explain needs no search for scales, and a large tensor has one form: squares on a grid make rows
        # on one too.
        for bits in (16, 8):
            for name in candidates if not fits else ():
                if ROUNDINGS[name].bits == bits and ROUNDINGS[name].makes_equal(base, suspect, difference):
                    fits.add(name)
                    if bits == 8 and base.size >= _LARGE:
                        break
            if bits == 16 and is_scale:
                fits |= {name for name in FINE if ROUNDINGS[name].makes_equal_less_one(base, suspect)}
        self._left = [names for names in self._left if not fits.isdisjoint(names)]

    @property
    def sentence(self) -> str | None:
        """The first explanation that is left, after "equal after rounding to"; None without any."""
        if not self._left:
            return None
        first, *further = self._left[0]
        return f"{first}, of some tensors to {further[0]}" if further else first
