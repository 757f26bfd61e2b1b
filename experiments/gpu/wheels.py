"""What must be carried to a machine without registries: distributions with their pinned versions, for Python 3.12."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bornbiased_jax.errors import InputError
from experiments.gpu.drive import ROOT

CONSTRAINTS = ROOT / "constraints.txt"
PYTHON = {
    "python_version": "3.12", "python_full_version": "3.12.3", "platform_machine": "x86_64", "sys_platform": "linux",
    "platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}  # fmt: skip
"""The machine that is asked for, as markers name it."""
CUDA = ("jax-cuda13-plugin", "jax-cuda13-pjrt")
"""Of JAX for an NVIDIA GPU, beside the libraries of CUDA itself, which are the machine's."""


def pins(path: Path = CONSTRAINTS) -> dict[str, str]:
    """Canonical name -> version of every pin that holds for that machine; those of CUDA follow JAX's.

    Raises:
        InputError: there is no such file: this is an installed package, not a checkout.
    """
    if not path.is_file():
        raise InputError(f"{path.name} is not beside the package: run this from a checkout of the repository")
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        text = line.partition("#")[0].strip()
        if text:
            row = Requirement(text)
            if _holds(row.marker):
                (exact,) = row.specifier
                found[canonicalize_name(row.name)] = exact.version
    return found | {name: found["jax"] for name in CUDA}


def closure(roots: Iterable[Requirement]) -> Iterator[str]:
    """Canonical names of all that some requirements need on that machine, as far as what is installed here knows."""
    seen: set[tuple[str, str]] = set()
    waiting = [(row, "") for row in roots]
    while waiting:
        row, extra = waiting.pop()
        if not _holds(row.marker, extra):
            continue
        name = canonicalize_name(row.name)
        for wanted in ("", *row.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                try:
                    below = metadata.requires(row.name) or ()
                except metadata.PackageNotFoundError:
                    below = ()
                waiting += [(Requirement(line), wanted) for line in below]
    yield from sorted({name for name, _ in seen})


def _holds(marker: Marker | None, extra: str = "") -> bool:
    return marker is None or marker.evaluate({**PYTHON, "extra": extra})


def project() -> list[Requirement]:
    """What the project itself requires at run time."""
    import tomllib

    with (ROOT / "pyproject.toml").open("rb") as stream:
        return [Requirement(line) for line in tomllib.load(stream)["project"]["dependencies"]]


def wheels(there: Iterable[str] = ()) -> list[str]:
    """``NAME==VERSION`` of every distribution that the steps need and the machine lacks.

    Args:
        there: what the machine has, a distribution a line: names, or lines of ``pip list --format=freeze``.

    Raises:
        InputError: a distribution has no pin.
    """
    lines = (line.partition("#")[0].strip() for line in there)
    have = {canonicalize_name(Requirement(line).name) for line in lines if line}
    known = pins()
    needed = [name for name in (*closure(project()), *CUDA) if name not in have]
    if unpinned := [name for name in needed if name not in known]:
        raise InputError(f"{', '.join(unpinned)} has no pin: add it to constraints.txt")
    return [f"{name}=={known[name]}" for name in needed]
