"""Parse JSON and check it against types: one sentence names the file, the field, what pydantic expects, and the remedy.

A file's schema is a type: a ``TypedDict`` of annotated fields, or a pydantic model.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, TypeVar

from pydantic import TypeAdapter, ValidationError

from bornbiased_jax.errors import InputError

T = TypeVar("T")

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
