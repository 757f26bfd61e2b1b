"""A result as one HTML page: its sentences, figures and tables, the command and the record."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from bornbiased_jax.record import lasting, provenance, with_provenance
from bornbiased_jax.report import figures
from bornbiased_jax.report.page import Section, render
from bornbiased_jax.report.tables import Table, tabulate
from bornbiased_jax.results.result import Listing, Result, written


def draw(result: Result, title: str, *, command: Sequence[str] = ()) -> str:
    """Render the page of one result as a text of HTML without outside references.

    Its title says what was measured, as "llama-tiny" or "base and suspect"; the command is the words of a command line.
    """
    with figures.style():
        panels = list(result.figures().values())
    # Without the time of this call: the page of one result is the same every time.
    record = {"provenance": lasting(provenance(starts_backend=False)), **result.to_json()}
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
        record={"settings": result.plain_entries(), **with_provenance(record, command)},
    )
    return render(result.question, title, [section])


def _table(listing: Listing) -> Table:
    """Convert a table: columns from the first that holds a float on are quantities, those before say of what."""
    floats = [index for row in listing.rows for index, cell in enumerate(row) if index and isinstance(cell, float)]
    first = min(floats, default=len(listing.columns))
    rows = []
    for row in listing.rows:
        pairs = zip(listing.columns[first:], row[first:], strict=True)
        cells = {head: (written, cell) if isinstance(cell, float) else written(cell) for head, cell in pairs}
        rows.append(([written(cell) for cell in row[:first]], cells))
    return tabulate(listing.title, listing.columns[:first], rows, listing.note)
