"""Casts of float32 numbers to the codes of other types, and eight bits with a zero point.

The latter are numbers on 255 equal steps from a group's least to its largest number.

Two numbers lie on any such steps and thirty do not, so that noise fits none; the codes of a tensor in fewer bits, which
noise could leave in place, have a common divisor (17 of 4 bits).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import ml_dtypes
import numpy as np

MOST_FLOAT8 = 448.0
"""The largest code of e4m3."""
Cast = Callable[[np.ndarray], np.ndarray]
SCALE_TOLERANCE = 2.0**-8
"""How far a scale in 16 bits may lie from the one that it was rounded from."""
TINY = np.float32(1e-30)
"""The least scale, of groups of zeros."""
# Steps between the least and the largest number of a group with a zero point: one or two may be cut off at an end.
_STEPS = (255, 254, 253)
# How far a number may lie from its step, and from halfway between two, in steps: what float32 leaves of 255 of them.
_STEP_TOLERANCE = 2e-4
# Steps beyond the ends that are cut off, where a zero point was rounded in 16 bits.
_CUT = 2.0
# Numbers on steps that are handled together: they stay in a core's cache.
_BLOCK = 1 << 17
# Codes of a tensor whose common divisor is looked for.
_FIRST_CODES = 1 << 12


def cast_to(dtype: type) -> Cast:
    """Return what rounds to a type and gives float32 back."""
    return lambda numbers: numbers.astype(dtype).astype(np.float32)


bfloat16 = cast_to(ml_dtypes.bfloat16)
"""Rounds to 8 significant bits."""
float16 = cast_to(np.float16)
"""Rounds to 11 significant bits, infinite where too large."""


def int8(numbers: np.ndarray) -> np.ndarray:
    """Round to whole numbers from −128 to 127."""
    integers: np.ndarray = np.clip(np.rint(numbers), -128, 127)
    return integers


def float8(numbers: np.ndarray) -> np.ndarray:
    """Round to e4m3, four significant bits down to steps of 2⁻⁹; what is above the largest code is cut off there.

    In float32 alone, which threads share better than casts: halfway between two codes it may be either.
    """
    cut = np.clip(numbers, -MOST_FLOAT8, MOST_FLOAT8)
    # Veltkamp's splitting of 24 bits into 20 and 4: shifted − (shifted − cut).
    shifted = cut * np.float32(2**20 + 1)
    rounded: np.ndarray = shifted - cut
    np.subtract(shifted, rounded, out=rounded)
    # Few numbers are so small that steps no longer shrink with them.
    small = np.nonzero(np.abs(cut, out=shifted) < 2.0**-6)
    rounded[small] = np.rint(cut[small] * 512) / 512
    return rounded


class _Steps(NamedTuple):
    """Equal steps of groups with a zero point.

    Attributes:
        low_G1: the least number of each group, which counts as code 0 here.
        scale_G1: a step.
        num_steps: steps up to the largest number.
        least_G1, largest_G1: ends of the numbers that may have been rounded to the steps.
    """

    low_G1: np.ndarray
    scale_G1: np.ndarray
    num_steps: int
    least_G1: np.ndarray
    largest_G1: np.ndarray

    @classmethod
    def from_ends(cls, grid_ends_2G1: np.ndarray, other_ends_2G1: np.ndarray, num_steps: int) -> _Steps:
        """Return the steps of groups whose ends lie so many steps apart."""
        low_G1, high_G1 = grid_ends_2G1
        scale_G1 = np.maximum((high_G1 - low_G1) / np.float32(num_steps), TINY)
        return cls(low_G1, scale_G1, num_steps, *other_ends_2G1)

    def of_groups(self, groups: np.ndarray | slice) -> _Steps:
        """Return the steps of some of the groups."""
        low_G1, scale_G1, num_steps, *ends = self
        least_G1, largest_G1 = (end_G1[groups] for end_G1 in ends)
        return _Steps(low_G1[groups], scale_G1[groups], num_steps, least_G1, largest_G1)

    def zeros(self) -> np.ndarray:
        """Return the code of zero in each group: most formats have one."""
        zero_G1: np.ndarray = np.rint(-self.low_G1 / self.scale_G1)
        return zero_G1

    def own_scale(self, cast: Cast) -> np.ndarray:
        """Return the scale by the other numbers: a file may keep its own in fewer bits than it was rounded by."""
        own_G1 = np.maximum((cast(self.largest_G1) - cast(self.least_G1)) / np.float32(_STEPS[0]), TINY)
        return np.where(np.abs(own_G1 / self.scale_G1 - 1) <= SCALE_TOLERANCE, own_G1, self.scale_G1)


_Source = Callable[[np.ndarray, _Steps], np.ndarray]
"""Returns what the codes of a file may have been rounded from, of the other's numbers."""


def _sources_of_steps(unused: int) -> list[_Source]:
    """List what the codes of a file with zero points may have been rounded from, the likeliest first.

    Args:
        unused: codes of 256 that no number has, at either end.
    """
    sources: list[_Source] = [
        lambda other_GN, steps: (other_GN - steps.low_G1) / steps.scale_G1,
        lambda other_GN, steps: other_GN / steps.own_scale(np.asarray) + steps.zeros(),
    ]
    for cast in (bfloat16, float16):
        sources += _sources_in_16_bits(cast, unused)
    return sources


def _sources_in_16_bits(cast: Cast, unused: int) -> Iterator[_Source]:
    """Yield the numbers of a copy in 16 bits over the scale, as they are, and divided in 16 bits too."""

    def quotients(other_GN: np.ndarray, steps: _Steps) -> np.ndarray:
        return cast(cast(other_GN) / steps.scale_G1)

    # Some add the zero point in 16 bits too, to codes from 0 to 255 or from −128 to 127.
    def sums(other_GN: np.ndarray, steps: _Steps, first: np.float32) -> np.ndarray:
        return cast(quotients(other_GN, steps) + (steps.zeros() + first)) - first

    yield lambda other_GN, steps: cast(other_GN) / steps.scale_G1 + steps.zeros()
    yield lambda other_GN, steps: cast(other_GN) / steps.own_scale(cast) + steps.zeros()
    yield lambda other_GN, steps: quotients(other_GN, steps) + steps.zeros()
    for first in (np.float32(lowest + cut) for lowest in (0, -128) for cut in range(unused + 1)):
        yield functools.partial(sums, first=first)


def lies_on_steps(grid_GN: np.ndarray, other_GN: np.ndarray) -> bool:
    """Check that groups lie on 255 equal steps from their least to their largest number, and others round to these."""
    sources = {count: _sources_of_steps(_STEPS[0] - count) for count in _STEPS}
    step = max(1, _BLOCK // max(1, grid_GN.shape[1]))
    for start in range(0, len(grid_GN), step):
        tensors = grid_GN[start : start + step], other_GN[start : start + step]
        ends = [np.stack([end(axis=1, keepdims=True) for end in (part.min, part.max)]) for part in tensors]
        left: np.ndarray | slice = slice(None)
        is_equal_g = np.zeros(len(tensors[0]), bool)
        for count in _STEPS:
            steps = _Steps.from_ends(ends[0][:, left], ends[1][:, left], count)
            is_equal_g[left] = _have_steps(
                tensors[0][left], tensors[1][left], steps, sources[count], is_first=start == 0
            )
            if is_equal_g.all():
                break
            left = np.flatnonzero(~is_equal_g) if is_equal_g.any() else slice(None)
        else:
            return False
    return True


def _have_steps(
    grid_GN: np.ndarray, other_GN: np.ndarray, steps: _Steps, sources: list[_Source], *, is_first: bool
) -> np.ndarray:
    """Return of each group whether both tensors have the same codes on its steps.

    ``sources`` are put in the order in which they fit the most groups: those of a file are alike.
    """
    is_equal_G = np.ones(len(grid_GN), bool)
    for start in range(0, grid_GN.shape[1], _BLOCK):
        columns = slice(start, start + _BLOCK)
        numbers_Gn = (grid_GN[:, columns] - steps.low_G1) / steps.scale_G1
        codes_Gn = np.rint(numbers_Gn)
        numbers_Gn -= codes_Gn
        is_equal_G &= np.abs(numbers_Gn, out=numbers_Gn).max(axis=1) <= _STEP_TOLERANCE
        if not is_equal_G.any():
            break
        # Codes of fewer bits have a common divisor.
        if is_first and start == 0:
            codes_N = codes_Gn[is_equal_G].reshape(-1)[:_FIRST_CODES].astype(np.int64)
            if np.gcd.reduce(codes_N) > 1:
                return np.zeros(len(grid_GN), bool)
        fits, rounds_G = dict.fromkeys(sources, 0), np.zeros(len(grid_GN), bool)
        for source in sources:
            missing_G = is_equal_G & ~rounds_G
            left = slice(None) if missing_G.all() else np.flatnonzero(missing_G)
            numbers_gn = source(other_GN[left, columns], steps.of_groups(left))
            rounds_G[left] = rounds_g = _round_to_steps(numbers_gn, codes_Gn[left], steps.num_steps)
            fits[source] = int(rounds_g.sum())
            if rounds_G[is_equal_G].all():
                break
        sources.sort(key=fits.__getitem__, reverse=True)
        is_equal_G &= rounds_G
    return is_equal_G


def _round_to_steps(numbers_GN: np.ndarray, codes_GN: np.ndarray, count: int) -> np.ndarray:
    """Return of each group whether numbers round to codes; halfway between two, to either, and at the ends cut off."""
    distances_GN = np.abs(numbers_GN - codes_GN)
    is_equal_G: np.ndarray = distances_GN.max(axis=1) <= 0.5 + _STEP_TOLERANCE
    far = np.flatnonzero(~is_equal_G)
    if far.size:
        distances_gN, numbers_gN, codes_gN = distances_GN[far], numbers_GN[far], codes_GN[far]
        is_below_gN, is_above_gN = (codes_gN == 0) & (numbers_gN < 0), (codes_gN == count) & (numbers_gN > count)
        limit_gN = np.where(is_below_gN | is_above_gN, _CUT, 0.5 + _STEP_TOLERANCE)
        is_equal_G[far] = (distances_gN <= limit_gN).all(axis=1)
    return is_equal_G
