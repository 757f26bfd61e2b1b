"""Folders that one command writes: a marker tells its own files from those of others, which are never touched."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from bornbiased_jax import io, schema
from bornbiased_jax.errors import InputError

MARKER = ".bornbiased.jsonl"
"""A line for the command, the name and the SHA-256 of every file of a folder, there before the file itself."""
REPLACED = ".replaced"
"""Suffix of the hidden name of a folder while a new one takes its place."""
OVERWRITE = "--overwrite"


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
        self.path, self.maker, self.overwrite = io.user_path(path), maker, overwrite
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
        return [name for name in names if name != MARKER and not (name[0] == "." and name.endswith(io.PART))]

    def owns(self, name: str) -> bool:
        """Check whether a file is as this command wrote it."""
        path = self.path / name
        with contextlib.suppress(OSError):
            if path.is_symlink():
                return False
            digest = io.sha256(path)
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
        marker = io.check_writable(self.path / MARKER)
        line = json.dumps(entry).encode() + b"\n"
        with io.writing(marker, "free some room or choose another place"), marker.open("a+b") as stream:
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
        return io.write_bytes(self.path / name, data)

    def write_text(self, name: str, text: str) -> Path:
        """Write a UTF-8 text file of the folder."""
        return self.write_bytes(name, io.utf8(text))

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
    io.check_writable(folder.with_name(f".{folder.name}"))
    # Bring back the folder that a killed call had moved aside, or remove it where its successor is there.
    if os.path.lexists(replaced):
        if not os.path.lexists(folder):
            with contextlib.suppress(OSError):
                os.rename(replaced, folder)
        elif Folder(folder, maker).is_marked:
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            raise InputError(f"{replaced} is what `{maker}` moved aside for {folder}: move one of the two away")
    io.clear_parts(folder)
    descriptor, part = io.make_part(folder, folder=True)
    new = Path(part)
    with io.writing(folder, "free some room or choose another place"):
        try:
            yield new
            marked = Folder(new, maker)
            for name in marked.entries():
                marked.note(name, io.sha256(new / name))
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
