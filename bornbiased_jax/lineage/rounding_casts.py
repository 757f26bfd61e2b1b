"""Round float32 numbers to the codes of other types, given back as float32."""

from __future__ import annotations

from collections.abc import Callable

import ml_dtypes
import numpy as np

MOST_FLOAT8 = 448.0
"""The largest code of e4m3."""
Cast = Callable[[np.ndarray], np.ndarray]


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
