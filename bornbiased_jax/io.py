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
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

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
MARKER = ".bornbiased.jsonl"
"""A line for the command, the name and the SHA-256 of every file of a folder, there before the file itself."""
REPLACED = ".replaced"
"""Suffix of the hidden name of a folder while a new one takes its place."""
OVERWRITE = "--overwrite"
_REMOVE = "remove its folder"


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


def read_sealed(kind: type[T], path: Path | str) -> T:
    """Read an object that :func:`write_sealed` wrote, check its type and its digest, and return it without the digest.

    A file of an older version has no digest and is checked by its type alone.

    Args:
        kind: the type without the digest, as :func:`.schema.check` takes it.
        path: of the file.

    Raises:
        InputError: the file is missing, no JSON, does not fit, or was changed since it was written.
    """
    content = read_json(path)
    expected = content.pop(DIGEST, None) if isinstance(content, dict) else None
    schema.check(kind, content, str(path), _REMOVE)
    if expected not in (None, _sealed_digest(content)):
        raise InputError(f"{path} was changed since it was written: {_REMOVE}")
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

    On a file system without locks it counts as held: two processes may then do the same work.

    Args:
        path: the lock file; its folder exists.
        wait: until another process lets go; else the value tells whether the lock is held.

    Raises:
        InputError: the file cannot be written.
    """
    with writing(path):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        yield hold(descriptor, wait=wait, without_locks=True)
    finally:
        # A process that was forked meanwhile has the file open too: closing it here alone would not let go.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def hold(descriptor: int, *, wait: bool = False, without_locks: bool = False) -> bool:
    """Lock an open file or folder until it is closed; return False where another process has it.

    Args:
        descriptor: of the file or folder.
        wait: until another process lets go.
        without_locks: what to return on a file system that has no locks.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return without_locks
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


# Folders that one command writes.


class Folder:
    """A folder of one command, made when the first file is written; no file of others is replaced or removed.

    Attributes:
        path: where it is.
        maker: the command, as in "bornbiased export".
        is_marked: whether the folder is one that this command made.
        overwrite: take a folder that holds other things: files in the way are replaced, others stay. None where the
            command has no such option.
    """

    def __init__(self, path: Path | str, maker: str, *, overwrite: bool | None = None) -> None:
        self.path, self.maker, self.overwrite = user_path(path), maker, overwrite
        self._digests: dict[str, set[str]] = {}
        self.is_marked = self._read()

    def _read(self) -> bool:
        """Read the marker; return whether there is one of this command. A line cut short by a kill does not count."""
        try:
            lines = (self.path / MARKER).read_bytes().split(b"\n")
        except OSError:
            return False
        is_marked = False
        for line in lines:
            with contextlib.suppress(InputError, TypeError, KeyError):
                entry = schema.parse_json(line, MARKER)
                if entry["made_by"] == self.maker:
                    is_marked = True
                    if "file" in entry:
                        self._digests.setdefault(entry["file"], set()).add(entry["sha256"])
        return is_marked

    def check(self, *names: str, ignore: Callable[[str], bool] = lambda _name: False) -> None:
        """Check whether the command may write there, before any work; nothing is created.

        Args:
            names: files that it will write.
            ignore: tells of the name of an entry whether it is the command's own although no marker says so.

        Raises:
            InputError: the folder holds other things, or one of the files was changed by somebody else.
        """
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"cannot write {self.path}: it is a file; name a folder")
        if self.overwrite:
            return
        foreign = [] if self.is_marked else [name for name in self.entries() if not ignore(name)]
        # Another process of the same command may have begun the folder since: its marker came before its files.
        if foreign and not self._read():
            remedy = "name a new or empty folder"
            if self.overwrite is not None:
                remedy += f", or give {OVERWRITE} to take this one: files of the same names are replaced, others stay"
            rest = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
            raise InputError(f"{self.path} holds {foreign[0]}{rest}, which `{self.maker}` did not write: {remedy}")
        self.is_marked = self.is_marked or bool(foreign)
        for name in names:
            if not ignore(name):
                self._check_file(name)

    def _check_file(self, name: str) -> None:
        if not self.overwrite and os.path.lexists(self.path / name) and not self.owns(name):
            option = f", or give {OVERWRITE}" if self.overwrite is not None else ""
            raise InputError(f"{self.path / name} was changed since `{self.maker}` wrote it: move it away{option}")

    def entries(self) -> list[str]:
        """Return the names in the folder, sorted, without the marker and the remains of a killed write."""
        names = sorted(entry.name for entry in self.path.iterdir()) if self.path.is_dir() else []
        return [name for name in names if name != MARKER and not (name[0] == "." and name.endswith(PART))]

    def owns(self, name: str) -> bool:
        """Check whether a file is as this command wrote it."""
        path = self.path / name
        with contextlib.suppress(OSError):
            # Opening a pipe would wait for its writer.
            if path.is_symlink() or not path.is_file():
                return False
            digest = sha256(path)
            if digest not in self._digests.get(name, set()):
                # Another process of the same command may have written it since.
                self._read()
            return digest in self._digests.get(name, set())
        return False

    def knows(self, name: str) -> bool:
        """Check whether this command once wrote a file of this name, whatever became of it."""
        return name in self._digests

    def claim(self) -> None:
        """Make the folder and its marker now, where they are not there yet."""
        if not self.is_marked:
            self._append({"made_by": self.maker})

    def note(self, name: str, digest: str) -> None:
        """Put a file that is about to be written into the marker."""
        if digest not in self._digests.get(name, set()):
            self._append({"made_by": self.maker, "file": name, "sha256": digest})
            self._digests.setdefault(name, set()).add(digest)

    def _append(self, entry: dict[str, str]) -> None:
        marker = check_writable(self.path / MARKER)
        line = json.dumps(entry).encode() + b"\n"
        with writing(marker, "free some room or choose another place"), marker.open("a+b") as stream:
            # A line that a kill cut short stays a line of its own.
            if stream.tell():
                stream.seek(-1, os.SEEK_END)
                line = line if stream.read() == b"\n" else b"\n" + line
            stream.write(line)
            stream.flush()
            os.fsync(stream.fileno())
        self.is_marked = True

    def write_bytes(self, name: str, data: bytes) -> Path:
        """Write one file of the folder, atomically.

        Raises:
            InputError: a file of this name is not the command's own, or it cannot be written.
        """
        self._check_file(name)
        self.note(name, hashlib.sha256(data).hexdigest())
        return write_bytes(self.path / name, data)

    def write_text(self, name: str, text: str) -> Path:
        """Write a UTF-8 text file of the folder."""
        return self.write_bytes(name, utf8(text))

    def write_json(self, name: str, value: object) -> Path:
        """Write a JSON file of the folder."""
        return self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextlib.contextmanager
def replace_folder(folder: Path, maker: str) -> Iterator[Path]:
    """Make a new folder next to another; when the block ends, it takes the other's place, with a marker of its files.

    The earlier content of ``folder`` is removed. A call that is killed between the two renames leaves the old folder as
    ``.NAME.replaced``, and the next one brings it back.

    Raises:
        InputError: it cannot be written, with the earlier content unchanged; or ``.NAME.replaced`` is next to a folder
            of another command.
    """
    folder = Path(os.path.realpath(folder))
    replaced = folder.with_name(f".{folder.name}{REPLACED}")
    check_writable(folder.with_name(f".{folder.name}"))
    # Bring back the folder that a killed call had moved aside, or remove it where its successor is there.
    if os.path.lexists(replaced):
        if not os.path.lexists(folder):
            with contextlib.suppress(OSError):
                os.rename(replaced, folder)
        elif Folder(folder, maker).is_marked:
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            raise InputError(f"{replaced} is what `{maker}` moved aside for {folder}: move one of the two away")
    clear_parts(folder)
    descriptor, part = make_part(folder, folder=True)
    new = Path(part)
    with writing(folder, "free some room or choose another place"):
        try:
            yield new
            marked = Folder(new, maker)
            for name in marked.entries():
                marked.note(name, sha256(new / name))
            if folder.exists():
                os.chmod(new, stat.S_IMODE(folder.stat().st_mode))
            _exchange(folder, new, replaced)
        finally:
            shutil.rmtree(new, ignore_errors=True)
            os.close(descriptor)


def _exchange(folder: Path, new: Path, replaced: Path) -> None:
    """Rename a new folder to its place; the earlier one, if any, is afterwards where the new one was."""
    if not os.path.lexists(folder):
        os.rename(new, folder)
        return
    os.rename(folder, replaced)
    try:
        os.rename(new, folder)
    except BaseException:
        os.rename(replaced, folder)
        raise
    # Under this name a later call clears it away after a kill.
    os.rename(replaced, new)
