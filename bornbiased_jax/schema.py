"""Types of what comes from outside, with the range of every number; and JSON checked against types by pydantic.

A file's schema is a type: a ``TypedDict`` of annotated fields, or a pydantic model. What does not fit is refused in one
sentence that names the file, the field, what is expected, and the remedy.

Ranges are wide enough for any model and any use there is, and narrow enough that what lies outside is a mistake or
damage, refused before it is computed with. Whether what is asked for fits this machine is another question
(:mod:`bornbiased_jax.model.memory`).
"""

from __future__ import annotations

import functools
import json
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NoReturn, TypeVar

import numpy as np
from annotated_types import Interval
from pydantic import TypeAdapter, ValidationError

from bornbiased_jax.errors import InputError

T = TypeVar("T")

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

LONGEST_SHOWN = 80
"""Characters of a value that an error shows."""
DEEPEST = 100
"""Objects and lists inside each other, in a JSON text."""


def shown(value: object) -> str:
    """Write a value as an error shows it: as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return "a value too long to show"
    return cut(text)


def cut(text: str) -> str:
    """Cut a text as an error shows it: on one line, and to its beginning where it is long."""
    text = text.replace("\n", " ")
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def parse_json(text: str | bytes, where: str) -> Any:  # noqa: ANN401 (JSON of any form)
    """Parse a JSON text, as RFC 8259 has it: no NaN, no infinite numbers, no name twice in one object.

    Args:
        text: the text; bytes are UTF-8.
        where: what to call it in an error.

    Raises:
        InputError: it is no JSON, or holds what no file of ours or of other programs needs: numbers beyond those of
            float64, or objects inside each other more than :data:`DEEPEST` times.

    Example:
        >>> parse_json('{"a": [1, 2.5]}', "a text")
        {'a': [1, 2.5]}
        >>> parse_json('{"a": Infinity}', "a text")
        Traceback (most recent call last):
        bornbiased_jax.errors.InputError: a text is not readable as JSON: Infinity is no number of JSON
    """

    def refuse(reason: str) -> NoReturn:
        raise InputError(f"{where} is not readable as JSON: {reason}")

    def number(digits: str) -> float:
        value = float(digits)
        return value if math.isfinite(value) else refuse(f"{digits[:LONGEST_SHOWN]} is beyond all numbers")

    def members(pairs: list[tuple[str, Any]]) -> dict[str, object]:
        entries = dict(pairs)
        if len(entries) < len(pairs):
            names = [name for name, _ in pairs]
            refuse(f"the name {shown(next(name for name in names if names.count(name) > 1))} stands twice in an object")
        return entries

    try:
        decoded = text.decode("utf-8-sig") if isinstance(text, bytes) else text
        value = json.loads(
            decoded,
            parse_constant=lambda name: refuse(f"{name} is no number of JSON"),
            parse_float=number,
            object_pairs_hook=members,
        )
    except UnicodeDecodeError as error:
        raise InputError(f"{where} is not readable as JSON: it is not UTF-8 ({error.reason})") from error
    except json.JSONDecodeError as error:
        raise InputError(
            f"{where} is not readable as JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise InputError(f"{where} is not readable as JSON: it is nested too deep") from error
    except InputError:
        raise
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"{where} is not readable as JSON: it holds an integer beyond all sizes") from error
    if _deeper(value, DEEPEST):
        refuse("it is nested too deep")
    # Escapes can spell half of a surrogate pair, which no UTF-8 file can hold.
    if "\\u" in decoded:
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            refuse("it holds half of a character (a lone surrogate)")
    return value


def _deeper(value: object, levels: int) -> bool:
    """Return whether lists and objects nest deeper than ``levels``; in breadth, so that depth costs no stack."""
    layer = [value]
    for _ in range(levels):
        layer = [
            inner
            for outer in layer
            for inner in (outer.values() if isinstance(outer, dict) else outer if isinstance(outer, list) else ())
            if isinstance(inner, (dict, list))
        ]
        if not layer:
            return False
    return True


def check(kind: type[T], value: object, where: str, remedy: str = "") -> T:
    """Return the value, if pydantic reads it as the type, strictly: no text is a number, no number a flag.

    Args:
        kind: a type with its ranges: a ``TypedDict``, a dataclass, a pydantic model.
        value: parsed JSON.
        where: what to call it in an error.
        remedy: what the error advises; by default to add what is missing, to leave out what is not understood, and to
            correct what does not fit.

    Raises:
        InputError: the first field that does not fit, its value, and what it should be.

    Example:
        >>> from typing import Annotated
        >>> from annotated_types import Interval
        >>> from typing_extensions import TypedDict
        >>> Point = TypedDict("Point", {"x": Annotated[int, Interval(ge=0, le=9)]})
        >>> check(Point, {"x": 3}, "p.json")
        {'x': 3}
        >>> check(Point, {"x": 30}, "p.json")
        Traceback (most recent call last):
        bornbiased_jax.errors.InputError: p.json has x=30, but input should be less than or equal to 9: correct it
    """
    try:
        checked: T = _adapter(kind).validate_python(value, strict=True)  # type: ignore[arg-type]  # types are hashable
        return checked
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
    # The path of the first error, as far as the value has it: its end may name one of several types.
    path, part = _reached(value, errors[0]["loc"])
    name = ".".join(map(str, path))
    if errors[0]["type"] == "missing":
        raise InputError(f"{where} has no field {name!r}: {remedy or 'add it'}")
    if errors[0]["type"] == "extra_forbidden":
        raise InputError(
            f"{where} has {name}={shown(part)}, a field that is not understood: {remedy or 'leave it out'}"
        )
    # One message for each type that the value might have had.
    messages = [
        error["msg"][0].lower() + error["msg"][1:] for error in errors if _reached(value, error["loc"])[0] == path
    ]
    place = f"{where} has {name}={shown(part)}, but" if path else f"{where} cannot be used:"
    raise InputError(f"{place} {' or '.join(dict.fromkeys(messages))}: {remedy or 'correct it'}")


@functools.cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _reached(value: object, path: Sequence[Any]) -> tuple[list[Any], Any]:
    """Return the part of a path that lies in the value, and the value there."""
    parts: list[Any] = []
    for step in path:
        if isinstance(value, Mapping):
            parts.append(step)
            if step not in value:
                return parts, None
        elif isinstance(value, (list, tuple)) and isinstance(step, int) and step < len(value):
            parts.append(step)
        else:
            break
        value = value[step]
    return parts, value


# ---------------------------------------------------------------------------------------------------------------------
# Ranges


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
    if (
        isinstance(value, (int, float, np.integer, np.floating))
        and not isinstance(value, bool)
        and low <= value <= high
    ):
        converted = number(value)
        if converted == value:
            return converted
    raise InputError(f"{name}={shown(value)} is not {in_words(kind)}")


def _digits(number: float) -> str:
    if isinstance(number, int) or (number.is_integer() and abs(number) < 1e6):
        return f"{int(number):,}"
    return f"{number:.12g}"
