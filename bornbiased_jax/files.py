"""Files written whole or not at all: to a temporary name first, then renamed.

What a user names may also be a link, whose target is then replaced, or no file at all: a terminal, a pipe,
``/dev/null`` or ``/dev/stdout`` are written to and stay what they are.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import filelock

from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import parse_json, shown

LARGEST_JSON = 32 * 2**20
"""Bytes of a JSON file that is read."""

PART = ".part"
"""How names of what is still being written end; they begin with a dot and the name that it will have."""
DAMAGED = ".damaged"
"""How names of what was found damaged and set aside end."""
MOST_LINKS = 40


def named(path: Path | str) -> Path:
    """Return a path that is not empty, as the user gave it.

    Raises:
        InputError: it is empty.
    """
    if not str(path).strip():
        raise InputError("an empty path names no file: give a name, or leave the option out")
    return Path(path)


def open_descriptor(path: Path | str) -> int | None:
    """Return the open descriptor of this process that a path stands for, as /dev/stdout does, else None."""
    place = Path(os.path.abspath(path))
    descriptor_folders = {"/dev/fd", os.path.realpath("/dev/fd"), f"/proc/{os.getpid()}/fd"}
    for _ in range(MOST_LINKS):
        if os.path.realpath(place.parent) in descriptor_folders and place.name.isdecimal():
            return int(place.name)
        # Not Path.is_symlink, which raises where no file can have such a name.
        if not os.path.islink(place):
            return None
        place = Path(os.path.normpath(place.parent / os.readlink(place)))
    return None


def _special(path: Path) -> bool:
    """Return whether something that is not a regular file lies there, to be written to as it is.

    Raises:
        InputError: it is a folder, a disk or a socket.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if stat.S_ISBLK(mode) or stat.S_ISSOCK(mode):
        raise InputError(f"cannot write {path}: it is a {'disk' if stat.S_ISBLK(mode) else 'socket'}; name a file")
    return not stat.S_ISREG(mode)


def check_writable(path: Path | str) -> Path:
    """Create the parent folder of an output now, so that a long job does not fail at its end.

    Raises:
        InputError: the path is empty or a folder, or the folder cannot be made or written to.
    """
    path = named(path)
    if open_descriptor(path) is not None:
        return path
    if _special(path):
        if not os.access(path, os.W_OK):
            raise InputError(f"cannot write {path}: {os.strerror(errno.EACCES)}; choose another place")
        return path
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _try_writing(target.parent)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from error
    return path


def _try_writing(folder: Path) -> None:
    """Make a file in a folder that is gone with this call, also where the call is killed (Linux)."""
    if hasattr(os, "O_TMPFILE"):
        try:
            os.close(os.open(folder, os.O_TMPFILE | os.O_WRONLY))
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
                raise
    descriptor, name = tempfile.mkstemp(dir=folder, prefix=".writable-")
    os.close(descriptor)
    os.unlink(name)


def write_bytes(path: Path | str, data: bytes) -> Path:
    """Write a file atomically: a reader sees the old content or the new, never half of it.

    A file that is replaced keeps its permissions, and through a link its target is replaced. What is no plain file (a
    device, a pipe, ``/dev/stdout``) is written to.

    Raises:
        InputError: the path is empty or a folder, or cannot be written; what was there before is whole.
    """
    path = check_writable(path)
    number = open_descriptor(path)
    if number is not None or _special(path):
        _write_into(path, number, data)
        return path
    target = Path(os.path.realpath(path))
    try:
        with _temporary(target) as (temporary, stream):
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            os.chmod(temporary, stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644)
            os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; free some room or choose another place") from error
    return path


def _write_into(path: Path, number: int | None, data: bytes) -> None:
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        # Not opened again by its name: what a shell appends to would be cut off.
        descriptor = os.dup(number) if number is not None else os.open(path, os.O_WRONLY)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; choose another place") from error


@contextlib.contextmanager
def _temporary(target: Path) -> Iterator[tuple[str, Any]]:
    """Make a new file next to the target, held by a lock so that others see that it is being written."""
    clear_parts(target)
    descriptor, name = make_part(target)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield name, stream
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def make_part(target: Path, *, folder: bool = False) -> tuple[int, str]:
    """Make an empty file or folder next to a target; return its open descriptor, which holds its lock, and its name.

    Until it is locked, a process that clears up for the same target may take it for what a killed one left: the lock is
    waited for, and another one is made where this one is gone.
    """
    beside: dict[str, Any] = dict(dir=target.parent, prefix=f".{target.name}.", suffix=PART)
    while True:
        if folder:
            name = tempfile.mkdtemp(**beside)
            try:
                descriptor = os.open(name, os.O_RDONLY)
            except FileNotFoundError:
                continue
        else:
            descriptor, name = tempfile.mkstemp(**beside)
        hold(descriptor, wait=True)
        if os.path.lexists(name):
            return descriptor, name
        os.close(descriptor)


def hold(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed; return whether it is locked now.

    It is not where another process has it and is not waited for, and where the file system has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def clear_parts(target: Path) -> None:
    """Remove what killed processes left of earlier writes of this file or folder, and nothing that is being written."""
    with contextlib.suppress(OSError):
        for entry in os.scandir(target.parent):
            if entry.name.startswith(f".{target.name}.") and entry.name.endswith(PART):
                with contextlib.suppress(OSError):
                    descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
                    try:
                        if hold(descriptor):
                            (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
                    finally:
                        os.close(descriptor)


def write_text(path: Path | str, text: str) -> Path:
    """Write a UTF-8 text file atomically."""
    return write_bytes(path, utf8(text))


def utf8(text: str) -> bytes:
    r"""Encode a text; a byte of a path that is not UTF-8, which Python holds as half a character, is spelled out.

    Example:
        >>> utf8("a\udcffb")
        b'a\\udcffb'
    """
    return text.encode(errors="backslashreplace")


def write_json(path: Path | str, value: Any) -> Path:
    """Write a JSON file atomically. NaN and infinities are refused: they are not JSON."""
    return write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def set_aside(path: Path) -> Path:
    """Rename a corrupted file or folder to ``NAME.damaged`` (``.damaged.1`` and so on); return the new path.

    Where another process was first, that is where it would have been.

    Raises:
        InputError: it cannot be renamed.
    """
    target, number = path.with_name(path.name + DAMAGED), 0
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}{DAMAGED}.{number}")
    try:
        os.rename(path, target)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise InputError(f"{path} is damaged and cannot be set aside ({error.strerror}): move it away") from error
    return target


def sha256(path: Path | str) -> str:
    """Compute the SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


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
    """Read a JSON file (:func:`.schema.parse_json`).

    Raises:
        InputError: it is missing, no regular file, too large or not JSON.
    """
    return parse_json(read_bytes(path, LARGEST_JSON), str(path))


def read_bytes(path: Path | str, most: int) -> bytes:
    """Read a file of limited size.

    Raises:
        InputError: it is missing, no regular file (a device or a pipe may have no end), too large or not readable.
    """
    path = Path(path)
    check_regular(path)
    try:
        size = path.stat().st_size
        if size > most:
            raise InputError(f"{path} has {size:,} bytes, more than the {most:,} that are read of such a file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def user_path(text: Path | str) -> Path:
    """Return the path that a user wrote, with "~" expanded to the home folder.

    Raises:
        InputError: it is empty, or no file can be called that.

    >>> user_path("a/b")
    PosixPath('a/b')
    """
    path = Path(os.path.expanduser(named(text)))
    try:
        os.lstat(path)
    except ValueError as error:
        raise InputError(f"{shown(str(text))} is no path: {error}") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{shown(str(text))} is no path: {error.strerror}") from error
    return path


def below(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """Yield the matching paths in a folder, at any depth.

    Raises:
        InputError: a folder in it went away meanwhile, or cannot be listed.
    """
    try:
        yield from folder.rglob(pattern)
    except OSError as error:
        raise InputError(f"{folder} cannot be listed: {error.filename}: {error.strerror}") from error


def check_regular(path: Path | str) -> Path:
    """Refuse to read what is no regular file, without opening it: opening a pipe waits for its writer.

    Raises:
        InputError: nothing is there, or a folder, a device, a pipe or a socket is.
    """
    path = Path(path)
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist: check the path") from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', error)}") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"{path} is a folder: name a file")
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is a device, a pipe or a socket: name a regular file")
    return path
