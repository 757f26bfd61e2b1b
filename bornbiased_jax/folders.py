"""Folders that a command fills: it knows its own files by a marker, replaces no other and removes no other.

The marker, ``.bornbiased.jsonl``, has a line with the command, the name and the SHA-256 of every file that was written.
A line is there before its file, so that a killed command still knows what it made.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from bornbiased_jax import files
from bornbiased_jax.errors import InputError
from bornbiased_jax.schema import parse_json

MARKER = ".bornbiased.jsonl"
OVERWRITE = "--overwrite"
REPLACED = ".replaced"
"""How the hidden name ends under which a folder lies beside its place while a new one takes it."""


class Folder:
    """A folder of one command; made when the first file is written.

    Attributes:
        path: where it is.
        maker: the command, as in "bornbiased export".
        overwrite: take a folder that holds other things: files in the way are replaced, others stay. None where the
            command has no such option.
    """

    def __init__(self, path: Path | str, maker: str, *, overwrite: bool | None = None) -> None:
        self.path, self.maker, self.overwrite = files.user_path(path), maker, overwrite
        self._own: dict[str, set[str]] = {}
        self._marked = self._read()

    def _read(self) -> bool:
        """Read the marker; return whether there is one of this command. A line cut short by a kill does not count."""
        try:
            lines = (self.path / MARKER).read_bytes().split(b"\n")
        except OSError:
            return False
        marked = False
        for line in lines:
            with contextlib.suppress(InputError, TypeError, KeyError):
                entry = parse_json(line, MARKER)
                if entry["made_by"] != self.maker:
                    continue
                marked = True
                if "file" in entry:
                    self._own.setdefault(entry["file"], set()).add(entry["sha256"])
        return marked

    @property
    def made_here(self) -> bool:
        """Whether the folder is one that this command made."""
        return self._marked

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
        remedy = "name a new or empty folder"
        if self.overwrite is not None:
            remedy += f", or give {OVERWRITE} to take this one: files of the same names are replaced, others stay"
        strange = [] if self._marked else [name for name in self.entries() if not ignore(name)]
        if strange:
            # Another process of the same command may have begun it since: its marker came before its files.
            self._marked = self._read()
        if strange and not self._marked:
            rest = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
            raise InputError(f"{self.path} holds {strange[0]}{rest}, which `{self.maker}` did not write: {remedy}")
        for name in names:
            self._check_file(name, ignore)

    def _check_file(self, name: str, ignore: Callable[[str], bool] = lambda _name: False) -> None:
        if self.overwrite or not os.path.lexists(self.path / name) or self.owns(name) or ignore(name):
            return
        option = f", or give {OVERWRITE}" if self.overwrite is not None else ""
        raise InputError(f"{self.path / name} was changed since `{self.maker}` wrote it: move it away{option}")

    def entries(self) -> list[str]:
        """Return the names in the folder, sorted, without the marker and the remains of a killed write."""
        if not self.path.is_dir():
            return []
        names = sorted(entry.name for entry in self.path.iterdir())
        return [name for name in names if name != MARKER and not (name[0] == "." and name.endswith(files.PART))]

    def owns(self, name: str) -> bool:
        """Return whether a file is as this command wrote it."""
        with contextlib.suppress(OSError):
            return not (self.path / name).is_symlink() and files.sha256(self.path / name) in self._own.get(name, set())
        return False

    def knows(self, name: str) -> bool:
        """Return whether this command once wrote a file of this name, whatever became of it."""
        return name in self._own

    def claim(self) -> None:
        """Make the folder and its marker now, where they are not there yet.

        Raises:
            InputError: it cannot be written.
        """
        if not self._marked:
            self._append({"made_by": self.maker})

    def note(self, name: str, digest: str) -> None:
        """Put a file that is about to be written into the marker.

        Raises:
            InputError: the marker cannot be written.
        """
        if digest not in self._own.get(name, set()):
            self._append({"made_by": self.maker, "file": name, "sha256": digest})
            self._own.setdefault(name, set()).add(digest)

    def _append(self, line: dict[str, str]) -> None:
        files.check_writable(self.path / MARKER)
        try:
            with (self.path / MARKER).open("ab") as stream:
                # What a kill cut short stays a line of its own.
                before = b"\n" if stream.tell() and not self._whole() else b""
                stream.write(before + json.dumps(line).encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise InputError(
                f"cannot write {self.path / MARKER}: {error.strerror}; free some room or choose another place"
            ) from error
        self._marked = True

    def _whole(self) -> bool:
        with (self.path / MARKER).open("rb") as stream:
            stream.seek(-1, os.SEEK_END)
            return stream.read() == b"\n"

    def write_bytes(self, name: str, data: bytes) -> Path:
        """Write one file of the folder, atomically.

        Raises:
            InputError: one of this name is not the command's own, or it cannot be written.
        """
        self._check_file(name)
        self.note(name, hashlib.sha256(data).hexdigest())
        return files.write_bytes(self.path / name, data)

    def write_text(self, name: str, text: str) -> Path:
        """Write a UTF-8 text file of the folder."""
        return self.write_bytes(name, files.utf8(text))

    def write_json(self, name: str, value: object) -> Path:
        """Write a JSON file of the folder."""
        return self.write_text(name, json.dumps(value, indent=2, allow_nan=False) + "\n")


@contextlib.contextmanager
def fresh(folder: Path, maker: str) -> Iterator[Path]:
    """Make a new folder beside another; when the block is through, it takes the other's place.

    Its files are put into its marker. What was in ``folder`` before is removed: look there first. A call that is killed
    between the two renames leaves the old folder whole as ``.NAME.replaced``, and the next one brings it back.

    Raises:
        InputError: it cannot be written; what was there before is whole.
    """
    folder = Path(os.path.realpath(folder))
    replaced = folder.with_name(f".{folder.name}{REPLACED}")
    files.check_writable(folder.with_name(f".{folder.name}"))
    _clear_up(replaced, folder, maker)
    files.clear_parts(folder)
    descriptor, name = files.make_part(folder, folder=True)
    new = Path(name)
    try:
        yield new
        marked = Folder(new, maker)
        for name in marked.entries():
            marked.note(name, files.sha256(new / name))
        os.chmod(new, 0o755)
        _replace(folder, new, replaced)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error.strerror}; free some room or choose another place") from error
    finally:
        shutil.rmtree(new, ignore_errors=True)
        os.close(descriptor)


def _clear_up(replaced: Path, folder: Path, maker: str) -> None:
    """Bring back what a killed call had moved aside; remove it where the new folder took its place.

    Raises:
        InputError: another folder took its place.
    """
    if not os.path.lexists(replaced):
        return
    if not os.path.lexists(folder):
        with contextlib.suppress(OSError):
            os.rename(replaced, folder)
    elif Folder(folder, maker).made_here:
        shutil.rmtree(replaced, ignore_errors=True)
    else:
        raise InputError(f"{replaced} is what `{maker}` moved aside for {folder}: move one of the two away")


def _replace(folder: Path, new: Path, replaced: Path) -> None:
    """Let a new folder take a place; what was there, if anything, is afterwards where the new one was."""
    if not os.path.lexists(folder):
        os.rename(new, folder)
        return
    os.rename(folder, replaced)
    try:
        os.rename(new, folder)
    except BaseException:
        os.rename(replaced, folder)
        raise
    # By this name a later call clears it away, should this one not come to it.
    os.rename(replaced, new)
