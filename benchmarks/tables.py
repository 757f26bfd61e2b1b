"""The table of a benchmark's record, declared next to what the benchmark measures: a template for each cell.

A template names fields of the record and how they are written, by a function of :mod:`bornbiased_jax.report.numbers`
and its digits: ``"{speedup_median:times:2} ({speedup_range:times:2})"``. Besides there are ``GB`` and
``MB`` of bytes and ``duration`` of seconds. Of several numbers the smallest and the largest are written.
"""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence
from typing import Any

from bornbiased_jax.progress import duration
from bornbiased_jax.report.numbers import fixed, format_named
from bornbiased_jax.report.tables import Table, tabulate

BenchmarkRecord = Mapping[str, Any]
BYTES = {"MB": 1e6, "GB": 1e9}


class Template(string.Formatter):
    """Format fields of a record by name."""

    def format_field(self, value: Any, format_spec: str) -> str:  # noqa: ANN401 (JSON of any form)
        """Write one field."""
        if value is None or isinstance(value, bool):
            return {None: "none", True: "yes", False: "no"}[value]
        if isinstance(value, Mapping):
            value = list(value.values())
        if isinstance(value, Sequence) and not isinstance(value, str):
            ends = [self.format_field(end, format_spec) for end in (min(value), max(value))]
            return " to ".join(dict.fromkeys(ends))
        if format_spec in BYTES:
            return f"{fixed(2)(value / BYTES[format_spec])} {format_spec}"
        if format_spec == "duration":
            return duration(value)
        return format_named(format_spec)(value) if format_spec else str(value)


def fill(template: str, record: BenchmarkRecord) -> str:
    """Fill a template's fields.

    Raises:
        KeyError: the record has no such field.
    """
    return Template().vformat(template, (), record)


def facts(record: BenchmarkRecord, *, title: str, rows: Mapping[str, str], note: str = "") -> list[Table]:
    """Make one table with a row for each template, under its name; names, title and note are templates too."""
    cells = [([fill(name, record)], {"measured": fill(cell, record)}) for name, cell in rows.items()]
    return [tabulate(fill(title, record), ["what"], cells, fill(note, record))]


def entries(
    record: BenchmarkRecord, *, title: str, each: str, columns: Mapping[str, str], note: str = ""
) -> list[Table]:
    """Make one table with a row for each entry of a field and a column for each template, the first one its heading.

    Args:
        record: of the benchmark.
        title: a template.
        each: the field, a list of entries or a mapping; the key of an entry is its field ``name``.
        columns: head -> a template of an entry's fields.
        note: a template.
    """
    field = record[each]
    rows = [{"name": name, **entry} for name, entry in field.items()] if isinstance(field, Mapping) else field
    first, *others = columns
    cells = [([fill(columns[first], row)], {head: fill(columns[head], row) for head in others}) for row in rows]
    return [tabulate(fill(title, record), [first], cells, fill(note, record))]
