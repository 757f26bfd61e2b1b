"""The range of every number that comes from outside: of configurations, files and options.

Wide enough for any model and any use there is, and narrow enough that what lies outside is a mistake or damage, refused
before it is computed with. Whether what is asked for fits this machine is another question
(:mod:`bornbiased_jax.model.memory`).
"""

from __future__ import annotations

import typing
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval

from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import shown

# Sizes of a model.
Layers = Annotated[int, Interval(ge=1, le=10_000)]
Heads = Annotated[int, Interval(ge=1, le=2**16)]
Width = Annotated[int, Interval(ge=1, le=2**20)]
HiddenWidth = Annotated[int, Interval(ge=1, le=2**24)]
Vocabulary = Annotated[int, Interval(ge=1, le=2**24)]
TokenId = Annotated[int, Interval(ge=0, le=2**24 - 1)]
Length = Annotated[int, Interval(ge=1, le=2**30)]
ExpertCount = Annotated[int, Interval(ge=1, le=65_536)]
Positive = Annotated[float, Interval(ge=1e-6, le=1e6)]
Fraction = Annotated[float, Interval(ge=0.0, le=1.0)]
RopeBase = Annotated[float, Interval(ge=1.0, le=1e15)]
RopeFactor = Annotated[float, Interval(ge=1.0, le=1e6)]
FrequencyFactor = Annotated[float, Interval(ge=1e-3, le=1e6)]

# Randomness and levels.
Seed = Annotated[int, Interval(ge=0, le=2**32 - 1)]
Level = Annotated[float, Interval(ge=1e-300, le=1.0 - 1e-6)]

# Work.
SeqLen = Annotated[int, Interval(ge=1, le=2**24)]
Count = Annotated[int, Interval(ge=1, le=100_000_000)]
CountOrNone = Annotated[int, Interval(ge=0, le=100_000_000)]
SketchDim = Annotated[int, Interval(ge=2, le=512)]
BatchSize = Annotated[int, Interval(ge=1, le=1_000_000)]
Entries = Annotated[int, Interval(ge=16, le=10_000_000)]
Steps = Annotated[int, Interval(ge=1, le=1_000_000_000)]
StepsOrNone = Annotated[int, Interval(ge=0, le=1_000_000_000)]
Temperature = Annotated[float, Interval(ge=0.0, le=100.0)]
TopProbability = Annotated[float, Interval(ge=1e-9, le=1.0)]
Processes = Annotated[int, Interval(ge=1, le=65_536)]
Rank = Annotated[int, Interval(ge=0, le=65_535)]
Pieces = Annotated[int, Interval(ge=256, le=1_000_000)]

# Optimization.
LearningRate = Annotated[float, Interval(ge=1e-30, le=1e6)]
LearningRateOrNone = Annotated[float, Interval(ge=0.0, le=1e6)]
Decay = Annotated[float, Interval(ge=0.0, le=1.0 - 1e-9)]
Clip = Annotated[float, Interval(ge=1e-30, le=1e30)]
HeldOut = Annotated[float, Interval(ge=1e-9, le=1.0 - 1e-9)]


def ends(kind: object) -> tuple[type, float, float] | None:
    """Return int or float and the least and greatest value of such a type (also of it or None); None if it has none.

    Example:
        >>> ends(Layers), ends(Width | None), ends(str)
        ((<class 'int'>, 1, 10000), (<class 'int'>, 1, 1048576), None)
    """
    ways = typing.get_args(kind) if type(None) in typing.get_args(kind) else (kind,)
    for way in ways:
        for note in getattr(way, "__metadata__", ()):
            return way.__origin__, note.ge, note.le
    return None


def whole(text: str) -> int | None:
    """Parse a text of decimal digits; None for any other text, and for one of more than 18 digits.

    Example:
        >>> whole("042"), whole("-1"), whole("9" * 5000)
        (42, None, None)
    """
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def in_words(kind: object) -> str:
    """Describe in words the values that such a type takes.

    Example:
        >>> in_words(Layers), in_words(Decay)
        ('an integer from 1 to 10,000', 'a number from 0 to 0.999999999')
    """
    limits = ends(kind)
    assert limits is not None
    number, low, high = limits
    return f"{'an integer' if number is int else 'a number'} from {_digits(low)} to {_digits(high)}"


def within(kind: object, value: object, name: str) -> Any:  # noqa: ANN401 (int or float, as the type says)
    """Return the value as a Python number of the type; an integer may be given as a whole float, or as NumPy's.

    Raises:
        InputError: it is no such number, with the name, the value and the range.

    Example:
        >>> within(Layers, 12.0, "num_layers")
        12
    """
    limits = ends(kind)
    assert limits is not None
    number, low, high = limits
    # A comparison with NaN is false.
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool) and low <= value <= high:
        converted = number(value)
        if converted == value:
            return converted
    raise InputError(f"{name}={shown(value)} is not {in_words(kind)}")


def _digits(number: float) -> str:
    if isinstance(number, int) or (number.is_integer() and abs(number) < 1e6):
        return f"{int(number):,}"
    return f"{number:.12g}"
