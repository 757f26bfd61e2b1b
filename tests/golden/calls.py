"""Calls of the command line within this process, and what golden modules make of their JSON.

The flags and the JSON keys of commands stay as they are while names of Python change: this is the one place where the
golden set knows how a command is reached.
"""

import contextlib
import hashlib
import io
import json
import os
import tempfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from bornbiased_jax.cli.main import run
from tests.golden.record import Value


class Called(NamedTuple):
    """The end of a command.

    Attributes:
        code: the exit code.
        out: standard output.
        error: standard error.
    """

    code: int
    out: str
    error: str


@contextlib.contextmanager
def empty_folder() -> Iterator[Path]:
    """A temporary folder to work in, with a cache of its own: relative paths in JSON are the same on every machine."""
    cache = os.environ.get("BORNBIASED_CACHE")
    with tempfile.TemporaryDirectory() as place, contextlib.chdir(place):
        os.environ["BORNBIASED_CACHE"] = str(Path(place) / "cache")
        try:
            yield Path(place)
        finally:
            os.environ.pop("BORNBIASED_CACHE")
            if cache is not None:
                os.environ["BORNBIASED_CACHE"] = cache


def call(line: str) -> Called:
    """Call a command; words are separated by spaces, so none of them may contain one."""
    out, error = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
        code = run(line.split())
    return Called(code, out.getvalue(), error.getvalue())


def answer(line: str) -> dict[str, Any]:
    """Call a command that must succeed; what it writes with ``--json``."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "answer.json"
        called = call(f"{line} --json {path}")
        assert called.code == 0, f"bornbiased {line}: exit code {called.code}: {called.error}"
        return json.loads(path.read_text())


def flat(value: Any, without: Collection[str] = ()) -> dict[str, Value]:
    """Nested JSON as a flat mapping: names joined by ".", entries of lists of objects by their number.

    Args:
        value: an object.
        without: keys left out at every depth: paths, times, versions.

    Example:
        >>> flat({"a": [1.0, 2.0], "b": [{"c": 1}], "d": {"e": None}})
        {'a': [1.0, 2.0], 'b.0.c': 1, 'd.e': None}
    """
    if isinstance(value, Mapping):
        rows = {key: entry for key, entry in value.items() if key not in without}
    elif isinstance(value, list) and any(isinstance(entry, Mapping | list) for entry in value):
        rows = {str(index): entry for index, entry in enumerate(value)}
    else:
        return {"": value}
    return {
        f"{key}.{name}" if name else key: leaf
        for key, entry in rows.items()
        for name, leaf in flat(entry, without).items()
    }


def key_paths(value: Any, data: Collection[str] = ()) -> list[str]:
    """Every key of nested JSON by its path, sorted; entries of a list are taken together.

    Args:
        value: an object.
        data: keys of mappings whose own keys are data, such as names of tensors: these become ``*``.

    Example:
        >>> key_paths({"a": [{"b": 1}, {"c": 2}], "d": {"x": 1, "y": 2}}, data=["d"])
        ['a', 'a[].b', 'a[].c', 'd', 'd.*']
    """
    return sorted(set(_key_paths(value, "", data)))


def _key_paths(value: Any, before: str, data: Collection[str]) -> Iterator[str]:
    if isinstance(value, list):
        for entry in value:
            yield from _key_paths(entry, f"{before}[]", data)
    elif isinstance(value, Mapping):
        is_data = before.rpartition(".")[2] in data
        for key, entry in value.items():
            path = f"{before}.{'*' if is_data else key}".removeprefix(".")
            yield path
            yield from _key_paths(entry, path, data)


def sha256(content: bytes) -> str:
    """The SHA-256 as hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def generated_text(num_words: int, seed: int = 1) -> str:
    """Words of small letters drawn by a linear congruential generator, the same on every machine.

    Words recur, as in a language: there are sixty-four, and the first ones are frequent.
    """
    state = seed

    def draw(below: int) -> int:
        nonlocal state
        state = (1_103_515_245 * state + 12_345) % 2**31
        return (state >> 16) % below

    vocabulary = ["".join(chr(ord("a") + draw(26)) for _ in range(1 + draw(8))) for _ in range(64)]
    return " ".join(vocabulary[draw(1 + draw(64))] for _ in range(num_words)) + "\n"


def overwrite_weights(folder: str) -> None:
    """Put generated numbers in place of the weights of a Hugging Face directory.

    The last bits of a drawn weight are the compiler's: they differ between the flags of the tests and those of users.
    These are multiples of 2^-17, computed with integers, of about the size that a width of 32 wants: attention is far
    from uniform, and scales of norms are not 1.
    """
    path = Path(folder) / "model.safetensors"
    tensors = {name: _generated(name, tensor.shape) for name, tensor in load_file(path).items()}
    save_file(tensors, path, {"format": "pt"})


def _generated(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers between -0.25 and 0.25, or 0.75 and 1.25 for a norm's scale, by splitmix64 of the name and the place."""
    z = (np.arange(np.prod(shape), dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()) << 20)) * np.uint64(
        0x9E3779B97F4A7C15
    )
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    numerators = (z >> np.uint64(48)).astype(np.int64) - 2**15
    is_scale = len(shape) == 1 and name.endswith("weight")
    return (np.float32(is_scale) + numerators.astype(np.float32) / np.float32(2**17)).reshape(shape)
