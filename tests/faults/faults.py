"""Small faults that a test must notice: the lists, and how one is put into a scratch copy of the project.

Each ``ROOM.json`` beside this file is a list of objects with the keys of :class:`Fault`; ``why`` may be left out. A
fault is worth listing where it would change a number in silence.
"""

from __future__ import annotations

import compileall
import dataclasses
import importlib
import json
import multiprocessing
import os
import py_compile
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
# What a test may read. Everything else of a checkout (environment, caches, outputs) stays where it is.
COPIED = ("bornbiased_jax", "theory", "experiments", "benchmarks", "tests", "docs", ".ci", ".github")
COPIED_FILES = ("pyproject.toml", "constraints.txt", "Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
# Imported once, by the server that every run of tests is a fork of: two seconds of each run.
LIBRARIES = [
    "pytest",
    "hypothesis",
    "scipy.stats",
    "scipy.optimize",
    "flax.linen",
    "optax",
    "orbax.checkpoint",
    "grain",
    "tokenizers",
    "gguf",
    "safetensors.numpy",
    "matplotlib.figure",
    "rich.progress",
    "click",
    "platformdirs",
]
# Ample for the slowest named test beside another one: a fault that makes a test run for ever is named, not awaited.
TIMEOUT_S = 600.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """One small fault.

    Attributes:
        room: the list it is in.
        file: the file it is put into, relative to the project.
        old: text that occurs exactly once in the file.
        new: what the text is replaced by.
        test: the test that must then fail, as pytest names it (``tests/x/test_y.py::test_z``, perhaps with ``[case]``).
        why: what would go unnoticed.
    """

    room: str
    file: str
    old: str
    new: str
    test: str
    why: str = ""

    @property
    def name(self) -> str:
        """A short name for reports: the room, the file's stem and the changed line's beginning."""
        before, after = self.old.splitlines(), self.new.splitlines()
        changed = next((b for a, b in zip(before, after, strict=False) if a != b), self.new)
        return f"{self.room}-{Path(self.file).stem}-{''.join(c if c.isalnum() else '_' for c in changed.strip())[:40]}"


def load(folder: Path = FOLDER) -> list[Fault]:
    """Every fault of every list, in the order of the lists' names.

    Raises:
        ValueError: an entry lacks a key or has an unknown one; the message names the list and the entry.
    """
    faults = []
    known = {field.name for field in dataclasses.fields(Fault)} - {"room"}
    for path in sorted(folder.glob("*.json")):
        for index, entry in enumerate(json.loads(path.read_text())):
            if not known - {"why"} <= set(entry) <= known:
                raise ValueError(f"{path.name}, entry {index}: has {sorted(entry)}, wants {sorted(known)}")
            faults.append(Fault(room=path.stem, **entry))
    return faults


def patched(text: str, fault: Fault) -> str:
    """The text of a file with the fault in it.

    Raises:
        ValueError: the old text does not occur exactly once, or the new text is the old one.
    """
    count = text.count(fault.old)
    if count != 1:
        raise ValueError(f"{fault.file} holds {fault.old!r} {count} times, not once")
    if fault.new == fault.old:
        raise ValueError(f"{fault.file}: the new text is the old one")
    return text.replace(fault.old, fault.new)


def scratch_copy(target: Path, source: Path = ROOT) -> Path:
    """Copy what tests need to ``target``, which must not exist.

    Bytecode is looked up by its source's digest, so that a fault is compiled anew however soon it is put in.
    """
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=ignore)
    for name in COPIED_FILES:
        if (source / name).is_file():
            shutil.copy2(source / name, target / name)
    compileall.compile_dir(target, quiet=2, invalidation_mode=py_compile.PycInvalidationMode.CHECKED_HASH)
    return target


def _pytest(copy: str, printed: str, tests: list[str]) -> None:
    """In a process of its own, which has imported the libraries but nothing of the project: run tests of a copy."""
    for number in (1, 2):
        os.dup2(os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    # A run inside a worker of pytest-xdist is not one of its workers.
    for name in [name for name in os.environ if name.startswith("PYTEST_")]:
        del os.environ[name]
    os.environ.update(PYTHONPATH=copy, PYTHONDONTWRITEBYTECODE="1")
    sys.dont_write_bytecode = True
    os.chdir(copy)
    sys.path[:] = [copy, *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
    for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
        del sys.modules[name]
    importlib.invalidate_caches()
    # Assertions as they are: rewriting them, the library's of Hypothesis too, takes longer than most tests.
    options = ["-q", "--tb=short", "--assert=plain", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", "-x"]
    sys.exit(int(pytest.main([*options, *tests])))


def run_tests(copy: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Run named tests in a scratch copy: pytest's exit code (0 all passed, 1 some failed) and what it printed.

    Raises:
        TimeoutError: the tests did not end.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(LIBRARIES)
    printed = copy.parent / f"{copy.name}.printed"
    printed.unlink(missing_ok=True)
    process = context.Process(target=_pytest, args=(str(copy), str(printed), list(tests)))
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise TimeoutError(f"{', '.join(tests)} did not end in {TIMEOUT_S:.0f} s")
    return process.exitcode, printed.read_text()[-4000:]


def run_fault(copy: Path, fault: Fault) -> tuple[int, str]:
    """Put a fault into a scratch copy, run its test, and take the fault out again."""
    path = copy / fault.file
    sound = path.read_text()
    path.write_text(patched(sound, fault))
    try:
        return run_tests(copy, [fault.test])
    finally:
        path.write_text(sound)
