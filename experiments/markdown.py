"""Tables and claims of experiments in Markdown, at most :data:`MOST_COLUMNS` columns each."""

from __future__ import annotations

from collections.abc import Sequence

from bornbiased_jax.report import numbers
from bornbiased_jax.report.tables import SOURCES, Claim, Table, Value, write

MOST_COLUMNS = 7
"""Columns that a page shows without scrolling; a wider table is shown in parts under the same rows."""

Column = tuple[str, list[str]]
"""A head and its cells."""


def table_text(table: Table) -> str:
    """Write a table: its title, one column for each quantity and source, its note.

    Where the columns are too many, settings that all rows have move into the title, and the quantities are split over
    several tables.
    """
    settings = [(head, [str(row.settings[place]) for row in table.rows]) for place, head in enumerate(table.settings)]
    by_quantity: list[list[Column]] = [
        [
            (_head(table, quantity.name, source), [_cell(getattr(row, source).get(quantity.name), quantity.format)
                                                   for row in table.rows])
            for source in table.sources(quantity)
        ]
        for quantity in table.quantities
    ]  # fmt: skip
    title = f"**{table.title}**"
    if len(settings) + sum(map(len, by_quantity)) > MOST_COLUMNS:
        # What all rows have in common is said once.
        common = [(head, cells) for head, cells in settings if len(table.rows) > 1 and len(set(cells)) == 1]
        settings = [column for column in settings if column not in common] or settings[:1]
        title += "".join(f"; {head}: {cells[0]}" for head, cells in common if (head, cells) not in settings)
        if len(settings) > MOST_COLUMNS // 2:
            settings = [_joined(settings)]
    parts: list[list[Column]] = [[]]
    for columns in by_quantity:
        # The sources of a quantity stay together.
        if parts[-1] and len(settings) + len(parts[-1]) + len(columns) > MOST_COLUMNS:
            parts.append([])
        parts[-1] += columns
    grids = [_columns_text([*settings, *part]) for part in parts]
    return "\n\n".join([title, *grids, *([table.note] if table.note else [])])


def _joined(settings: Sequence[Column]) -> Column:
    """Join settings into one column: values that explain themselves alone, numbers after their head."""
    heads, cells = zip(*settings, strict=True)
    rows = [
        ", ".join(
            f"{head} = {cell}" if cell.replace(",", "").isdigit() else cell
            for head, cell in zip(heads, row, strict=True)
            if cell
        )
        for row in zip(*cells, strict=True)
    ]
    return "configuration", rows


def _head(table: Table, name: str, source: str) -> str:
    """Name the quantity, and the source where any quantity has more than what was measured."""
    return name if table.is_measured else f"{name}, {source}"


def claims_text(claims: Sequence[Claim]) -> str:
    """Write claims: a row each, a column for each source that any of them has."""
    sources = [source for source in SOURCES if any(getattr(claim, source) is not None for claim in claims)]
    statements = ("", [claim.statement for claim in claims])
    values = [(source, [_cell(getattr(claim, source), claim.format) for claim in claims]) for source in sources]
    return _columns_text([statements, *values])


def _cell(value: Value, number_format: numbers.Format) -> str:
    return "" if value is None else write(value, number_format)


def _columns_text(columns: Sequence[Column]) -> str:
    heads, cells = zip(*columns, strict=True)
    lines = [heads, ["---"] * len(heads), *zip(*cells, strict=True)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
