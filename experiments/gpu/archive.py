"""One file that holds what a call made: records, logs and what ``bornbiased reproduce`` keeps beside its records."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

from bornbiased_jax import files
from bornbiased_jax.errors import InputError

NAME = "gpu.tar.gz"
RECORDS, LOGS, REPRODUCE, WORK, SUMMARY = "records", "logs", "reproduce", "work", "summary.json"
LARGEST = 15 * 2**20
"""Bytes of an archive: machines that are lent give back small files alone. What is largest is left out."""


def write(out: Path, target: Path) -> list[str]:
    """Pack a folder, the file whole or not at all.

    Args:
        out: of ``--out``.
        target: the archive.

    Returns:
        Names that were left out, because the archive would pass :data:`LARGEST`.
    """
    kept = sorted(members(out), key=lambda path: path.stat().st_size)
    left: list[str] = []
    while True:
        data = _packed(out, sorted(kept))
        if len(data) <= LARGEST or not kept:
            files.write_bytes(target, data)
            return left
        left.append(kept.pop().relative_to(out).as_posix())


def members(out: Path) -> Iterator[Path]:
    """The files of an archive: no work, and nothing that is being written."""
    for folder in (RECORDS, LOGS, REPRODUCE):
        for path in files.below(out / folder) if (out / folder).is_dir() else ():
            inside = path.relative_to(out).parts
            if (
                path.is_file()
                and not path.name.endswith(files.PART)
                and not (inside[0] == REPRODUCE and WORK in inside[1:3])
            ):
                yield path
    if (out / SUMMARY).is_file():
        yield out / SUMMARY


def _packed(out: Path, paths: list[Path]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", compresslevel=6) as archive:
        for path in paths:
            archive.add(path, path.relative_to(out).as_posix(), recursive=False)
    return stream.getvalue()


def unpack(source: Path, out: Path) -> int:
    """Put an earlier call's files into a folder, where they are not there yet; how many.

    Raises:
        InputError: it is no archive of this command.
    """
    written = 0
    try:
        with tarfile.open(source) as archive:
            for member in archive:
                place = Path(member.name)
                if not member.isfile() or place.is_absolute() or ".." in place.parts:
                    raise InputError(f"{source} holds {member.name}, which no archive of this command does")
                if not (out / place).exists():
                    stream = archive.extractfile(member)
                    assert stream is not None
                    files.write_bytes(out / place, stream.read())
                    written += 1
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{source} is no archive of an earlier call ({error}): name gpu.tar.gz") from error
    return written
