"""Read one corrupted file, and say what is wrong with how it was read."""

import contextlib
import functools
import hashlib
import io
import random
import shutil
import tempfile
from pathlib import Path

from bornbiased_jax.errors import InputError
from tests.robustness.guard import bounds, is_one_sentence
from tests.robustness.kinds import KINDS
from tests.robustness.mutate import mutated

CORPUS = Path(__file__).resolve().parent / "corpus"


@functools.cache
def good(name: str) -> tuple[Path, str]:
    """A folder with a good file of a kind, and the file's name; it stays while the process lives."""
    keep = tempfile.TemporaryDirectory(prefix="fuzz-")
    _KEPT.append(keep)
    folder = Path(keep.name)
    return folder, KINDS[name].make(folder)


_KEPT: list[tempfile.TemporaryDirectory[str]] = []


def damaged(name: str, seed: int) -> bytes:
    """A corrupted file of a kind; the same seed damages it in the same way."""
    folder, file = good(name)
    return mutated((folder / file).read_bytes(), random.Random(f"{name} {seed}"))


def fault_of(name: str, data: bytes) -> str | None:
    """Read a mutated file in place of a good one; return the fault, None where it is read or refused properly."""
    folder, file = good(name)
    with tempfile.TemporaryDirectory(prefix="fuzz-") as temporary:
        place = Path(temporary) / "a"
        shutil.copytree(folder, place)
        (place / file).write_bytes(data)
        stderr = io.StringIO()
        try:
            with bounds(), contextlib.redirect_stderr(stderr):
                KINDS[name].read(place, place / file)
        except InputError as error:
            return None if is_one_sentence(str(error)) else f"not one sentence: {str(error)[:500]!r}"
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of a library in Rust is no Exception
            return f"{type(error).__name__}: {str(error)[:300]}"
    return f"printed {stderr.getvalue()[-300:]}" if "Traceback" in stderr.getvalue() else None


def keep(name: str, data: bytes) -> Path:
    """Put a case into the corpus."""
    path = CORPUS / name.replace(" ", "_") / hashlib.sha256(data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def kept() -> list[tuple[str, Path]]:
    """The corpus: each file with its kind."""
    names = {name.replace(" ", "_"): name for name in KINDS}
    return [(names[path.parent.name], path) for path in sorted(CORPUS.glob("*/*"))]
