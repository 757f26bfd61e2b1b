"""``bornbiased reproduce``: run experiments, keep a record of each, and show them on one page."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib
import json
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, NotRequired

from jax.sharding import Mesh
from typing_extensions import TypedDict

from bornbiased_jax import experiments, io, progress, schema
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import Engine, local
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, relabel, split_data
from bornbiased_jax.io import Folder
from bornbiased_jax.model.layers import HIGHEST, precision_named
from bornbiased_jax.record import Measurement, content_digest, jsonable, library_versions, measure, provenance
from bornbiased_jax.report import figures, page
from bornbiased_jax.text.corpora import BUILDERS, corpus

TITLE = "Transformers are born biased"
PAGE, RECORDS, COMPARE, FIGURES = "index.html", "records", "compare", "figures"
MAKER = "bornbiased reproduce"
OLD_ENTRIES = {PAGE, RECORDS, "work", COMPARE}
"""What lies in a folder of the versions that had no marker yet."""
EARLIER = ".earlier"
"""What is appended to the name of a finished record that gives way to one of another run."""
OLDER = "Made by older code or other libraries: the command above makes it again."
STANDFIRST = (
    "What untrained transformers already prefer, in JAX: measurements next to theory, and next to the paper's numbers "
    "where it prints any for the same configuration."
)


class _Revision(TypedDict):
    revision: str
    dirty: bool


class _Provenance(TypedDict):
    git: _Revision | None
    code: NotRequired[str]
    versions: NotRequired[Mapping[str, object]]
    precision: NotRequired[str]


class _Stored(TypedDict):
    """What is read here of a record's file; the rest is the experiment's."""

    experiment: str
    scale: Literal["smoke", "laptop", "paper"]
    settings: Mapping[str, object]
    data: str | None
    status: Literal["complete", "failed"]
    provenance: _Provenance
    digest: NotRequired[str]


class _Finished(_Stored):
    result: Mapping[str, object]


class Computing(NamedTuple):
    """Options of computing experiments.

    Attributes:
        engine: who computes what they cut into chunks (:mod:`bornbiased_jax.executors`).
        precision: how float32 matrices are multiplied (:data:`bornbiased_jax.model.layers.PRECISIONS`).
    """

    engine: Engine = local
    precision: str = HIGHEST


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a call of :func:`reproduce`.

    Attributes:
        page: the page's path.
        done: names that ran.
        kept: names whose record was there already.
        failed: name -> why it has no result, or could not be shown.
        at_fault: every failure lies in the input (an ``InputError``), none in the program.
    """

    page: Path
    done: tuple[str, ...]
    kept: tuple[str, ...]
    failed: dict[str, str]
    at_fault: bool

    @property
    def exit_code(self) -> int:
        """0: every experiment has a result; 2: the input of those that have none is at fault; 1 otherwise."""
        return 0 if not self.failed else 2 if self.at_fault else 1


def reproduce(
    names: Sequence[str],
    scale: str,
    out: Path | str,
    data: str | None = None,
    quiet: bool = False,
    mesh: Mesh | None = None,
    overwrite: bool = False,
    computing: Computing = Computing(),
) -> Outcome:
    """Run experiments and write ``OUT/records/NAME.json`` for each, its figures as SVG and PNG, and ``OUT/index.html``.

    An experiment with a complete record of the same scale, settings, data, code and libraries is not run
    again, so a killed call resumes. One that fails does not lose the others: its record and the page say
    why. After Ctrl-C the finished records stand and the page shows them.

    Args:
        names: experiments or selections ("demo", "all"), of which those without the scale are left out; none means
            "demo".
        scale: one of :data:`bornbiased_jax.experiments.base.SCALES`.
        out: the folder to write to.
        data: text for the experiments that read some, in place of their default.
        quiet: show no progress.
        mesh: passed on to the experiments.
        overwrite: take a folder that holds other things; files in the way of records and page are replaced.
        computing: who computes, and how exactly.

    Raises:
        InputError: an unknown name, scale or precision, a scale that a named experiment lacks, data that no experiment
            reads, or an output that cannot be written or holds other things.
    """
    selection, left_out = _at_scale([load(name) for name in select(names)], names, scale)
    _check_data(data)
    readers = {experiment.name for experiment in selection if scale in experiment.takes_data}
    if data is not None and not readers:
        names = ", ".join(experiment.name for experiment in selection)
        raise InputError(f"none of {names} reads --data at scale {scale}: leave it out")
    _check_precision(selection, computing.precision)
    # Now, and once: what is on disk later may be edited by then.
    for experiment in selection:
        code_digest(experiment.run)
    # Check the output before anything is computed.
    folder = output_folder(out, overwrite)
    out = folder.path
    target = io.check_writable(out / PAGE)
    folder.claim()
    digest = data_digest(data)
    completed: list[str] = []
    unchanged: list[str] = []
    failed: dict[str, Exception] = {}
    say = (lambda _text: None) if quiet else progress.note
    if left_out:
        say(f"left out, without a scale {scale!r}: {', '.join(left_out)}")
    if data is not None and len(readers) < len(selection):
        say(f"--data is read by {', '.join(sorted(readers))} alone")
    try:
        with progress.bar(len(selection), "reproduce", unit="experiments", quiet=quiet, timed=False) as advance:
            for experiment in selection:
                path = record_path(out, experiment.name)
                source, content = (data, digest) if experiment.name in readers else (None, None)
                if is_complete(path, experiment, scale, source, computing.precision, content):
                    unchanged.append(experiment.name)
                    say(f"{experiment.name}: kept the record of an earlier run")
                else:
                    context = Context(
                        scale=scale,
                        settings=experiment.settings[scale],
                        work=out / "work" / ("" if content is None else f"data-{content}") / experiment.name,
                        data=source,
                        quiet=quiet,
                        mesh=mesh,
                        engine=computing.engine,
                        precision=computing.precision,
                    )
                    error = _run(experiment, context, folder, content)
                    if error is None:
                        completed.append(experiment.name)
                        say(f"{experiment.name}: done")
                        if len(selection) > 1:
                            write_page(folder)
                            say(f"the page so far: {target}")
                    else:
                        failed[experiment.name] = error
                        say(f"{experiment.name}: no result: {_reason(error)}")
                advance()
    finally:
        # Also after Ctrl-C: the page shows what is finished.
        not_shown = write_page(folder, completed)
    # A record that cannot be shown counts as failed.
    for experiment in selection:
        if experiment.name in not_shown:
            failed.setdefault(experiment.name, not_shown[experiment.name])
    return Outcome(
        page=target,
        done=tuple(completed),
        kept=tuple(unchanged),
        failed={name: _reason(error) for name, error in failed.items()},
        at_fault=all(isinstance(error, InputError) for error in failed.values()),
    )


def select(names: Sequence[str]) -> list[str]:
    """Select the experiments that the names stand for, each once.

    Raises:
        InputError: an unknown name (the nearest one is suggested), or an empty selection.
    """
    selection: list[str] = []
    for name in names or ["demo"]:
        if name not in experiments.MODULES and name not in experiments.SELECTIONS:
            choices = [*experiments.SELECTIONS, *experiments.MODULES]
            near = difflib.get_close_matches(name, choices, n=1)
            # Rows of one table have names of their own, too many for a sentence: their selection stands for them.
            tables = {key: rows for key, rows in experiments.SELECTIONS.items() if key not in ("demo", "all")}
            rows = {row for members in tables.values() for row in members}
            listed = ", ".join(choice for choice in choices if choice not in rows)
            hint = f"did you mean {near[0]!r}?" if near else f"there are {listed}"
            raise InputError(f"unknown experiment {name!r}: {hint}")
        selection += experiments.SELECTIONS.get(name, (name,))
    if not selection:
        raise InputError(f"no experiment is selected: name one of {', '.join(experiments.MODULES)}")
    return list(dict.fromkeys(selection))


def load(name: str) -> Experiment:
    """Load the experiment of a known name; its module is imported only now."""
    module = importlib.import_module(experiments.MODULES[name])
    experiment: Experiment = module.EXPERIMENTS[name] if hasattr(module, "EXPERIMENTS") else module.EXPERIMENT
    return experiment


def _at_scale(selection: Sequence[Experiment], names: Sequence[str], scale: str) -> tuple[list[Experiment], list[str]]:
    """Split a selection into the experiments that have a scale and the names of the others.

    Raises:
        InputError: an unknown scale, or one that an experiment lacks which is named itself, or that all lack.
    """
    if scale not in SCALES:
        raise InputError(f"unknown scale {scale!r}: choose {', '.join(SCALES)}")
    present = [experiment for experiment in selection if scale in experiment.settings]
    lacking = [experiment for experiment in selection if scale not in experiment.settings]
    for experiment in lacking:
        if experiment.name in names or not present:
            scales = ", ".join(experiment.settings)
            raise InputError(f"{experiment.name} has no scale {scale!r}: choose {scales}, or leave it out")
    return present, [experiment.name for experiment in lacking]


def _check_precision(selection: Sequence[Experiment], precision: str) -> None:
    if precision == HIGHEST:
        return
    precision_named(precision)
    for experiment in selection:
        if not experiment.takes_precision:
            raise InputError(f"{experiment.name} is defined for precision {HIGHEST}: leave --precision out")


def record_path(out: Path | str, name: str) -> Path:
    """Return where the record of an experiment lies below the output folder."""
    return Path(out) / RECORDS / f"{name}.json"


def read_record(path: Path) -> Record:
    """Read a record, of the experiment that its file is named for.

    Raises:
        InputError: it is corrupted, or another file.
    """
    remedy = "remove it, or run the experiment again"
    record: Record = io.read_json(path)
    if schema.check(_Stored, record, str(path), remedy)["status"] == "complete":
        schema.check(_Finished, record, str(path), remedy)
    if record["experiment"] != path.stem or path.stem not in experiments.MODULES:
        raise InputError(f"{path} is no record of an experiment of this name: {remedy}")
    return record


def _check_data(data: str | None) -> None:
    """Check that the files named in ``--data`` are there, before an experiment runs that reads none."""
    for _, source in split_data(data):
        # What has a scheme or names a part of a run is not a plain path, and left to the experiment.
        plain = source and not {":", "@", ","} & set(source)
        if plain and not io.user_path(source).exists():
            raise InputError(f"--data {source} does not exist: name a file, a folder or builtin:prose")


def data_digest(data: str | None) -> str | None:
    """Compute a digest of the files that ``--data`` names and of their content, which may change; None without any."""
    lines = []
    for _, source in split_data(data):
        # Of a part of a run, or of a file with options, what lies before the "@".
        places = (io.user_path(text) for text in (source, source.rpartition("@")[0]) if text)
        place = next(filter(Path.exists, places), None)
        for path in [] if place is None else sorted([place, *io.below(place)]):
            if path.is_file():
                lines.append(os.fsencode(path) + f": {io.sha256(path)}\n".encode())
    return hashlib.sha256(b"".join(lines)).hexdigest()[:16] if lines else None


def is_complete(
    path: Path,
    experiment: Experiment,
    scale: str,
    data: str | None,
    precision: str = HIGHEST,
    digest: str | None = None,
) -> bool:
    """Check whether the record at a path is a finished one of exactly this run, as written, on data of this digest."""
    record = _stored(path)
    expected = {**_identity(experiment, scale, data), "status": "complete"}
    return (
        all(record.get(key) == value for key, value in expected.items())
        and record.get("digest") == content_digest(record)
        and record["provenance"]["precision"] == experiment.precision_by(precision)
        and record["provenance"].get("data_digest") == digest
        and is_current(record, experiment)
    )


def _stored(path: Path) -> Record:
    """Read what lies in a record's place; empty where nothing does, or no record."""
    try:
        return read_record(path)
    except InputError:
        return {}


def is_current(record: Record, experiment: Experiment) -> bool:
    """Check whether the code and the libraries that made a record are the present ones."""
    source = record.get("provenance", {})
    return source.get("code") == code_digest(experiment.run) and source.get("versions") == library_versions()


def verified_by(record: Record) -> str:
    """Say which rerun verified a record, to stand after its origin; "" where none did."""
    if "verified" not in record:
        return ""
    rerun = record["verified"]
    difference = f"largest difference {rerun['largest_difference']:.1e}"
    return f", verified at {rerun['commit'][:10]} by {rerun['command']}: {difference}"


def _identity(experiment: Experiment, scale: str, data: str | None) -> Entry:
    settings = jsonable(experiment.settings[scale])
    return {"experiment": experiment.name, "scale": scale, "settings": settings, "data": data}


def output_folder(out: Path | str, overwrite: bool = False) -> Folder:
    """Open the folder of records and page, checked to be new, empty or made by this package; nothing is written.

    Raises:
        InputError: it holds other things, or a page that somebody changed.
    """
    folder = Folder(out, MAKER, overwrite=overwrite)
    # One that was made before there were markers is known by its records, or by what experiments keep.
    entries = {*folder.entries()}
    old = not folder.is_marked and entries <= OLD_ENTRIES and not entries.isdisjoint({RECORDS, "work"})
    compared = Folder(folder.path / COMPARE, MAKER).is_marked
    folder.check(PAGE, ignore=lambda name: old or (name == COMPARE and compared))
    if old:
        for path in (folder.path / PAGE, *(folder.path / RECORDS).glob("*.json")):
            if path.is_file():
                folder.note(str(path.relative_to(folder.path)), io.sha256(path))
    return folder


def _run(experiment: Experiment, context: Context, folder: Folder, digest: str | None) -> Exception | None:
    """Run one experiment and write its record; return the exception, if there was one."""
    record = dict(_identity(experiment, context.scale, context.data))
    failure: Exception | None = None
    code = code_digest(experiment.run)
    measurement: Measurement | None = None
    try:
        with measure() as measurement:
            record |= {"status": "complete", "result": jsonable(experiment.run(context))}
    except Exception as error:
        if not isinstance(error, InputError):
            traceback.print_exc()
        record |= {"status": "failed", "error": _reason(error)}
        failure = error
    record["provenance"] = provenance(
        seeds=context.settings.get("seeds"),
        precision=experiment.precision_by(context.precision),
        measurement=measurement,
        code=code,
        corpora=corpora_of([record["settings"], context.data]),
    )
    if digest is not None:
        record["provenance"]["data_digest"] = digest
    record["digest"] = content_digest(record)
    name = f"{RECORDS}/{experiment.name}.json"
    if os.path.lexists(folder.path / name) and not folder.owns(name) and not folder.overwrite:
        moved_path = io.set_aside(folder.path / name)
        progress.warn(f"{folder.path / name} was corrupted or changed: set aside as {moved_path.name}, and made again")
    elif _is_of_another_run(_stored(folder.path / name), context):
        moved_path = io.set_aside(folder.path / name, EARLIER)
        progress.note(f"{folder.path / name} was finished on another scale or data: kept as {moved_path.name}")
    folder.write_json(name, record)
    return failure


def _is_of_another_run(record: Record, context: Context) -> bool:
    """Check for a finished record of another scale or other data, which may have taken hours."""
    is_same = (record.get("scale"), record.get("data")) == (context.scale, context.data)
    return record.get("status") == "complete" and not is_same


def corpora_of(value: object) -> dict[str, str]:
    """Return the built-in corpora that settings name, and their digests: they differ between installations."""
    names = sorted(set(re.findall(r"builtin:(\w+)", json.dumps(value))))
    return {f"builtin:{name}": corpus(name).digest for name in names if name in BUILDERS}


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"


def write_page(out: Folder | Path | str, new: Sequence[str] | None = None) -> dict[str, Exception]:
    """Write ``OUT/index.html`` from the records in OUT; return the names that could not be shown, and why.

    Args:
        out: the output folder.
        new: experiments whose figures are written next to the page as well, and those of others where they are not
            there; None writes the page alone.
    """
    folder = out if isinstance(out, Folder) else output_folder(out)
    out = folder.path
    sections: list[page.Section] = []
    not_shown: dict[str, Exception] = {}
    for name in experiments.MODULES:
        path = record_path(out, name)
        if not path.exists():
            continue
        experiment = load(name)
        try:
            record = read_record(path)
            part = section(experiment, record, out)
            sections.append(part if new is None else dataclasses.replace(part, figures=FIGURES))
        except Exception as error:
            not_shown[name] = error
            failure = f"The record {path.name} cannot be shown: {_reason(error)}"
            sections.append(_empty_section(experiment, "unknown", None, failure, out))
    folder.write_text(PAGE, page.render(TITLE, STANDFIRST, sections))
    if new is not None:
        for entry in sections:
            _write_figures(folder, entry, entry.name in new)
    return not_shown


def _write_figures(folder: Folder, part: page.Section, again: bool) -> None:
    """Write the figures of a section as files, those that are there only where they are to be drawn again."""
    for index, panel in enumerate(part.panels, 1):
        for name in page.figure_files(FIGURES, part, index).values():
            is_present = os.path.lexists(folder.path / name)
            if is_present and not folder.owns(name) and not folder.overwrite:
                progress.warn(f"{folder.path / name} was changed since it was drawn: left as it is")
            elif again or not is_present:
                folder.write_bytes(name, figures.drawn(panel.figure, name))


def headlines(out: Path | str, names: Sequence[str]) -> dict[str, str]:
    """Collect by experiment the sentence at the top of its part of the page, in page order, where it has one."""
    sentences = {}
    for name in (name for name in experiments.MODULES if name in names):
        path = record_path(out, name)
        record = _stored(path)
        if record.get("status") == "complete" and (sentence := load(name).headline(record)):
            sentences[name] = sentence
    return sentences


def section(experiment: Experiment, record: Record, out: Path | str = "out") -> page.Section:
    """Build the part of the page that shows one record of an output folder."""
    empty = _empty_section(experiment, record["scale"], record["data"], record.get("error", ""), out)
    if record["status"] != "complete":
        return dataclasses.replace(empty, record=record)
    with figures.style():
        panels = tuple(experiment.figures(record))
    return dataclasses.replace(
        empty,
        record=record,
        notice="" if is_current(record, experiment) else OLDER + verified_by(record).replace(", v", " V", 1),
        headline=experiment.headline(record),
        claims=tuple(experiment.claims(record)),
        tables=tuple(map(relabel, experiment.tables(record))),
        panels=panels,
    )


def _empty_section(experiment: Experiment, scale: str, data: str | None, failure: str, out: Path | str) -> page.Section:
    return page.Section(
        name=experiment.name,
        title=experiment.title,
        paper=experiment.paper,
        description=experiment.description,
        command=experiment.command(scale, data, out),
        scale=scale,
        cost=experiment.cost_at(scale),
        failure=failure,
    )
