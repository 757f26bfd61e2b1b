"""One HTML page that holds tables, figures, provenance and the records, readable without a network."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from markupsafe import Markup, escape

from bornbiased_jax.progress import duration
from bornbiased_jax.record import flat
from bornbiased_jax.report.figures import DARK_SERIES, SERIES, svg
from bornbiased_jax.report.numbers import peak_memory
from bornbiased_jax.report.tables import SOURCES, Claim, Panel, Quantity, Row, Table, write

LARGEST_EMBEDDED_RECORD = 1_000_000
"""Bytes of JSON above which a record is not carried inside the page (the file next to it remains)."""

# Letters of a word of a table's head that need no break.
_LONG_WORD = 24


@dataclasses.dataclass(frozen=True)
class Section:
    """One experiment on the page.

    Attributes:
        name: its name on the command line; the section's anchor.
        title: the heading.
        paper: what of the papers it reproduces ("Table 1").
        description: one or more paragraphs, separated by blank lines.
        command: the command line that makes it.
        scale: the scale it was run at, or "".
        cost: how long that takes, in words.
        headline: a sentence for the top of the page, or "".
        claims, tables, panels: what it found.
        record: the whole record, for the fold-out and the download.
        failure: why there is no result, or "".
        notice: what a reader must know of the record's age, or "".
        figures: the folder next to the page that has the figures as files, or "".
    """

    name: str
    title: str
    paper: str
    description: str
    command: str
    scale: str
    cost: str = ""
    headline: str = ""
    claims: Sequence[Claim] = ()
    tables: Sequence[Table] = ()
    panels: Sequence[Panel] = ()
    record: Mapping[str, object] | None = None
    failure: str = ""
    notice: str = ""
    figures: str = ""

    @property
    def label(self) -> str:
        """A few words to link to it by: the part of the paper if it is one, else its name; of the demo its subject."""
        is_in_paper = self.paper.startswith(("Table", "Figure", "Finding", "Section"))
        subject = self.name.removeprefix("demo_")
        return self.paper if is_in_paper and subject == self.name else subject.replace("_", " ")


def render(title: str, standfirst: str, sections: Sequence[Section]) -> str:
    """Render the page as a text of HTML: its heading, the sentence under it, and the experiments, whose headlines lead.

    Example:
        >>> "Nothing yet" in render("Nothing yet", "No experiment has run.", [])
        True
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("bornbiased_jax.report", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["paragraphs"] = lambda text: re.split(r"\n\s*\n", text.strip())
    environment.filters["breakable"] = _breakable
    environment.globals.update(
        cell=_cell,
        figure=_figure,
        figure_files=figure_files,
        flat=_flat,
        embedded=_embedded,
        facts=_facts,
        write=write,
    )
    # The first screen: key claims and tables of all sections.
    claims = [(section, claim) for section in sections for claim in section.claims]
    front = [(section, table) for section in sections for table in section.tables if table.first_screen]
    return environment.get_template("page.html.j2").render(
        title=title,
        standfirst=standfirst,
        sections=sections,
        headlines=[section for section in sections if section.headline],
        keys=[claim for _, claim in claims if claim.key],
        claims=claims,
        claim_sources=[source for source in SOURCES if any(getattr(claim, source) is not None for _, claim in claims)],
        front=front,
        has_theory=any(claim.theory is not None for _, claim in claims)
        or any(row.theory for section in sections for table in section.tables for row in table.rows),
        failures=[section for section in sections if section.failure],
        light=list(enumerate(SERIES, 1)),
        dark=list(enumerate(DARK_SERIES, 1)),
    )


def _breakable(text: str) -> Markup:
    """Let a browser break long words of a head, as paths are, after their punctuation.

    >>> _breakable("base: /home/me/models/a-model-of-some-length")
    Markup('base: /<wbr>home/<wbr>me/<wbr>models/<wbr>a-<wbr>model-<wbr>of-<wbr>some-<wbr>length')
    """
    # Punctuation at which words break is in no entity.
    words = [(word, str(escape(word))) for word in text.split(" ")]
    parts = [re.sub(r"([/_@,=.-])", r"\1<wbr>", safe) if len(word) > _LONG_WORD else safe for word, safe in words]
    return Markup(" ".join(parts))


def _cell(row: Row, source: str, quantity: Quantity) -> str:
    return write(getattr(row, source).get(quantity.name), quantity.format)


def _figure(section: Section, index: int, panel: Panel) -> Markup:
    return Markup(svg(panel.figure, f"{section.name}-{index}", panel.caption))


def figure_files(folder: str, section: Section, index: int) -> dict[str, str]:
    """Return the path, from the page, of the file of the figure of this number, from 1, by its kind.

    Example:
        >>> figure_files("figures", Section("table1", "", "", "", "", ""), 2)
        {'SVG': 'figures/table1-2.svg', 'PNG': 'figures/table1-2.png'}
    """
    return {kind: f"{folder}/{section.name}-{index}.{kind.lower()}" for kind in ("SVG", "PNG")}


def _flat(value: Mapping[str, object], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested provenance into lines of a name and a text."""
    entries = flat(value, prefix).items()
    return [
        (name, entry if isinstance(entry, str) else json.dumps(entry, ensure_ascii=False)) for name, entry in entries
    ]


def _embedded(record: Mapping[str, object]) -> str:
    """Return the record as the address of a download, or "" where it is too large."""
    data = json.dumps(record, indent=2, allow_nan=False).encode()
    if len(data) > LARGEST_EMBEDDED_RECORD:
        return ""
    return "data:application/json;base64," + base64.b64encode(data).decode()


def _facts(record: Mapping[str, Any]) -> list[str]:
    """Describe the provenance in one line: device, versions, revision, time and memory."""
    provenance = record.get("provenance", {})
    facts = []
    device = provenance.get("device", {})
    # A command that never computed knows of none.
    if device.get("count"):
        facts.append(device["kind"] if device["count"] == 1 else f"{device['count']} × {device['kind']}")
    if "cpu" in provenance.get("platform", {}):
        facts.append(f"{provenance['platform']['cpu']}, {provenance['platform']['cores']} cores")
    facts += [f"{name} {digest[:8]}" for name, digest in provenance.get("corpora", {}).items()]
    if "versions" in provenance:
        facts.append(f"jax {provenance['versions']['jax']}")
    if provenance.get("precision"):
        facts.append(provenance["precision"])
    if provenance.get("git"):
        facts.append(provenance["git"]["revision"][:10] + (" with changes" if provenance["git"]["dirty"] else ""))
    elif "version" in provenance:
        facts.append(f"version {provenance['version']}")
    if "wall_time_s" in provenance:
        facts.append(duration(provenance["wall_time_s"]))
    if "peak_memory_bytes" in provenance:
        facts.append(peak_memory(provenance["peak_memory_bytes"], provenance.get("children_peak_memory_bytes", 0)))
    if "timestamp" in provenance:
        facts.append(provenance["timestamp"][:10])
    return facts
