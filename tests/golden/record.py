"""Golden values: what this package computed at a known commit, compared case by case with what it computes now.

A module of this folder lists ``CASES``, each a function without arguments that returns a flat mapping of names to
values. Strings, integers, booleans, ``None`` and lists of them are compared exactly: hashes of initial weights, counts,
ids, key sets. Floats and lists of floats are compared within the module's ``TOLERANCE``, as their last bits depend on
the machine and on the compiler. Values lie in ``values/MODULE.json``.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

NIGHTLY = ("slow", "nightly")
"""Marks of a case of whose kind a shorter one is tried more often."""
VALUES = Path(__file__).resolve().parent / "values"
MODULES = ("initialization", "forward", "probes", "theory", "lineage", "training", "sinks", "exports", "commands")

Scalar = str | int | bool | float | None
Value = Scalar | list[Scalar]
Values = Mapping[str, Value]


class Tolerance(NamedTuple):
    """Largest allowed difference of two floats: ``absolute + relative · |expected|``."""

    relative: float
    absolute: float


class Case(NamedTuple):
    """One golden computation.

    Attributes:
        compute: makes the values.
        marks: ``slow`` for ``make test-slow``, ``nightly`` as well for ``make test-all`` alone.
        rounding: computes, by the names of the values, how far rounding may move them; asked where they differ by more
            than the module's tolerance.
    """

    compute: Callable[[], Values]
    marks: tuple[str, ...] = ()
    rounding: Callable[[], Mapping[str, float]] | None = None


def read(module: str) -> dict[str, dict[str, Value]]:
    """Read the values of a module by case."""
    path = VALUES / f"{module}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(module: str, values: Mapping[str, Values]) -> None:
    """Write the values of a module, one line a value."""
    VALUES.mkdir(exist_ok=True)
    text = json.dumps(values, indent=1, sort_keys=True, ensure_ascii=False)
    (VALUES / f"{module}.json").write_text(_lists_on_one_line(text) + "\n")


def case_differences(expected: Values, actual: Values, tolerance: Tolerance, case: Case) -> list[str]:
    """List the values that differ by more than the tolerance, and by more than the rounding of a case that has one."""
    rows = differences(expected, actual, tolerance)
    return differences(expected, actual, tolerance, case.rounding()) if rows and case.rounding is not None else rows


def differences(
    expected: Values, actual: Values, tolerance: Tolerance, rounding: Mapping[str, float] | None = None
) -> list[str]:
    """List the values that differ, one sentence each; names that only one of both has among them.

    Args:
        expected: golden values.
        actual: what is computed now.
        tolerance: of every value.
        rounding: absolute tolerances by name, where they are larger.
    """
    rows = [f"{name}: missing" for name in expected.keys() - actual.keys()]
    rows += [f"{name}: new, {actual[name]!r}" for name in actual.keys() - expected.keys()]
    for name in expected.keys() & actual.keys():
        absolute = max(tolerance.absolute, (rounding or {}).get(name, 0.0))
        if not _is_equal(expected[name], actual[name], tolerance._replace(absolute=absolute)):
            rows.append(f"{name}: expected {_short(expected[name])}, got {_short(actual[name])}")
    return sorted(rows)


def _is_equal(expected: Value, actual: Value, tolerance: Tolerance) -> bool:
    if isinstance(expected, list):
        return (
            isinstance(actual, list)
            and len(expected) == len(actual)
            and all(_is_equal(a, b, tolerance) for a, b in zip(expected, actual, strict=True))
        )
    if isinstance(expected, float) and isinstance(actual, float):
        # NaN equals NaN: a statistic that is undefined stays undefined.
        if math.isnan(expected) or math.isinf(expected):
            return expected == actual or (math.isnan(expected) and math.isnan(actual))
        return abs(expected - actual) <= tolerance.absolute + tolerance.relative * abs(expected)
    return type(expected) is type(actual) and expected == actual


def _short(value: Value) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _lists_on_one_line(text: str) -> str:
    lines: list[str] = []
    inside = False
    for line in text.splitlines():
        if inside:
            lines[-1] += (" " if lines[-1].endswith(",") else "") + line.strip()
        else:
            lines.append(line)
        inside = (inside or line.endswith("[")) and not line.strip().startswith("]")
    return "\n".join(lines)
