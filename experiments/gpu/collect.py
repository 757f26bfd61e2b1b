"""Take over what a call brought home: steps to ``results/gpu/``, experiments to ``results/paper/``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from bornbiased_jax import files
from bornbiased_jax.errors import InputError
from experiments import results
from experiments.gpu import archive

SCALE = "gpu"


def collect(source: Path, folder: Path = results.FOLDER) -> list[Path]:
    """Copy the finished records of a call to the committed places.

    Args:
        source: the folder of ``--out``, or the archive that was taken home.
        folder: the committed place, ``results/``.

    Returns:
        The files written.

    Raises:
        InputError: there is none, or one is not of a clean tree, or holds a path of a machine; nothing is copied then.
    """
    if source.is_file():
        with tempfile.TemporaryDirectory() as unpacked:
            archive.unpack(source, Path(unpacked))
            return collect(Path(unpacked), folder)
    records = [files.read_json(path) for path in sorted((source / archive.RECORDS).glob("*.json"))]
    finished = [record for record in records if record["status"] == "complete" and record["scale"] == SCALE]
    if not finished:
        raise InputError(f"{source} holds no finished record of a GPU: name the folder or the archive of a call")
    for record in finished:
        check(record)
    written = experiments_of(source, folder)
    for record in finished:
        # Those of experiments lie beside, each by itself.
        if "records" not in record["result"]:
            written.append(files.write_text(folder / SCALE / f"{record['step']}.json", compact(record)))
    return written


def experiments_of(source: Path, folder: Path) -> list[Path]:
    """Copy the finished records of ``bornbiased reproduce``, all of them or none.

    Raises:
        InputError: one cannot be traced.
    """
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        for made in sorted((source / archive.REPRODUCE).glob("*")):
            paths = (made / "records").glob("*.json")
            if any(files.read_json(path)["status"] == "complete" for path in paths):
                results.collect(made, scratch)
        return [
            files.write_text(folder / path.relative_to(scratch), path.read_text())
            for path in sorted(scratch.glob("*/*.json"))
        ]


def check(record: dict[str, Any]) -> None:
    """Whether a record can be traced.

    Raises:
        InputError: it cannot.
    """
    git = record["provenance"].get("git")
    if git is None or git["dirty"]:
        state = "without a commit's name" if git is None else "by a checkout with uncommitted changes"
        raise InputError(f"the record {record['step']} was made {state}: run it from a clean worktree")
    for place, value in results.leaves(record):
        if isinstance(value, str) and value.startswith("/"):
            raise InputError(f"the record {record['step']} holds a path of a machine at {place}: leave it out")


def compact(record: dict[str, Any]) -> str:
    """JSON with one line for each entry of the record."""
    lines = [f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in record.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"
