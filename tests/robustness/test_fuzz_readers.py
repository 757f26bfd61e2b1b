"""Mutated files of every kind are read, or refused in one sentence, within limits of memory and time.

`make fuzz` tries seeds by the clock; what goes wrong is kept in the corpus, which `make test` runs.
"""

import contextlib
import functools
import hashlib
import io
import itertools
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bornbiased_jax.errors import InputError
from tests.robustness.guard import bounds, is_one_sentence
from tests.robustness.kinds import KINDS
from tests.robustness.mutate import mutated

CORPUS = Path(__file__).resolve().parent / "corpus"
FOLDERS = {name: CORPUS / name.replace(" ", "_") for name in KINDS}
KEPT = [(name, path) for name, folder in FOLDERS.items() for path in sorted(folder.glob("*"))]
FEW = range(3)
# Of all kinds together in `make test-all`, and seeds that no earlier night has tried.
MINUTES, FIRST = (int(os.environ.get(f"FUZZ_{name}", least)) for name, least in (("MINUTES", 8), ("FIRST", len(FEW))))


@functools.cache
def made(make: Callable[[Path], object]) -> tempfile.TemporaryDirectory[str]:
    """A folder with good files; it stays while the process lives."""
    folder = tempfile.TemporaryDirectory(prefix="fuzz-")
    make(Path(folder.name))
    return folder


def good(name: str) -> Path:
    """The good file of a kind."""
    return next(Path(made(KINDS[name].make).name).rglob(KINDS[name].file))


def damaged(name: str, seed: int) -> bytes:
    """A corrupted file of a kind; the same seed damages it in the same way."""
    return mutated(good(name).read_bytes(), random.Random(f"{name} {seed}"))


def read(name: str, data: bytes) -> None:
    """Read a file in the place of a good one, in a copy of its folder."""
    folder = Path(made(KINDS[name].make).name)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        place = Path(shutil.copytree(folder, Path(temporary) / "a"))
        path = place / good(name).relative_to(folder)
        path.write_bytes(data)
        KINDS[name].read(place, path)


def fault_of(name: str, data: bytes) -> str | None:
    """Read a mutated file; return the fault, None where it is read or refused properly."""
    stderr = io.StringIO()
    try:
        with bounds(), contextlib.redirect_stderr(stderr):
            read(name, data)
    except InputError as error:
        return None if is_one_sentence(str(error)) else f"not one sentence: {str(error)[:500]!r}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a panic of a library in Rust is no Exception
        return f"{type(error).__name__}: {str(error)[:300]}"
    return f"printed {stderr.getvalue()[-300:]}" if "Traceback" in stderr.getvalue() else None


@pytest.mark.parametrize("name", KINDS)
def test_mutated_files_read_or_refused_in_one_sentence(name):
    read(name, good(name).read_bytes())  # what is refused before the mutation would be refused after it
    assert not {seed: fault for seed in FEW if (fault := fault_of(name, damaged(name, seed))) is not None}


@pytest.mark.nightly
@pytest.mark.parametrize("name", KINDS)
def test_mutated_files_by_the_clock(name):
    end = time.monotonic() + 60 * MINUTES / len(KINDS)
    for seed in itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(FIRST)):
        data = damaged(name, seed)
        if (fault := fault_of(name, data)) is not None:
            FOLDERS[name].mkdir(exist_ok=True)
            (FOLDERS[name] / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
            pytest.fail(f"seed {seed}: {fault}")


@pytest.mark.parametrize(("name", "path"), KEPT, ids=lambda value: getattr(value, "name", value))
def test_corpus_of_mutated_files(name, path):
    assert fault_of(name, path.read_bytes()) is None
