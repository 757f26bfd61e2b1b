"""What a machine without registries needs to run the steps of :mod:`.gpu`, by its pinned names."""

from __future__ import annotations

import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.0"}
CUDA = ("jax-cuda13-plugin", "jax-cuda13-pjrt")


def wheels() -> list[str]:
    """List pinned distributions that the steps need on Linux with Python 3.12, but for CUDA's libraries and PyTorch."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [row for row in map(Requirement, (line for line in lines if line[0] != "#")) if _applies(row)]
    pins = {str(canonicalize_name(row.name)): row.specifier for row in pinned}
    requires = {str(canonicalize_name(dist.name)): dist.requires or () for dist in metadata.distributions()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    waiting = [Requirement(text) for text in (*project["dependencies"], "transformers")]
    # A distribution with each extra that is asked for.
    needed: dict[tuple[str, str], None] = {}
    for row in waiting:  # it grows while it is read
        for key in ((str(canonicalize_name(row.name)), extra) for extra in ("", *row.extras)):
            if key not in needed:
                needed[key] = None
                waiting += [dist for dist in map(Requirement, requires.get(key[0], ())) if _applies(dist, key[1])]
    names = sorted({name for name, _ in needed})
    return [f"{name}{pins[name]}" for name in names] + [f"{name}{pins['jax']}" for name in CUDA]


def _applies(row: Requirement, extra: str = "") -> bool:
    return row.marker is None or row.marker.evaluate({**PYTHON, "extra": extra})
