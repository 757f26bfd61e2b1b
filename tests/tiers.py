"""Cells of parametrized tests that `make test-slow` leaves to `make test-all`: their kind has a shorter cell."""

from collections.abc import Iterable
from typing import Any

import pytest

NIGHTLY = (pytest.mark.slow, pytest.mark.nightly)


def nightly_except(rows: Iterable[Any], *representatives: Any) -> list[Any]:
    """Return the rows of a parametrization, all but these representatives marked for the night.

    Args:
        rows: values of one parameter, or tuples of values of several.
        representatives: rows that keep the marks of their test.
    """
    rows = list(rows)
    assert all(row in rows for row in representatives), representatives
    marked = (pytest.param(*(row if isinstance(row, tuple) else (row,)), marks=NIGHTLY) for row in rows)
    return [row if row in representatives else cell for row, cell in zip(rows, marked, strict=True)]
