"""What a benchmark found, printed and written with where it came from."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import re
import statistics
import tempfile
import time
import typing
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from bornbiased_jax import io
from bornbiased_jax.code import code_digest
from bornbiased_jax.record import measure, provenance

Findings = dict[str, Any]
"""The JSON of a benchmark's record."""


def median_and_range(name: str, values: Sequence[float]) -> dict[str, float | list[float]]:
    """Return the median of values and their range, under the names that records have."""
    return {f"{name}_median": statistics.median(values), f"{name}_range": [min(values), max(values)]}


def run(work: Callable[[], Findings], path: Path | str | None, **facts: object) -> Findings:
    """Do the work; print its findings, add provenance (its code, wall time, peak memory) and write them.

    Args:
        work: gives the findings, JSON-ready.
        path: where the record goes, or None.
        facts: what :func:`bornbiased_jax.record.provenance` is to hold besides its own.

    Returns:
        The record as written.

    Raises:
        InputError: the path cannot be written; nothing was measured then.
    """
    if path is not None:
        io.check_writable(path)
    code = code_digest(work)
    with measure() as measurement:
        findings = work()
    print(json.dumps(findings, indent=2))
    record = {**findings, "provenance": provenance(measurement=measurement, code=code, **facts)}
    if path is not None:
        io.write_json(path, record)
    return record


class Timed(NamedTuple):
    """What work gave, its seconds on the wall, and those of processors over all threads: other work changes few."""

    result: Any
    wall_s: float
    cpu_s: float


def timed(work: Callable[[], object]) -> Timed:
    """Do work and time it."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return Timed(result, time.perf_counter() - wall, time.process_time() - cpu)


def versions(*names: str) -> dict[str, str]:
    """Return the versions of installed distributions, as facts for :func:`run`."""
    return {name: metadata.version(name) for name in names}


def command(
    work: Callable[..., Findings],
    arguments: Sequence[str] | None = None,
    about: Callable[..., Mapping[str, object]] | None = None,
    **facts: object,
) -> Findings:
    """Run a benchmark from the command line: its function's parameters are the options, ``--json`` writes a record.

    An option has the parameter's name, type and default; its help is the parameter's line under "Args". A tuple is
    given with commas, a parameter without a default must be given. A parameter ``folder: Path`` is a temporary folder,
    which ``--folder`` says where to put.

    Args:
        work: gives the findings, as of :func:`run`.
        arguments: of the command line; those of the process unless given.
        about: from the same options to facts for :func:`run`.
        facts: more of them.
    """
    types, text = typing.get_type_hints(work), inspect.getdoc(work) or ""
    help_by_name = dict(re.findall(r"^ +(\w+): (.+)$", text.partition("Args:")[2], re.MULTILINE))
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    for name, parameter in inspect.signature(work).parameters.items():
        flag, line = "--" + name.replace("_", "-"), help_by_name.get(name)
        if types[name] is Path:
            parser.add_argument(flag, help="Where files are written; a temporary folder unless given.")
            continue
        is_required = parameter.default is parameter.empty
        default = None if is_required else parameter.default
        kind, choices = types[name], None
        if typing.get_origin(kind) is typing.Literal:
            kind, choices = str, typing.get_args(kind)
        parser.add_argument(flag, type=_parser(kind), choices=choices, required=is_required, default=default, help=line)
    parser.add_argument("--json", help="Where the record goes.")
    options = vars(parser.parse_args(arguments))
    path = options.pop("json")
    facts |= about(**options) if about else {}
    if types.get("folder") is not Path:
        return run(functools.partial(work, **options), path, **facts)
    with tempfile.TemporaryDirectory(dir=options.pop("folder")) as folder:
        return run(functools.partial(work, Path(folder), **options), path, **facts)


def _parser(kind: object) -> Callable[[str], Any]:
    """Return what reads an option of a type: the type, that of "type | None", or the entries of a tuple by commas."""
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return lambda text: tuple(inner[0](part) for part in text.split(","))
    return typing.cast(Callable[[str], Any], inner[0] if inner else kind)
