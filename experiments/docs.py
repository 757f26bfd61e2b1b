"""``python -m experiments.docs [--check]``: write the measured numbers of the documentation from the records.

A number that was measured stands between two comments, and what is between them is generated:

    <!-- record: table1 show=tables -->
    <!-- end -->

    It took <!-- record: table1 value=provenance.wall_time_s format=integer --><!-- end --> s.

``show`` names what of the experiment's display is wanted: ``headline``, ``claims``, ``tables``, or ``tables:2`` (the
second); of a selection, ``claims`` are those of all its records and ``tables:1`` is the first table with the rows of
all. ``value`` is a place in the record, written by ``format``: one of ``report.numbers`` and its digits.
``scale`` is laptop unless given. A name ``benchmark/NAME`` is a record of ``benchmarks/results``, or with ``scale=gpu``
of ``experiments/results/gpu``, shown by ``benchmarks/NAME.py``. The last block of a section names the commands of all
its records in one line. Where a record is missing, the block says which command makes it, or shows an ellipsis within a
sentence.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bornbiased_jax import experiments, io
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import front_figure, results, runner
from bornbiased_jax.experiments.base import Record, relabel
from bornbiased_jax.experiments.markdown import claims_text, table_text
from bornbiased_jax.model.layers import HIGHEST, PRECISIONS
from bornbiased_jax.progress import duration
from bornbiased_jax.report import numbers
from bornbiased_jax.report.tables import Table

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = ROOT / "benchmarks" / "results"
SHOWN = ("headline", "claims", "tables")

_BLOCK = re.compile(r"(<!-- record: (?P<options>[^>]*?) -->)(?P<content>.*?)(<!-- end -->)", re.DOTALL)
_HEADING = re.compile(r"^#{1,6} ", re.MULTILINE)
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class RecordBlock:
    """One generated part of a document.

    Attributes:
        name: an experiment, or ``benchmark/NAME``.
        scale: of the record.
        show: as in the module's docstring, or "".
        value: the place of a number, or "".
        format: how that is written.
    """

    name: str
    scale: str = "laptop"
    show: str = ""
    value: str = ""
    format: str = "significant:3"

    @property
    def module(self) -> str:
        """The module of a benchmark; benchmarks/ is not installed with the packages, it lies next to the documents."""
        return f"benchmarks.{self.name.removeprefix('benchmark/')}"

    @property
    def command(self) -> str:
        """The command that makes the record."""
        if self.name.startswith("benchmark/"):
            name = self.name.removeprefix("benchmark/")
            if self.scale == "gpu":
                return f"python -m experiments.gpu --steps {name}"
            options = getattr(importlib.import_module(self.module), "OPTIONS", "")
            return f"python -m benchmarks {name} {options}--json benchmarks/results/{name}.json"
        return f"bornbiased reproduce {self.name} --scale {self.scale}"


def documents(root: Path = ROOT) -> list[Path]:
    """List the documents that hold blocks."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md")), *sorted((root / "docs/results").glob("*.md"))]


def parse(options: str) -> RecordBlock:
    """Parse the words of a comment into a block.

    Raises:
        InputError: a word that means nothing, or neither show nor value.
    """
    name, *words = options.split()
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    field_names = {field.name for field in dataclasses.fields(RecordBlock)} - {"name"}
    kind = fields.get("show", "").split(":")[0]
    if len(fields) < len(words) or not set(fields) <= field_names or ("show" in fields) == ("value" in fields):
        raise InputError(f"the block {options!r} is not understood: give show=… or value=…, and scale=…, format=…")
    if "show" in fields and kind not in SHOWN:
        raise InputError(f"the block {options!r} shows {kind!r}: choose {', '.join(SHOWN)}")
    of_several = kind == "claims" or fields.get("show", "").startswith("tables:")
    if name in experiments.SELECTIONS and of_several:
        return RecordBlock(name, **fields)
    benchmarks = {f"benchmark/{path.stem}" for path in BENCHMARKS.parent.glob("*.py")}
    if name not in experiments.MODULES and name not in benchmarks:
        raise InputError(f"the block {options!r} names no experiment: choose one of {', '.join(experiments.MODULES)}")
    return RecordBlock(name, **fields)


def blocks(text: str) -> Iterator[RecordBlock]:
    """List the blocks of a document."""
    for match in _BLOCK.finditer(text):
        yield parse(match["options"])


def records_of(block: RecordBlock) -> dict[str, Record]:
    """Return the records behind a block by name, as far as they are there: one, or those of a selection."""
    if block.name.startswith("benchmark/"):
        folder = results.FOLDER / "gpu" if block.scale == "gpu" else BENCHMARKS
        path = folder / f"{block.name.removeprefix('benchmark/')}.json"
        return {block.name: io.read_json(path)} if path.exists() else {}
    names = experiments.SELECTIONS.get(block.name, (block.name,))
    return {name: record for name in names if (record := results.committed(name, block.scale)) is not None}


def missing(root: Path = ROOT) -> list[str]:
    """List the commands that make the records which the documents name and which are not there."""
    named_blocks = [block for path in documents(root) for block in blocks(path.read_text())]
    return list(dict.fromkeys(block.command for block in named_blocks if not records_of(block)))


def render(text: str) -> str:
    """Generate the blocks of a document anew and return its text; the last block of a section names its records.

    Raises:
        InputError: a block that cannot be understood or shown.
    """
    # Section -> the place of its last block that shows a record, and one block of each record that it shows.
    last: dict[int, int] = {}
    of_section: dict[int, dict[tuple[str, str], RecordBlock]] = {}
    for match in _BLOCK.finditer(text):
        block = parse(match["options"])
        if block.show:
            section = _section(text, match.start())
            last[section] = match.start()
            of_section.setdefault(section, {}).setdefault((block.name, block.scale), block)

    def generated(match: re.Match[str]) -> str:
        block, section = parse(match["options"]), _section(text, match.start())
        is_last = last.get(section) == match.start()
        return f"{match[1]}{content(block, list(of_section[section].values()) if is_last else [])}{match[4]}"

    return _BLOCK.sub(generated, text)


def _section(text: str, place: int) -> int:
    """Count the headings of a document before a place."""
    return len(_HEADING.findall(_FENCE.sub("", text[:place])))


def content(block: RecordBlock, named: Sequence[RecordBlock] | None = None) -> str:
    """Return the text of a block.

    Args:
        block: what is shown.
        named: whose records the line at the end names (:func:`origins`); the block's own if not given.

    Raises:
        InputError: the record has no such value, or cannot be shown.
    """
    records = records_of(block)
    if block.value:
        return _value(block, records[block.name]) if records else "…"
    try:
        body = _render(block, records) if records else f"Not measured yet: `{block.command}`."
    except (KeyError, IndexError, TypeError) as error:
        raise InputError(f"the record of {block.name} cannot be shown ({error!r}): {block.command}") from error
    line = origins([block] if named is None else named)
    return f"\n{body}\n\n{line}\n" if line else f"\n{body}\n"


def _render(block: RecordBlock, records: Mapping[str, Record]) -> str:
    """Show the headline, the claims or the tables of records; the tables at one place of several are one table."""
    kind, _, number = block.show.partition(":")
    by_record: list[Sequence[Table]]
    if block.name.startswith("benchmark/"):
        by_record = [importlib.import_module(block.module).tables(records[block.name])]
    else:
        loaded = [(runner.load(name), record) for name, record in records.items()]
        if kind == "headline":
            return "\n\n".join(experiment.headline(record) for experiment, record in loaded)
        if kind == "claims":
            return claims_text([claim for experiment, record in loaded for claim in experiment.claims(record)])
        by_record = [[relabel(table) for table in experiment.tables(record)] for experiment, record in loaded]
    if number:
        by_record = [[tables[int(number) - 1]] for tables in by_record]
    joined = [
        dataclasses.replace(tables[0], rows=[row for table in tables for row in table.rows])
        for tables in zip(*by_record, strict=True)
    ]
    return "\n\n".join(map(table_text, joined))


def _value(block: RecordBlock, record: Record) -> str:
    value: Any = record
    for key in block.value.split("."):
        try:
            value = value[int(key)] if isinstance(value, list) else value[key]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise InputError(
                f"the record of {block.name} has no {block.value}: correct it, or {block.command}"
            ) from error
    if isinstance(value, str):
        return value
    try:
        return numbers.format_named(block.format)(value)
    except ValueError as error:
        raise InputError(f"the block of {block.value} has {error}") from error
    except TypeError as error:
        raise InputError(f"{block.value} in the record of {block.name} is no number: {value!r:.80}") from error


def origins(named: Sequence[RecordBlock]) -> str:
    """Name in one line the commands that made records, with what each took, where, and of which code and text.

    What all of several records have in common is said once, at the end of the line; what is not measured is left out.
    """
    lines = [origin(block, records) for block in named if (records := records_of(block))]
    sources = [source for _, _, source in lines]
    common = [fact for fact in sources[0] if all(fact in source for source in sources)] if len(lines) > 1 else []
    sentences = []
    for command, cost, source in lines:
        facts = [*cost, *(fact for fact in source if fact not in common)]
        sentences.append(f"`{command}`" + (f": {'; '.join(facts)}." if facts else "."))
    if common:
        sentences.append(f"{'Both' if len(lines) == 2 else 'All'}: {'; '.join(common)}.")
    return " ".join(sentences)


def origin(block: RecordBlock, records: Mapping[str, Record]) -> tuple[str, list[str], list[str]]:
    """Return the command that made a block's records, what it took, and where it ran, of which code and text."""
    if block.name in experiments.SELECTIONS:
        provenances = [one_record["provenance"] for one_record in records.values()]
        machines = {"{cores} cores of {cpu}".format_map(one_record["platform"]) for one_record in provenances}
        revisions = {one_record["git"]["revision"][:10] for one_record in provenances}
        where = ["; ".join(sorted(machines)), "revision " + ", ".join(sorted(revisions))]
        count, total = len(records), len(experiments.SELECTIONS[block.name])
        took = duration(sum(one_record["wall_time_s"] for one_record in provenances))
        partly = "" if count == total else f" for {count} of its {total} experiments"
        return block.command, [took + partly], where
    record = records[block.name]
    provenance = record.get("provenance", {})
    usage = results.taken(record)
    cost: list[str] = []
    source: list[str] = []
    if "wall_time_s" in usage:
        cost.append(duration(usage["wall_time_s"]))
    if "peak_memory_bytes" in usage:
        children_bytes = provenance.get("children_peak_memory_bytes", 0)
        cost.append(numbers.peak_memory(usage["peak_memory_bytes"], children_bytes))
    if "cpu" in provenance.get("platform", {}):
        source.append(f"{provenance['platform']['cores']} cores of {provenance['platform']['cpu']}")
    if provenance.get("device", {}).get("platform") not in (None, "cpu"):
        source.append(f"{provenance['device']['count']} × {provenance['device']['kind']}")
    if "versions" in provenance:
        source.append(f"jax {provenance['versions']['jax']}")
    if provenance.get("git"):
        source.append(f"revision {provenance['git']['revision'][:10]}")
    if "code" in provenance:
        source.append(f"code {provenance['code'][:8]}")
    source += [f"`{name}` {digest[:8]}" for name, digest in provenance.get("corpora", {}).items()]
    data = f" --data {record['data']}" if record.get("data") else ""
    # Of an experiment that multiplied in another way than it does by itself.
    products = provenance.get("precision", "").removeprefix("float32 ")
    if block.name in experiments.MODULES and products in PRECISIONS and products != HIGHEST:
        data += f" --precision {products}"
    return f"{block.command}{data}", cost, source


def main(arguments: Sequence[str]) -> int:
    """Write the documents, or with ``--check`` say which differ; the exit code."""
    if list(arguments) not in ([], ["--check"]):
        print("usage: python -m experiments.docs [--check]", file=sys.stderr)
        return 2
    changed = []
    try:
        texts = {path: render(path.read_text()) for path in documents()}
        texts[ROOT / front_figure.PATH] = front_figure.svg()
        for path, after in texts.items():
            if not path.exists() or path.read_text() != after:
                changed.append(path.relative_to(ROOT))
                if not arguments:
                    io.write_text(path, after)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    for name in changed:
        print(f"{name} differs from its records: python -m experiments.docs" if arguments else f"{name} written")
    for command in missing():
        print(f"no record yet: {command}")
    return 1 if arguments and changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
