"""The committed records, ``SCALE/NAME.json``: where the numbers of the documentation come from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bornbiased_jax import experiments, io
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import runner
from bornbiased_jax.experiments.base import SCALES, Entry, Record, source_name, split_data
from bornbiased_jax.record import OF_THE_MACHINE, Verification, content_digest, largest_difference

FOLDER = Path(__file__).parent
TOLERANCE = 1e-3
"""How far two numbers may lie apart, relative to the larger one, before :func:`differences` names them."""


def committed(name: str, scale: str) -> Record | None:
    """Return the committed record of an experiment, or None."""
    path = FOLDER / scale / f"{name}.json"
    return runner.read_record(path) if path.exists() else None


def names() -> Iterator[tuple[str, str]]:
    """List (name, scale) of every committed record, in the order of the catalogue."""
    for scale in SCALES:
        for name in experiments.MODULES:
            if (FOLDER / scale / f"{name}.json").exists():
                yield name, scale


def taken(record: Record) -> dict[str, float]:
    """Return what a record takes from nothing: ``{"wall_time_s", "peak_memory_bytes"}``.

    Experiments of one output folder share initializations: what is drawn from those of another took nothing more
    itself, and counts what they took. A record that says nothing of either gives no entry.
    """
    source = record.get("provenance", {})
    result = record.get("result")
    groups = result.get("groups") if isinstance(result, Mapping) else None
    initializations = [group for group in groups or () if isinstance(group, Mapping)]
    of_initializations = {
        "wall_time_s": sum(group.get("wall_s", 0.0) for group in initializations),
        "peak_memory_bytes": max((group.get("peak_memory_bytes", 0) for group in initializations), default=0),
    }
    return {name: max(source[name], least) for name, least in of_initializations.items() if name in source}


def collect(out: Path | str, folder: Path = FOLDER) -> list[Path]:
    """Copy the finished records of an output folder to the committed place, but for those of scale smoke.

    Args:
        out: what ``bornbiased reproduce --out`` was given.
        folder: the committed place.

    Returns:
        The files written.

    Raises:
        InputError: there is none, or one of them is corrupted, not of a clean tree, was edited, or holds a path;
            nothing is copied then.
    """
    records = [record for record in _finished(out) if record["scale"] != "smoke"]
    if not records:
        raise InputError(
            f"{out} holds no finished record of scale laptop or paper: name the folder that reproduce --out was given"
        )
    for record in records:
        _check_traceable(record)
    return [
        io.write_text(folder / record["scale"] / f"{record['experiment']}.json", _compact(record))
        for record in [_portable(record) for record in records]
    ]


def _finished(out: Path | str) -> list[Record]:
    """Read the finished records of an output folder."""
    records = [runner.read_record(path) for path in sorted((io.user_path(out) / runner.RECORDS).glob("*.json"))]
    return [record for record in records if record["status"] == "complete"]


def verify(out: Path | str, former: Path | str | None = None, folder: Path = FOLDER) -> list[Path]:
    """Compare reruns with committed records and note each in the record's field ``verified``.

    The record stays, with the commit and the digest that made it; only :func:`collect` replaces it, by a rerun at
    its own scale. A rerun at another scale is compared with what the record's own code gives at that scale.

    Args:
        out: the reruns: what ``bornbiased reproduce --out`` was given.
        former: the same of the code that made the committed records, for reruns at other scales.
        folder: the committed place.

    Returns:
        The records that were verified.

    Raises:
        InputError: a record is corrupted, or a rerun is not of a clean tree, was edited, or differs in more than
            numbers; or there is nothing to compare. Nothing is noted then.
    """
    texts: dict[Path, str] = {}
    for rerun in _finished(out):
        _check_traceable(rerun)
        name, scale = rerun["experiment"], rerun["scale"]
        for place in sorted(folder.glob(f"*/{name}.json")):
            record = runner.read_record(place)
            earlier = record if record["scale"] == scale else _former_record(former, rerun, record)
            if earlier is None or _asked(earlier) != _asked(rerun):
                continue
            verification: Verification = {
                "commit": rerun["provenance"]["git"]["revision"],
                "scale": scale,
                "command": runner.load(name).command(scale, _portable(rerun)["data"]),
                "largest_difference": largest_difference(earlier["result"], rerun["result"]),
            }
            texts[place] = _compact({**record, "verified": verification})
    if not texts:
        raise InputError(f"{out} holds no rerun of a committed record: name the folder that reproduce --out was given")
    return [io.write_text(place, text) for place, text in texts.items()]


def _asked(record: Record) -> tuple[object, str | None, object]:
    """Return what two records of one experiment and scale were asked for: settings, data, precision."""
    return record["settings"], data_names(record["data"]), record["provenance"].get("precision")


def _former_record(former: Path | str | None, rerun: Record, record: Record) -> Record | None:
    """Return what the code of a committed record gives at the scale of a rerun, if it was run."""
    path = None if former is None else runner.record_path(former, rerun["experiment"])
    if path is None or not path.exists():
        return None
    stored = runner.read_record(path)
    same_code = stored["provenance"].get("code") == record["provenance"].get("code")
    return stored if same_code and stored["scale"] == rerun["scale"] and stored["status"] == "complete" else None


def _check_traceable(record: Record) -> None:
    """Refuse a record that was edited, or whose code cannot be found again."""
    if record.get("digest") not in (None, content_digest(record)):
        raise InputError(f"the record {record['experiment']} was changed since it was made: run it again")
    git = record["provenance"]["git"]
    if git is None or git["dirty"]:
        state = "outside a git checkout" if git is None else "by a checkout with uncommitted changes"
        raise InputError(f"the record {record['experiment']} was made {state}: run it from a clean worktree")
    if "code" not in record["provenance"]:
        raise InputError(f"the record {record['experiment']} does not say which code made it: run it again")


def data_names(data: str | None) -> str | None:
    """Return ``--data`` as a record keeps it: files by their names, without folders."""
    if data is None:
        return None
    shortened = []
    for role, source in split_data(data):
        name = source_name(source)
        shortened.append(name if role is None else f"{role}={name}")
    return ";".join(shortened)


def _portable(record: Entry) -> Entry:
    """Return the record with the names of its data and without their folders, and the digest of that.

    Raises:
        InputError: another value is a path of this machine.
    """
    record = {**record, "data": data_names(record.get("data"))}
    if "digest" in record:
        record["digest"] = content_digest(record)
    for place, value in leaves(record):
        if isinstance(value, str) and value.startswith("/"):
            raise InputError(f"the record {record['experiment']} holds a path of this machine at {place}: leave it out")
    return record


def _compact(record: Record) -> str:
    """Write JSON with one line for each entry of the record and of its result."""
    result = json.dumps(record.get("result"), ensure_ascii=False, allow_nan=False)
    lines = [
        f"  {json.dumps(key)}: {result if key == 'result' else json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for key, value in record.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def leaves(value: object, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested JSON but lists and objects, with its place: ``result.groups.0.share``."""
    if isinstance(value, dict):
        entries = [(str(key), entry) for key, entry in value.items()]
    elif isinstance(value, list):
        entries = [(str(index), entry) for index, entry in enumerate(value)]
    else:
        yield place, value
        return
    for key, entry in entries:
        yield from leaves(entry, f"{place}.{key}" if place else key)


def differences(before: Record, after: Record) -> list[tuple[str, Any, Any]]:
    """List changes between two results: (place, before, after) of every value that differs.

    Numbers differ beyond ``TOLERANCE`` times the larger of the two, or 1e-12; times, memory and rates of the machine
    are passed over. What stands on one side only has None on the other.
    """
    old, new = (dict(leaves(record.get("result"), "result")) for record in (before, after))
    moved: list[tuple[str, Any, Any]] = []
    for place in dict.fromkeys([*old, *new]):
        if any(word in place for word in OF_THE_MACHINE):
            continue
        first, second = old.get(place), new.get(place)
        if isinstance(first, (int, float)) and isinstance(second, (int, float)):
            if abs(first - second) > max(TOLERANCE * max(abs(first), abs(second)), 1e-12):
                moved.append((place, first, second))
        elif first != second or (place in old) != (place in new):
            moved.append((place, first, second))
    return moved


def state(name: str, scale: str) -> str:
    """Describe a committed record in one line: by which revision, and whether the code has changed since."""
    record = committed(name, scale)
    if record is None:
        return f"{scale}/{name}: none; bornbiased reproduce {name} --scale {scale}"
    source = record["provenance"]
    age = "current" if runner.is_current(record, runner.load(name)) else "made by older code or other libraries"
    return f"{scale}/{name}: {source['git']['revision'][:10]}, code {source['code']}, {age}{runner.verified_by(record)}"
