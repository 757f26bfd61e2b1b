"""Read and write files: each write is atomic.

A file is written under a temporary name and then renamed. What a user names may also be a link, whose target is then
replaced, or no regular file at all: a terminal, a pipe, ``/dev/null`` or ``/dev/stdout`` are written to as they are.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import filelock

from bornbiased_jax import schema
from bornbiased_jax.errors import InputError

T = TypeVar("T")

LARGEST_JSON = 32 * 2**20
"""Bytes of a JSON file that is read."""
PART = ".part"
"""Suffix of names of unfinished files; such a name begins with a dot and the name of its target."""
DAMAGED = ".damaged"
"""Suffix of names of corrupted files that were set aside."""
DIGEST = "digest"
"""Field of a sealed JSON file with the digest of all its other fields."""
MAX_LINKS = 40


@contextlib.contextmanager
def writing(path: Path | str, remedy: str = "choose another place") -> Iterator[None]:
    """Turn an OSError of the block into an InputError on the path."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; {remedy}") from error


# Reading.


def user_path(text: Path | str) -> Path:
    """Return the path that a user wrote, with "~" expanded to the home folder.

    Raises:
        InputError: it is empty, or no file can be called that.

    >>> user_path("a/b")
    PosixPath('a/b')
    """
    path = Path(os.path.expanduser(_nonempty(text)))
    try:
        os.lstat(path)
    except ValueError as error:
        raise InputError(f"{schema.shown(str(text))} is no path: {error}") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InputError(f"{schema.shown(str(text))} is no path: {error.strerror}") from error
    return path


def _nonempty(path: Path | str) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"{path!r} is no path: give the name of a file or a folder")
    if not str(path).strip():
        raise InputError("an empty path names no file: give a name, or leave the option out")
    return Path(path)


def check_regular(path: Path | str) -> Path:
    """Refuse to read anything but a regular file, without opening it: opening a pipe waits for its writer.

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


def read_bytes(path: Path | str, max_bytes: int) -> bytes:
    """Read a regular file of limited size.

    Raises:
        InputError: it is missing, no regular file, too large or not readable.
    """
    path = check_regular(path)
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise InputError(f"{path} has {size:,} bytes, more than the {max_bytes:,} that are read of such a file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path | str) -> Any:  # noqa: ANN401 (JSON of any form)
    """Read a JSON file (:func:`.schema.parse_json`).

    Raises:
        InputError: it is missing, no regular file, too large or not JSON.
    """
    return schema.parse_json(read_bytes(path, LARGEST_JSON), str(path))


def read_sealed(kind: type[T], path: Path | str, remedy: str) -> T:
    """Read an object that :func:`write_sealed` wrote, check its type and its digest, and return it without the digest.

    A file of an older version has no digest and is checked by its type alone.

    Args:
        kind: the type without the digest, as :func:`.schema.check` takes it.
        path: of the file.
        remedy: what the error advises.

    Raises:
        InputError: the file is missing, no JSON, does not fit, or was changed since it was written.
    """
    content = read_json(path)
    expected = content.pop(DIGEST, None) if isinstance(content, dict) else None
    schema.check(kind, content, str(path), remedy)
    if expected not in (None, _sealed_digest(content)):
        raise InputError(f"{path} was changed since it was written: {remedy}")
    # Fields of a later version are kept.
    sealed: T = content
    return sealed


def _sealed_digest(content: Mapping[str, object]) -> str:
    """Compute the SHA-256 of an object without its digest, hexadecimal."""
    fields = {name: value for name, value in content.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def sha256(path: Path | str) -> str:
    """Compute the SHA-256 of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def below(folder: Path, pattern: str = "*") -> Iterator[Path]:
    """Yield the matching paths in a folder, at any depth.

    Raises:
        InputError: a folder in it went away meanwhile, or cannot be listed.
    """
    try:
        yield from folder.rglob(pattern)
    except OSError as error:
        raise InputError(f"{folder} cannot be listed: {error.filename}: {error.strerror}") from error


# Writing a file.


def check_writable(path: Path | str) -> Path:
    """Create the parent folder of an output now, so that a long job does not fail at its end.

    Raises:
        InputError: the path is empty or a folder, or the folder cannot be made or written to.
    """
    path = _nonempty(path)
    if descriptor_of(path) is not None:
        return path
    with writing(path):
        if _is_special(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return path
        folder = Path(os.path.realpath(path)).parent
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    return path


def _is_special(path: Path) -> bool:
    """Check whether a device or a pipe lies there, which is written to as it is; refuse folders, disks and sockets."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    kinds = {stat.S_IFDIR: "folder", stat.S_IFBLK: "disk", stat.S_IFSOCK: "socket"}
    if (kind := kinds.get(stat.S_IFMT(mode))) is not None:
        raise InputError(f"cannot write {path}: it is a {kind}; name a file")
    return not stat.S_ISREG(mode)


def descriptor_of(path: Path | str) -> int | None:
    """Return the open descriptor of this process that a path stands for, as /dev/stdout does, else None."""
    place = Path(os.path.abspath(path))
    descriptor_folders = {"/dev/fd", os.path.realpath("/dev/fd"), f"/proc/{os.getpid()}/fd"}
    for _ in range(MAX_LINKS):
        if os.path.realpath(place.parent) in descriptor_folders and place.name.isdecimal():
            return int(place.name)
        # Not Path.is_symlink, which raises where no file can have such a name.
        if not os.path.islink(place):
            return None
        place = Path(os.path.normpath(place.parent / os.readlink(place)))
    return None


def write_bytes(path: Path | str, data: bytes) -> Path:
    """Write a file atomically: a reader sees the old content or the new, never half of it.

    A file that is replaced keeps its permissions, a new one has those of the umask; through a link its target is
    replaced.

    Raises:
        InputError: the path is empty or a folder, or cannot be written; the earlier content is unchanged.
    """
    path = check_writable(path)
    number = descriptor_of(path)
    if number is not None or _is_special(path):
        with writing(path):
            for console in (sys.stdout, sys.stderr):
                console.flush()
            # Not opened again by its name: the file that a shell appends to would be cut off.
            descriptor = os.dup(number) if number is not None else os.open(path, os.O_WRONLY)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
        return path
    target = Path(os.path.realpath(path))
    with writing(path, "free some room or choose another place"):
        clear_parts(target)
        descriptor, part = make_part(target)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                if target.exists():
                    os.chmod(part, stat.S_IMODE(target.stat().st_mode))
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
                os.replace(part, target)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise
    return path


def write_text(path: Path | str, text: str) -> Path:
    """Write a UTF-8 text file atomically."""
    return write_bytes(path, utf8(text))


def write_json(path: Path | str, value: object, *, sort_keys: bool = False) -> Path:
    """Write a JSON file atomically. NaN and infinities are refused: they are not JSON."""
    return write_text(path, json.dumps(value, indent=2, sort_keys=sort_keys, allow_nan=False) + "\n")


def write_sealed(path: Path | str, content: Mapping[str, object]) -> Path:
    """Write a JSON object with a digest of its fields, atomically."""
    return write_json(path, {**content, DIGEST: _sealed_digest(content)})


def utf8(text: str) -> bytes:
    r"""Encode a text; a byte of a path that is not UTF-8, which Python holds as half a character, is spelled out.

    Example:
        >>> utf8("a\udcffb")
        b'a\\udcffb'
    """
    return text.encode(errors="backslashreplace")


def set_aside(path: Path, suffix: str = DAMAGED) -> Path:
    """Rename a corrupted file or folder to ``NAME.damaged`` (``.damaged.1`` and so on); return the new path.

    Args:
        path: what is renamed.
        suffix: stands in place of ``.damaged``.

    Raises:
        InputError: it cannot be renamed; a path that is gone already is no error.
    """
    target, number = path.with_name(path.name + suffix), 0
    while os.path.lexists(target):
        number += 1
        target = path.with_name(f"{path.name}{suffix}.{number}")
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, target)
    except OSError as error:
        raise InputError(f"{path} cannot be set aside ({error.strerror}): move it away") from error
    return target


# Locks, and the remains of killed writes.


@contextlib.contextmanager
def locked(path: Path | str, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock file while the block runs; it stays behind, and a process that dies lets go of it.

    Args:
        path: the lock file; its folder exists.
        wait: until another process lets go; else the value tells whether the lock is held.

    Raises:
        InputError: the file cannot be written.
    """
    with writing(path):
        Path(path).open("a").close()
    lock = filelock.FileLock(path)
    is_held = True
    try:
        lock.acquire(timeout=-1 if wait else 0)
    except filelock.Timeout:
        is_held = False
    except OSError:
        pass  # a file system without locks: two processes may then do the same work
    try:
        yield is_held
    finally:
        lock.release()


def hold(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file or folder until it is closed; return False where another process has it, or has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        return False
    return True


def make_part(target: Path, *, folder: bool = False) -> tuple[int, str]:
    """Make an empty file or folder next to a target; return its open descriptor, which holds its lock, and its name.

    Until it is locked, another process may take it for the remains of a kill and remove it: then another one is made.
    """
    while True:
        # Not by tempfile, whose files and folders their owner alone may read, whatever the umask says.
        name = str(target.parent / f".{target.name}.{secrets.token_urlsafe(6)}{PART}")
        if folder:
            os.mkdir(name)
            try:
                descriptor = os.open(name, os.O_RDONLY)
            except FileNotFoundError:
                continue
        else:
            descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        hold(descriptor, wait=True)
        if os.path.lexists(name):
            return descriptor, name
        os.close(descriptor)


def clear_parts(target: Path) -> None:
    """Remove the remains of killed writes of this file or folder, and nothing that is being written."""
    # Names that make_part gives: another program's may begin and end alike.
    remains = re.compile(rf"\.{re.escape(target.name)}\.[A-Za-z0-9_-]{{8}}{re.escape(PART)}")
    with contextlib.suppress(OSError):
        for entry in os.scandir(target.parent):
            if remains.fullmatch(entry.name):
                with contextlib.suppress(OSError):
                    descriptor = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW)
                    try:
                        if hold(descriptor):
                            (shutil.rmtree if entry.is_dir(follow_symlinks=False) else os.unlink)(entry.path)
                    finally:
                        os.close(descriptor)
