"""What this installation has: versions, devices, memory, the cache, and what each extra lacks. Nothing is changed."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import jax
from packaging.requirements import Requirement
from typing_extensions import TypedDict

import bornbiased_jax
from bornbiased_jax import hardware
from bornbiased_jax.record import LIBRARIES
from bornbiased_jax.text.cache import CACHE_VARIABLE, cache_dir

DISTRIBUTION = "bornbiased-jax"
EXTRAS = {
    "cuda": "computing on an NVIDIA GPU",
    "torch": "`parity`, the comparison with transformers",
    "sentencepiece": "tokenizers in SentencePiece's own format",
    "parquet": "`--data` from Parquet files",
    "hf": "`--data hf:NAME`, data sets of the Hugging Face hub",
    "wandb": "`--wandb`, metrics in Weights & Biases",
    "hub": "`hf:OWNER/NAME`, checkpoints of the Hugging Face hub by name",
    "slurm": "`--engine slurm`, chunks as an array of a Slurm cluster",
    "ray": "`--engine ray`, chunks on a Ray cluster",
    "dev": "`make test`",
    "docs": "`make docs`, the documentation's site",
    "mutants": "`make mutants`, faults planted in the code",
    "workflows": "`make actionlint`, the check of the workflows",
}
"""The extras of the package and what each is needed for."""


class Device(TypedDict):
    """A device of JAX."""

    kind: str
    platform: str
    memory_bytes: int | None


# "from" is the variable that sets the folder, None where none does.
Cache = TypedDict("Cache", {"folder": str, "from": str | None, "files": int, "bytes": int, "writable": bool})
Extra = TypedDict("Extra", {"for": str, "missing": list[str], "installed": bool})


class Installation(TypedDict):
    """What an installation has, JSON-ready."""

    version: str
    python: str
    libraries: dict[str, str | None]
    """Versions by name."""
    backend: str | None
    devices: list[Device]
    cores: int
    memory_bytes: float | None
    """What may still be taken."""
    cache: Cache
    extras: dict[str, Extra]
    problems: list[str]
    """A sentence each."""


def diagnose() -> Installation:
    """Collect the facts."""
    cache = _cache(cache_dir())
    problems = []
    try:
        devices, backend = _devices()
    except RuntimeError as error:
        # The platform that the environment asks for is not there.
        devices, backend = [], None
        problems.append(f"JAX has no device: {' '.join(str(error).split())}")
    extras = _extras()
    if not extras:
        problems.append(f"{DISTRIBUTION} is not installed as a package: `pip install -e .` lets its extras be checked")
    if not cache["writable"]:
        problems.append(f"{cache['folder']} cannot be written: set {CACHE_VARIABLE} to a folder that can")
    return {
        "version": bornbiased_jax.__version__,
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in (*LIBRARIES, "tokenizers", "safetensors")},
        "backend": backend,
        "devices": devices,
        "cores": hardware.cores(),
        "memory_bytes": hardware.available_memory(),
        "cache": cache,
        "extras": extras,
        "problems": problems,
    }


def missing(requirement: Requirement, among: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield the requirements, extras included, that are not met: "a>=2.7", or "a>=2.7 (2.1 is here)".

    >>> list(missing(Requirement("numpy>=1"))), list(missing(Requirement("no-such-package>=3")))
    ([], ['no-such-package>=3'])
    """
    version = _version(requirement.name)
    required = f"{requirement.name}{requirement.specifier}"
    if version is None:
        yield required
        return
    if not requirement.specifier.contains(version, prereleases=True):
        yield f"{required} ({version} is here)"
    for extra in sorted(requirement.extras):
        name = f"{requirement.name}[{extra}]"
        if name not in among:
            for below in _required(requirement.name, extra):
                yield from missing(below, among | {name})


def _required(distribution: str, extra: str) -> list[Requirement]:
    """Return the requirements that an extra adds to those of its distribution."""
    requirements = [Requirement(line) for line in metadata.requires(distribution) or ()]
    return [
        row
        for row in requirements
        if row.marker is not None and row.marker.evaluate({"extra": extra}) and not row.marker.evaluate({"extra": ""})
    ]


def _extras() -> dict[str, Extra]:
    if _version(DISTRIBUTION) is None:
        return {}
    extras: dict[str, Extra] = {}
    for name in metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ():
        lacking = [line for row in _required(DISTRIBUTION, name) for line in missing(row)]
        extras[name] = {"for": EXTRAS.get(name, ""), "missing": lacking, "installed": not lacking}
    return extras


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> tuple[list[Device], str]:
    return [
        {
            "kind": device.device_kind,
            "platform": device.platform,
            "memory_bytes": (device.memory_stats() or {}).get("bytes_limit"),
        }
        for device in jax.local_devices()
    ], jax.default_backend()


def _cache(folder: Path) -> Cache:
    sizes = []
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append(os.lstat(os.path.join(parent, name)).st_size)
            except OSError:  # removed meanwhile
                continue
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    return {
        "folder": str(folder),
        "from": CACHE_VARIABLE if os.environ.get(CACHE_VARIABLE) else None,
        "files": len(sizes),
        "bytes": sum(sizes),
        "writable": existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
    }
