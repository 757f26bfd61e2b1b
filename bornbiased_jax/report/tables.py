"""What a page shows of an experiment: claims, tables, figures; paper, measured and theory side by side."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib.figure

from bornbiased_jax.report.numbers import Fixed, Format, significant

Value = float | str | tuple[float, float] | None
"""A number, a text printed as it is, a mean with its standard deviation, or nothing."""

Cell = Value | tuple[Format, Value]
"""What a row of :func:`tabulate` has under a head: a number with how it is written, or a text."""

Cells = dict[str, Cell]

SOURCES = ("paper", "measured", "theory")


@dataclasses.dataclass(frozen=True)
class Quantity:
    """A measured quantity: its name at the head of the columns, and how its numbers are written."""

    name: str
    format: Format = significant(3)


@dataclasses.dataclass(frozen=True)
class Row:
    """One configuration and its values, each a mapping from the quantity's name; the paper's only for its own."""

    settings: Sequence[Any]
    measured: Mapping[str, Value]
    paper: Mapping[str, Value] = dataclasses.field(default_factory=dict)
    theory: Mapping[str, Value] = dataclasses.field(default_factory=dict)

    @property
    def is_printed(self) -> bool:
        """True if the paper has a value of this configuration."""
        return any(value is not None for value in self.paper.values())


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows under common heads.

    Attributes:
        title: what the table shows.
        settings: heads of the columns that say the configuration ("model", "T", "seed").
        quantities: what was measured; each has a column for every source that any row has a value from.
        rows: the rows.
        note: what a reader must know about the numbers, such as what ± means here.
        first_screen: show it on the page's first screen as well.

    Raises:
        ValueError: a row does not fit the heads.

    Example:
        >>> row = Row([64], {"fraction": 0.0255}, paper={"fraction": 0.026})
        >>> Table("Top-1 token", ["T"], [Quantity("fraction")], [row]).sources(Quantity("fraction"))
        ['paper', 'measured']
    """

    title: str
    settings: Sequence[str]
    quantities: Sequence[Quantity]
    rows: Sequence[Row]
    note: str = ""
    first_screen: bool = False

    def __post_init__(self) -> None:
        names = {quantity.name for quantity in self.quantities}
        for row in self.rows:
            if len(row.settings) != len(self.settings):
                raise ValueError(f"table {self.title!r}: {row.settings} does not fit {self.settings}")
            for source in SOURCES:
                for name in getattr(row, source):
                    if name not in names:
                        raise ValueError(f"table {self.title!r} has no quantity {name!r}")

    @property
    def is_printed(self) -> bool:
        """True if the paper has a value in any row: its other rows are of other configurations than the paper's."""
        return any(row.is_printed for row in self.rows)

    @property
    def is_measured(self) -> bool:
        """True if no quantity has a value of the paper or of theory, so that heads need not name the source."""
        return all(self.sources(quantity) in ([], ["measured"]) for quantity in self.quantities)

    def sources(self, quantity: Quantity) -> list[str]:
        """Return the sources that have a value of this quantity in any row, in the order of :data:`SOURCES`."""
        return [
            source
            for source in SOURCES
            if any(getattr(row, source).get(quantity.name) is not None for row in self.rows)
        ]


def tabulate(
    title: str,
    settings: Sequence[str],
    rows: Sequence[tuple[Any, ...]],
    note: str = "",
    *,
    first_screen: bool = False,
) -> Table:
    """Make a :class:`Table` of rows that say themselves how their numbers are written.

    A row is its settings and its cells, quantity -> (format, value) or a text; then, where there are any, paper and
    theory as of :class:`Row`. Columns stand in the order in which rows name them.

    Example:
        >>> from bornbiased_jax.report.numbers import fixed
        >>> tabulate("Loss", ["seed"], [([42], {"loss": (fixed(2), 3.14159), "kept": "yes"})]).rows[0].measured
        {'loss': 3.14159, 'kept': 'yes'}
    """
    formats: dict[str, Format] = {}
    table_rows = []
    for place, cells, *rest in rows:
        measured: dict[str, Value] = {}
        for name, cell in cells.items():
            has_format = isinstance(cell, tuple) and callable(cell[0])
            formats[name] = cell[0] if has_format else formats.get(name, str)
            measured[name] = cell[1] if has_format else cell
        table_rows.append(Row(place, measured, *rest))
    columns = [Quantity(name, number_format) for name, number_format in formats.items()]
    return Table(title, settings, columns, table_rows, note, first_screen)


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement for the page's first screen, with its number from each source.

    Attributes:
        statement: what is claimed, as a sentence or a noun phrase with its configuration.
        measured, paper, theory: the values.
        format: how the numbers are written.
        key: a few words; if given, the measured value is one of the page's key numbers under these words.
    """

    statement: str
    measured: Value
    paper: Value = None
    theory: Value = None
    format: Format = significant(3)
    key: str = ""


@dataclasses.dataclass(frozen=True)
class Panel:
    """A figure that :mod:`bornbiased_jax.report.figures` draws, with the sentence under it."""

    figure: matplotlib.figure.Figure
    caption: str


def write(value: Value, number_format: Format) -> str:
    """Format a value as text; None becomes an em dash.

    Example:
        >>> from bornbiased_jax.report.numbers import fixed
        >>> write((0.5, 0.25), fixed(2)), write(None, fixed(2))
        ('0.50 ± 0.25', '—')
    """
    if value is None:
        return "—"
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        mean, deviation = value
        if isinstance(number_format, Fixed):
            return f"{number_format(mean)} ± {number_format.deviation(mean, deviation)}"
        return f"{number_format(mean)} ± {number_format(deviation)}"
    return number_format(value)
