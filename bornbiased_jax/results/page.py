"""A result as one HTML page: its sentences, figures and tables, the command and the record."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bornbiased_jax.report import figures
from bornbiased_jax.report.page import Section, render
from bornbiased_jax.report.tables import Quantity, Row, Table
from bornbiased_jax.results.result import Listing, Result, written


def draw(result: Result, title: str, *, command: Sequence[str] = ()) -> str:
    """Render the page of one result, as a text of HTML without outside references.

    Args:
        result: of a command.
        title: what is measured, as "llama-tiny" or "base and suspect".
        command: the words of the command line that made it.
    """
    with figures.style():
        panels = list(result.figures().values())
    record = result.to_json()
    headline, *further = result.summary()
    section = Section(
        name=type(result).__name__.lower(),
        title=result.title(),
        paper="",
        description="\n\n".join([*further, *result.notes()]),
        command=shlex.join(command),
        scale="",
        headline=headline,
        tables=[_table(listing) for listing in [*result.tables(), *result.appendix()]],
        panels=panels,
        record={"settings": result.plain_entries(), "provenance": {}, **record},
    )
    return render(result.question, title, [section])


def _table(listing: Listing) -> Table:
    """Convert a table: columns from the first that holds a float on are quantities, those before say of what."""
    floats = [index for row in listing.rows for index, cell in enumerate(row) if index and isinstance(cell, float)]
    first = min(floats, default=len(listing.columns))
    heads = listing.columns[first:]
    return Table(
        title=listing.title,
        settings=listing.columns[:first],
        quantities=[Quantity(head, written) for head in heads],
        rows=[
            Row(
                [written(cell) for cell in row[:first]],
                {
                    head: cell if isinstance(cell, float) else written(cell)
                    for head, cell in zip(heads, row[first:], strict=True)
                },
            )
            for row in listing.rows
        ],
        note=listing.note,
    )
