"""Tables of results, and the HTML that a notebook shows of sentences and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jinja2 import Environment


class Listing(NamedTuple):
    """A table: its title, the heads of its columns, its rows, lines of text below it, and whether it has no numbers."""

    title: str
    columns: list[str]
    rows: list[list[Any]]
    note: str = ""
    is_text: bool = False


# A notebook has its own fonts and colours, light or dark: only words and tables are given.
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
    """A cell as text: numbers with four digits that count.

    >>> written(0.123456), written(7), written("as it is")
    ('0.1235', '7', 'as it is')
    """
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)


def fragment(sentences: Sequence[str], listings: Sequence[Listing]) -> str:
    """Sentences and tables as HTML, whatever is in them escaped.

    >>> print(fragment(["1 < 2"], []))
    <p>1 &lt; 2</p>
    <BLANKLINE>
    """
    template = Environment(autoescape=True).from_string(_FRAGMENT)
    return template.render(sentences=sentences, listings=listings, written=written)
