"""Tables of results, and what notebooks make of them: HTML and pandas data frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from jinja2 import Environment

from bornbiased_jax.errors import InputError

if TYPE_CHECKING:
    from pandas import DataFrame


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


def written(cell: Any) -> str:
    """Write a cell as text; a float with four significant digits.

    >>> written(0.123456), written(7), written("as it is")
    ('0.1235', '7', 'as it is')
    """
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def fragment(sentences: Sequence[str], listings: Sequence[Listing]) -> str:
    """Write sentences and tables as HTML, escaped.

    >>> print(fragment(["1 < 2"], []))
    <p>1 &lt; 2</p>
    <BLANKLINE>
    """
    template = Environment(autoescape=True).from_string(_FRAGMENT)
    return template.render(sentences=sentences, listings=listings, written=written)


def data_frame(rows: Sequence[Mapping[str, Any]]) -> DataFrame:
    """Make a pandas data frame of rows; a mapping within a row becomes columns named KEY.KEY.

    Raises:
        InputError: pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise InputError("to_pandas() needs pandas, which is no dependency: pip install pandas") from error
    return pandas.json_normalize(list(rows))
