"""The base of results: tables, sentences, figures, and what notebooks, files and pandas make of them."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar, overload

import numpy as np
from jinja2 import Environment

from bornbiased_jax import io
from bornbiased_jax.config import FieldValue
from bornbiased_jax.errors import InputError
from bornbiased_jax.record import flat

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from bornbiased_jax.report.tables import Panel

R = TypeVar("R", bound=Mapping[str, object])


class Listing(NamedTuple):
    """A table: its title, the heads of its columns, its rows, lines of text below it, and whether it has no numbers."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""
    is_text: bool = False


# A notebook has its own fonts and colors, light or dark.
_FRAGMENT = """\
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{%- for listing in listings %}<table>
<caption>{{ listing.title }}</caption>
<thead><tr>{% for name in listing.columns %}<th scope="col">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in listing.rows %}<tr>{% for cell in row %}<td>{{ written(cell) }}</td>{% endfor %}</tr>
{% endfor %}</tbody>
</table>
{% endfor %}"""


def written(cell: object) -> str:
    """Write a cell as text; a float with four significant digits.

    >>> written(0.123456), written(7), written("as it is"), written(None)
    ('0.1235', '7', 'as it is', '–')
    """
    if cell is None:
        return "–"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """The result of a command. Subclasses are frozen dataclasses with a ``summary`` and ``tables``.

    Attributes:
        question: the question that the command answers: the title of its page.
        axes: names of the columns of :meth:`rows` that say which row it is: the axes of :attr:`arrays`, in their order.
    """

    question: ClassVar[str] = ""
    axes: ClassVar[tuple[str, ...]] = ()

    def index(self) -> tuple[str, ...]:
        """Return the columns that say which row a row is: :attr:`axes`, and the field of a sweep."""
        return self.axes

    def to_json(self) -> dict[str, object]:
        """Return the object that the command writes with --json: the fields by name, unless a subclass says more."""
        return dataclasses.asdict(self)

    def summary(self) -> list[str]:
        """Return the sentences that the command ends with."""
        raise NotImplementedError

    def tables(self) -> list[Listing]:
        """Return the tables that the command prints."""
        return []

    def appendix(self) -> list[Listing]:
        """Return further tables, for the end of its page alone."""
        return []

    def table(self) -> Listing:
        """Return the first of the tables."""
        return self.tables()[0]

    def notes(self) -> list[str]:
        """Return further sentences, for its page alone."""
        return []

    def plain_entries(self) -> dict[str, int | float | str]:
        """Return the numbers and texts of its record, which its page shows in a fold-out."""
        return {name: value for name, value in self.to_json().items() if isinstance(value, int | float | str)}

    def title(self) -> str:
        """Return the heading of its page."""
        return self.table().title

    def figures(self) -> dict[str, Panel]:
        """Draw the figures by name, each with the sentence below it."""
        return {}

    def draw(self, ax: Axes | None = None) -> Figure | None:  # noqa: ARG002 (subclasses draw)
        """Draw the first of the figures, into axes if given; None where there is none that axes can hold."""
        return None

    @overload
    def plot(self) -> Figure: ...
    @overload
    def plot(self, ax: Axes) -> Axes: ...
    def plot(self, ax: Axes | None = None) -> Figure | Axes:
        """Draw the first of the figures.

        Args:
            ax: Matplotlib axes to draw into; a figure of its own if not given.

        Returns:
            The axes, or that figure.

        Raises:
            InputError: there is nothing to draw, or a figure of several panels was to go into one pair of axes.
        """
        if ax is not None:
            if not hasattr(ax, "get_xlabel"):
                raise InputError(f"ax is a {type(ax).__name__}: give Matplotlib axes, as plt.subplots() returns")
            if self.draw(ax) is None:
                remedy = " figures() has what there is" if self.figures() else ""
                raise InputError(f"no figure for one pair of axes: {self.summary()[0]}{remedy}")
            return ax
        panel = next(iter(self.figures().values()), None)
        if panel is None:
            raise InputError(f"nothing to draw: {self.summary()[0]}")
        return panel.figure

    def rows(self) -> list[dict[str, object]]:
        """Return the rows of the data frame and of the CSV file: one of all that is in the JSON but for mappings."""
        return [{key: cell for key, cell in self.to_json().items() if not isinstance(cell, Mapping)}]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        """The numbers of :meth:`rows` as arrays by name.

        A column of :meth:`index` is a one-dimensional array of its values. Every other one has an axis for each of
        those, in their order; columns that take one value alone have none, but for the first. A list within a row, such
        as counts by rank, is a last axis. What a row lacks is NaN; texts are left out.
        """
        rows = [flat(row) for row in self.rows()]
        if not rows:
            return {}
        labels = {name: list(dict.fromkeys(row[name] for row in rows)) for name in self.index() if name in rows[0]}
        varying = [name for index, (name, values) in enumerate(labels.items()) if index == 0 or len(values) > 1]
        shape = [len(labels[name]) for name in varying] or [len(rows)]
        # Where each row goes: by its labels, or as it comes.
        position_of = {name: {label: at for at, label in enumerate(labels[name])} for name in varying}
        places = [tuple(position_of[name][row[name]] for name in varying) or (at,) for at, row in enumerate(rows)]
        arrays = {name: np.asarray(values) for name, values in labels.items()}
        for column in dict.fromkeys(name for row in rows for name in row if name not in labels):
            numbers = {
                place: row[column] for place, row in zip(places, rows, strict=True) if row.get(column) is not None
            }
            try:
                values = np.asarray(list(numbers.values()))
            except ValueError:  # lists of several lengths
                continue
            if values.size and values.dtype.kind in "biuf":
                # Where every place has a number none needs NaN, and integers keep all their digits.
                is_full = len(numbers) == math.prod(shape)
                grid_shape = *shape, *values.shape[1:]
                grid = np.empty(grid_shape, values.dtype) if is_full else np.full(grid_shape, np.nan)
                grid[tuple(np.transpose(list(numbers)))] = values
                arrays[column] = grid
        return arrays

    @overload
    def to_csv(self) -> str: ...
    @overload
    def to_csv(self, path: str | Path) -> None: ...
    def to_csv(self, path: str | Path | None = None) -> str | None:
        """Write the rows of :meth:`to_pandas` as CSV; a list within a row is JSON.

        Args:
            path: the file, which is written completely or not at all; returned as a text if not given, as pandas does.

        Raises:
            InputError: the file cannot be written.
        """
        rows = [flat(row) for row in self.rows()]
        columns = dict.fromkeys(name for row in rows for name in row)
        stream = StringIO()
        writer = csv.DictWriter(stream, list(columns), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {name: json.dumps(cell) if isinstance(cell, list | tuple) else cell for name, cell in row.items()}
            )
        if path is None:
            return stream.getvalue()
        io.write_text(io.user_path(path), stream.getvalue())
        return None

    def to_pandas(self) -> DataFrame:
        """Make a pandas data frame; a mapping within a row becomes columns named KEY.KEY.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise InputError("to_pandas() needs pandas, which is no dependency: pip install pandas") from error
        return pandas.DataFrame([flat(row) for row in self.rows()])

    def __repr__(self) -> str:
        return " ".join(self.summary())

    def _repr_html_(self) -> str:
        template = Environment(autoescape=True).from_string(_FRAGMENT)
        return template.render(sentences=self.summary(), listings=self.tables(), written=written)


@dataclasses.dataclass(frozen=True, repr=False)
class Report(Result, Generic[R]):
    """A result that is one JSON object of a known form.

    Attributes:
        report: the object, without the model.
        model: the configuration, all fields; None of what is of no model.
    """

    report: R
    model: Mapping[str, FieldValue] | None = None

    def to_json(self) -> dict[str, object]:
        """Return the object that the command writes with --json: the report, and the model."""
        return {**self.report} if self.model is None else {**self.report, "model": self.model}


def listing(title: str, columns: Mapping[str, str], rows: Sequence[Mapping[str, object]], note: str = "") -> Listing:
    """Make a table of rows by the heads of its columns, key -> head; what a row lacks is a dash."""
    return Listing(title, list(columns.values()), [[row.get(key) for key in columns] for row in rows], note)
