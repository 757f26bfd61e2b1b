"""What commands write and print: JSON, CSV, figures, a page, tables and sentences."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from bornbiased_jax import io, record
from bornbiased_jax.cli.options import FILE, OUTPUT, is_given, together
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import Folder
from bornbiased_jax.report import figures
from bornbiased_jax.results import Listing, Result, page
from bornbiased_jax.results.result import written

# Options of where results go and how they are shown: no part of the command that makes them again.
RESULTS = ("json_file", "csv", "figures", "overwrite_figures", "page", "report", "quiet")
# Those that name a file or a folder to write.
PLACES = ("json_file", "csv", "figures", "page", "report", "out")


result_options = click.option(
    "--json", "json_file", type=OUTPUT, metavar="FILE", help="Write one JSON object here; - for standard output."
)
# Those that :meth:`Outputs.take` takes out.
output_options = together(
    result_options,
    click.option(
        "--csv", type=FILE, metavar="FILE", help="Write the measured numbers as CSV here, a row for each of them."
    ),
    click.option("--figures", metavar="DIR", help="Draw the figures into this folder, each as PNG and SVG."),
    click.option(
        "--overwrite",
        "overwrite_figures",
        is_flag=True,
        help="Write figures into a folder that holds other files, and replace files of the same names.",
    ),
    click.option(
        "--page", type=FILE, metavar="FILE", help="Write one HTML page here: sentences, figures, tables, the record."
    ),
)


@dataclasses.dataclass(frozen=True)
class OutputFiles:
    """Places of a result, checked before the work.

    Attributes:
        json_file, csv, page: files; None where not wanted.
        figures: a folder; None where not wanted.
    """

    json_file: str | None
    csv: str | None = None
    page: str | None = None
    figures: Folder | None = None

    @classmethod
    def take(cls, arguments: dict[str, Any]) -> OutputFiles:
        """Take the options of :func:`output_options` out of a command's arguments.

        Raises:
            InputError: one of the places cannot be written to.
        """
        json_file, csv, page = (arguments.pop(name) for name in ("json_file", "csv", "page"))
        figures, overwrite = arguments.pop("figures"), arguments.pop("overwrite_figures")
        for path in (csv, page):
            if path is not None:
                io.check_writable(path)
        folder = None
        if figures is not None:
            folder = Folder(figures, f"{click.get_current_context().command_path} --figures", overwrite=overwrite)
            folder.check(*filter(folder.knows, folder.entries()))
            io.check_writable(folder.path / "figure.png")
        return cls(json_file, csv, page, folder)

    def has_any(self) -> bool:
        """Return whether a place is given for anything."""
        return any(place is not None for place in (self.json_file, self.csv, self.page, self.figures))

    def write(self, result: Result, title: str = "") -> list[Path]:
        """Write a result to its places; return the paths of the figures.

        Args:
            result: of the command.
            title: what was measured, for the page.
        """
        write_result(self.json_file, result.to_json())
        if self.csv is not None:
            io.write_text(self.csv, result.to_csv())
        paths = []
        if self.figures is not None:
            with figures.style():
                panels = result.figures()
            files = [(f"{name}.{kind}", panel.figure) for name, panel in panels.items() for kind in ("png", "svg")]
            paths = [self.figures.write_bytes(name, figures.drawn(figure, name)) for name, figure in files]
        if self.page is not None:
            io.write_text(self.page, page.draw(result, title, command=command_line()))
        return paths

    def show(self, result: Result, title: str = "", *, line: str = "", is_piped: bool = False) -> None:
        """Write a result to its places, and print its tables and its sentences.

        Args:
            result: of the command.
            title: what was measured, for the page.
            line: printed first.
            is_piped: the line is the result for another program: sentences go to standard error.
        """
        paths = self.write(result, title)
        to_stderr = self.json_file == "-"
        if line:
            click.echo(line, err=to_stderr)
        print_tables(result.tables(), to_stderr=to_stderr)
        for path in paths:
            click.echo(str(path), err=to_stderr)
        click.echo(" ".join(result.summary()), err=is_piped or to_stderr)


def command_line() -> list[str]:
    """Return the words of the command under way, as the user gave it, without the places of its results."""
    context = click.get_current_context()
    words = context.command_path.split()
    for parameter in context.command.params:
        name, value = parameter.name, context.params.get(parameter.name or "")
        if name is None or name in RESULTS or not is_given(name):
            continue
        if isinstance(parameter, click.Argument):
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
        elif isinstance(parameter, click.Option) and parameter.is_flag:
            words += [parameter.opts[0] if value or not parameter.secondary_opts else parameter.secondary_opts[0]]
        else:
            for entry in value if isinstance(value, tuple) else [value]:
                words += [parameter.opts[0], str(entry)]
    return words


def prepare_json(json_file: str | None) -> None:
    """Fail before the work rather than after it when the output cannot be written."""
    if json_file and json_file != "-":
        io.check_writable(Path(json_file))


def check_distinct(context: click.Context) -> None:
    """Refuse two options that name one place, of which the later write would be all that is left.

    Raises:
        InputError: naming both.
    """
    named: dict[str, str] = {}
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name not in PLACES or value in (None, "-"):
            continue
        place = os.path.realpath(value)
        # A device takes what everybody writes.
        if os.path.exists(place) and not os.path.isfile(place):
            continue
        option = parameter.opts[0]
        if place in named:
            raise InputError(f"{named[place]} and {option} are one place, {value}: name one for each")
        named[place] = option


def write_result(json_file: str | None, value: Mapping[str, Any]) -> None:
    """Write the JSON object where --json says, with the command that makes it and its provenance."""
    if not json_file:
        return
    value = record.with_provenance(value, command_line())
    if json_file == "-":
        # As one text: of a value that is no JSON nothing is written.
        sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")
    else:
        io.write_json(json_file, value)


def print_tables(tables: list[Listing], *, to_stderr: bool = False) -> None:
    """Print tables for people; on standard error when standard output carries JSON. Text is aligned at the left."""
    # Names of files may hold brackets and colons.
    console = Console(stderr=to_stderr, soft_wrap=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = max(120, console.width)
    for listing in tables:
        # A title is wrapped to its table's width: as wide as the title at least.
        title = listing.title
        table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False, min_width=len(title))
        for index, column in enumerate(listing.columns):
            is_left = listing.is_text or index == 0
            table.add_column(column, justify="left" if is_left else "right", overflow="fold")
        for row in listing.rows:
            table.add_row(*map(written, row))
        console.print(table)
        if listing.note:
            click.echo(listing.note, err=to_stderr)
