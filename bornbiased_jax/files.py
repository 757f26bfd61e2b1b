"""Files written whole or not at all: to a temporary name first, then renamed."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from bornbiased_jax.errors import InputError


def check_writable(path: Path | str) -> Path:
    """Create the parent folder of an output now, so that a long job does not fail at its end.

    Raises:
        InputError: the folder cannot be made or written to.
    """
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".writable-")
        os.close(descriptor)
        os.unlink(name)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    if path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    return path


def write_bytes(path: Path | str, data: bytes) -> Path:
    """Write a file atomically: a reader sees the old content or the new, never half of it."""
    path = check_writable(path)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}; free some room or choose another place") from error
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_text(path: Path | str, text: str) -> Path:
    """Write a UTF-8 text file atomically."""
    return write_bytes(path, text.encode())


def write_json(path: Path | str, value: Any) -> Path:
    """Write a JSON file atomically. NaN and infinities are refused: they are not JSON."""
    return write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextlib.contextmanager
def locked(path: Path | str, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file while the block runs; it stays behind, and a process that dies lets go of it.

    Args:
        path: the lock file; its folder exists.
        wait: until another process lets go; else the value says whether the lock is held.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        Path(path).open("a").close()
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    lock = filelock.FileLock(path)
    held = True
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout:
        held = False
    except OSError:
        pass  # a file system without locks: two processes may then do the same work
    try:
        yield held
    finally:
        lock.release()


def read_json(path: Path | str) -> Any:
    """Read a JSON file.

    Raises:
        InputError: it is missing or not JSON.
    """
    try:
        return json.loads(Path(path).read_text())
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: check the path") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not readable as JSON: {error}") from error
