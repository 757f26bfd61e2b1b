"""Check values that come from a file against types with ranges, and refuse what does not fit in one sentence.

A file's schema is a type: a ``TypedDict`` of annotated fields, as pydantic reads it. Which value of which field is
refused, and what it should have been, follows from the type alone.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from bornbiased_jax.errors import InputError

LONGEST_SHOWN = 80
"""Characters of a value that an error shows."""
DEEPEST = 100
"""Objects and lists inside each other, in a JSON text."""


def shown(value: Any) -> str:
    """Write a value as an error shows it: as Python writes it, cut where it is long."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits
        return "a value too long to show"
    return cut(text)


def cut(text: str) -> str:
    """Cut a text as an error shows it: to its beginning, where it is long."""
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def parse_json(text: str | bytes, where: str) -> Any:
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

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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


def _deeper(value: Any, levels: int) -> bool:
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


def check(kind: Any, value: Any, where: str, remedy: str = "fetch it again") -> Any:
    """Return the value, if it is of the type, read strictly as JSON: no text is a number, no number a flag.

    Args:
        kind: the type, as pydantic reads it.
        value: parsed JSON.
        where: what to call it in an error.
        remedy: what the error advises.

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
        bornbiased_jax.errors.InputError: p.json has x=30, which is not an integer from 0 to 9: fetch it again
    """
    from pydantic import ValidationError

    try:
        return _adapter(kind).validate_python(value, strict=True)
    except ValidationError as error:
        # Of several ways to read a value the last error is that of the way it comes closest to.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path, part = _reached(value, first["loc"])
    name = ".".join(map(str, path))
    if first["type"] == "missing":
        raise InputError(f"{where} has no field {name!r}: {remedy}")
    if first["type"] == "extra_forbidden":
        raise InputError(f"{where} has {name}={shown(part)}, a field that is not understood: {remedy}")
    expected = _wanted(_rules(kind), path)
    if not path:
        raise InputError(f"{where} is not {expected}: {remedy}")
    raise InputError(f"{where} has {name}={shown(part)}, which is not {expected}: {remedy}")


@functools.cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@functools.cache
def _rules(kind: Any) -> dict[str, Any]:
    rules: dict[str, Any] = _adapter(kind).json_schema()
    return rules


def _reached(value: Any, path: Sequence[Any]) -> tuple[list[Any], Any]:
    """Return the part of a path that lies in the value (its end may name one of several types), and the value there."""
    taken: list[Any] = []
    for step in path:
        if isinstance(value, Mapping):
            taken.append(step)
            if step not in value:
                return taken, None
        elif isinstance(value, (list, tuple)) and isinstance(step, int) and step < len(value):
            taken.append(step)
        else:
            break
        value = value[step]
    return taken, value


def _wanted(rules: Mapping[str, Any], path: Sequence[Any]) -> str:
    """Describe in words what should stand at a path, from the JSON schema of the root."""
    node: Mapping[str, Any] = rules
    for step in path:
        node = _resolved(rules, node)
        node = next((way for way in _ways(rules, node) if way.get("type") in ("object", "array")), node)
        if isinstance(step, int) and "items" in node:
            node = node["items"]
        else:
            node = node.get("properties", {}).get(step) or node.get("additionalProperties") or {}
    return " or ".join(dict.fromkeys(_words(way) for way in _ways(rules, _resolved(rules, node))))


def _resolved(rules: Mapping[str, Any], node: Mapping[str, Any]) -> Mapping[str, Any]:
    name = node.get("$ref", "").rpartition("/")[2]
    return rules["$defs"][name] if name else node


def _ways(rules: Mapping[str, Any], node: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [_resolved(rules, way) for way in node.get("anyOf", [node])]


def _words(node: Mapping[str, Any]) -> str:
    if "const" in node:
        return shown(node["const"])
    if "enum" in node:
        return f"one of {', '.join(map(str, node['enum']))}"
    kind = node.get("type")
    if kind in ("integer", "number"):
        low, high = node.get("minimum"), node.get("maximum")
        return f"{'an integer' if kind == 'integer' else 'a number'}{span(low, high)}"
    if kind == "array" and "maxItems" in node:
        return f"a list of at most {node['maxItems']:,}"
    if kind == "string" and "pattern" in node:
        return f"a text of the form {node['pattern']}"
    names = {"boolean": "true or false", "string": "a text", "array": "a list", "object": "an object", "null": "null"}
    return names.get(str(kind), "of a kind that is understood")


def span(low: float | None, high: float | None) -> str:
    """Write a range in words, to stand after "an integer" or "a number".

    Example:
        >>> span(1, 10_000), span(0.0, None)
        (' from 1 to 10,000', ' of at least 0')
    """
    if low is None:
        return "" if high is None else f" of at most {_digits(high)}"
    return f" of at least {_digits(low)}" if high is None else f" from {_digits(low)} to {_digits(high)}"


def _digits(number: float) -> str:
    if isinstance(number, int) or (number.is_integer() and abs(number) < 1e6):
        return f"{int(number):,}"
    return f"{number:.12g}"
