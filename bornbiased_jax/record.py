"""What a number came from: provenance for records, with the wall time and the peak memory measured."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import hashlib
import json
import math
import os
import platform
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TypedDict

import jax
import numpy as np

import bornbiased_jax
from bornbiased_jax import hardware
from bornbiased_jax.errors import InputError
from bornbiased_jax.keys import PRNG_IMPL

try:
    # JAX has no public name for it.
    from jax._src.xla_bridge import backends_are_initialized
except ImportError:  # pragma: no cover - a later JAX

    def backends_are_initialized() -> bool:
        """Take the backend as started: a record then names its devices, which starts it."""
        return True


REVISION_VARIABLE = "BORNBIASED_REVISION"
"""Names the commit of a copy of the source that has no git folder: 40 hexadecimal digits."""

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "scipy")
_FLAGS = (
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_enable_x64",
    "jax_threefry_partitionable",
)
# Off by default; draws name their generator and its layout themselves.
_FLAGS_OF_NUMBERS = ("jax_enable_x64", "jax_default_matmul_precision")


@dataclasses.dataclass
class Measurement:
    """Time and memory of one block of work.

    Attributes:
        wall_time_s: elapsed time; while the block runs, the time so far.
        peak_memory_bytes: the largest resident set of this process, in bytes (see ``peak_memory_scope``).
        peak_memory_scope: "block" where the kernel lets the peak be reset at the block's beginning
            (Linux), else "process": the peak since the process began.
        children_peak_memory_bytes: the largest resident set of any finished child process. None where one that ended
            before the block had more than this process: the system tells the largest of all alone.
    """

    peak_memory_bytes: int = 0
    peak_memory_scope: str = "process"
    children_peak_memory_bytes: int | None = 0
    _start: float = dataclasses.field(default_factory=time.perf_counter, repr=False)
    _end: float | None = dataclasses.field(default=None, repr=False)

    @property
    def wall_time_s(self) -> float:
        """Seconds since the block began, until its end once it has ended."""
        return (time.perf_counter() if self._end is None else self._end) - self._start

    def to_dict(self) -> dict[str, object]:
        """Return the measurement as JSON-ready values."""
        return {
            "wall_time_s": round(self.wall_time_s, 3),
            "peak_memory_bytes": self.peak_memory_bytes,
            "peak_memory_scope": self.peak_memory_scope,
            "children_peak_memory_bytes": self.children_peak_memory_bytes,
        }


# The measurements under way, outermost first: resetting the kernel's peak for an inner block must
# not hide an earlier peak from the outer ones.
_open: list[Measurement] = []


@contextlib.contextmanager
def measure() -> Iterator[Measurement]:
    """Measure the wall time and the peak memory of a block. Blocks may nest; threads share one peak.

    The values are complete when the block ends, also when it ends with an exception.
    """
    _note_peak()
    measurement = Measurement(peak_memory_scope="block" if _reset_peak() else "process")
    children_before = _max_rss(resource.RUSAGE_CHILDREN)
    _open.append(measurement)
    try:
        yield measurement
    finally:
        measurement._end = time.perf_counter()
        _note_peak()
        _open.remove(measurement)
        children_peak = _max_rss(resource.RUSAGE_CHILDREN)
        is_hidden = children_peak == children_before > measurement.peak_memory_bytes
        measurement.children_peak_memory_bytes = None if is_hidden else children_peak


def _note_peak() -> None:
    peak = _peak()
    for measurement in _open:
        measurement.peak_memory_bytes = max(measurement.peak_memory_bytes, peak)


def _peak() -> int:
    """Return the largest resident set of this process in bytes, since its start or since the last reset."""
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return _max_rss(resource.RUSAGE_SELF)


def _max_rss(who: int) -> int:
    # Kibibytes on Linux and the BSDs, bytes on macOS.
    return resource.getrusage(who).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _reset_peak() -> bool:
    """Ask Linux to forget the peak so far; False where that cannot be done."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def provenance(
    *,
    config: object = None,
    seeds: Sequence[int] | None = None,
    precision: str | None = None,
    measurement: Measurement | None = None,
    starts_backend: bool = True,
    **extra: object,
) -> dict[str, object]:
    """Collect everything a reader needs to get the same number again, as JSON-ready values.

    Args:
        config: the model's configuration, or any mapping or dataclass of settings.
        seeds: the seeds that were run.
        precision: the precision of the computation, where it was chosen ("float32 highest", …).
        measurement: what :func:`measure` measured.
        starts_backend: start JAX's backend to name its devices; else those of a command that never computed are None.
        extra: further keys, JSON-ready after :func:`jsonable`.

    The machine's name, its user and its paths are left out on purpose.
    """
    devices = jax.devices() if starts_backend or backends_are_initialized() else []
    settings = {"config": config, "seeds": seeds, "precision": precision}
    record: dict[str, object] = {
        **{name: jsonable(value) for name, value in settings.items() if value is not None},
        "version": bornbiased_jax.__version__,
        "git": git_revision(),
        "versions": library_versions(),
        "platform": {"system": platform.system(), "machine": platform.machine(), **cpu()},
        "device": {
            "platform": devices[0].platform if devices else None,
            "kind": devices[0].device_kind if devices else None,
            "count": len(devices) or None,
            "processes": jax.process_count() if devices else None,
        },
        "prng": PRNG_IMPL,
        "flags": {name: jsonable(getattr(jax.config, name)) for name in _FLAGS},
        "timestamp": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **(measurement.to_dict() if measurement else {}),
    }
    # Where the device counts its memory (a GPU).
    if devices and (peak := hardware.peak_device_memory()) is not None:
        record["device_peak_memory_bytes"] = peak
    record.update(jsonable(extra))
    return record


def with_provenance(value: Mapping[str, object], command: Sequence[str]) -> dict[str, object]:
    """Add the command line that makes a result, and the provenance of a call made now where it has none."""
    entries = dict(value)
    if command:
        entries["command"] = shlex.join(command)
    if "provenance" not in entries:
        entries["provenance"] = provenance(starts_backend=False)
    return entries


OF_THE_MACHINE = (
    "timestamp", "wall_s", "wall_time", "seconds", "peak_memory", "tokens_per_second", "timing", "cost",
)  # fmt: skip
"""Parts of the names of what differs between two runs of the same: times, memory and rates."""


def lasting(value: object) -> Any:  # noqa: ANN401 (JSON of any form)
    """Drop what differs between two equal runs on the same machine from a record, by the names of its keys.

    Example:
        >>> lasting({"result": {"share": 0.5, "wall_s": 1.25}, "provenance": {"timestamp": "2026"}})
        {'result': {'share': 0.5}, 'provenance': {}}
    """
    if isinstance(value, Mapping):
        entries = {
            name: entry for name, entry in value.items() if not any(part in str(name) for part in OF_THE_MACHINE)
        }
        return {name: lasting(entry) for name, entry in entries.items()}
    return [lasting(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def flat(value: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten mappings within an object.

    >>> flat({"seed": 0, "theory": {"low": 0.1, "inside": True}})
    {'seed': 0, 'theory.low': 0.1, 'theory.inside': True}
    """
    entries: dict[str, object] = {}
    for name, entry in value.items():
        entries |= flat(entry, f"{prefix}{name}.") if isinstance(entry, Mapping) else {f"{prefix}{name}": entry}
    return entries


def content_digest(record: Mapping[str, object]) -> str:
    """Compute the SHA-256 of what lasts of a record, as JSON with sorted names and no spaces: a commitment to it.

    The record's own keys "digest" and "verified" are left out: a later rerun does not change the commitment.
    """
    content = lasting({name: entry for name, entry in record.items() if name not in ("digest", "verified")})
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Verification(TypedDict):
    """Field ``verified`` of a record: a later rerun, which leaves the commit and the digest that made the record."""

    commit: str
    scale: str
    command: str
    largest_difference: float


def largest_difference(first: object, second: object, place: str = "result") -> float:
    """Return the largest difference of two results' numbers, relative to the larger one; times and memory are left out.

    Raises:
        InputError: they differ in anything but numbers, with the first such place.

    Example:
        >>> largest_difference({"share": [0.5, 4], "wall_s": 1.0}, {"share": [0.25, 4], "wall_s": 9.0})
        0.5
    """
    first, second = lasting(first), lasting(second)
    pairs: list[tuple[object, object, object]] = []
    if isinstance(first, dict) and isinstance(second, dict) and first.keys() == second.keys():
        pairs = [(name, first[name], second[name]) for name in first]
    elif isinstance(first, list) and isinstance(second, list) and len(first) == len(second):
        pairs = list(zip(range(len(first)), first, second, strict=True))
    elif not isinstance(first, bool) and isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return 0.0 if first == second else abs(first - second) / max(abs(first), abs(second))
    elif first != second:
        raise InputError(f"the results differ at {place}, not in a number alone: run the experiment again at its scale")
    return max((largest_difference(left, right, f"{place}.{key}") for key, left, right in pairs), default=0.0)


def computing_device() -> str:
    """Return the platform that computes ("cpu", "gpu"), and the flags of JAX that move numbers where they were set."""
    flags = {name: getattr(jax.config, name) for name in _FLAGS_OF_NUMBERS}
    return ", ".join([jax.default_backend(), *(f"{name}={value}" for name, value in flags.items() if value)])


def cpu() -> dict[str, object]:
    """Return the processor's model, where the system tells it, and the cores that this process may use."""
    model = platform.processor()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    return {"cpu": model or "unknown", "cores": hardware.cores()}


@functools.cache
def _installed_versions() -> dict[str, str]:
    """Read versions once: to look them up takes longer than many a command computes."""
    return {name: metadata.version(name) for name in LIBRARIES}


def library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that numbers depend on."""
    return {"python": platform.python_version(), **_installed_versions()}


def git_revision() -> dict[str, object] | None:
    """Return the commit this package's source is at and whether it was changed since, or None outside git.

    A package installed into an environment that happens to lie inside somebody's repository is not
    taken for a part of that repository. A copy of the source without git, or in a checkout of another commit, says what
    ``$BORNBIASED_REVISION`` says, which whoever copied a clean tree sets; a record's digest of the code tells whether
    that was so. A checkout without changes knows better.
    """
    package = Path(bornbiased_jax.__file__).parent
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return environment_revision()
    revision = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    if revision is None or changes is None:
        return None
    stated = environment_revision() if changes else None
    return stated or {"revision": revision, "dirty": bool(changes)}


def environment_revision() -> dict[str, object] | None:
    """Return the commit that the environment names, or None where it names none."""
    revision = os.environ.get(REVISION_VARIABLE, "")
    return {"revision": revision, "dirty": False} if re.fullmatch("[0-9a-f]{40}", revision) else None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        process = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return process.stdout.strip()


def jsonable(value: object) -> Any:  # noqa: ANN401 (JSON of any form)
    """Convert a value to JSON's own types: dataclasses, arrays, NumPy scalars, paths and tuples.

    Raises:
        InputError: a number is NaN or infinite, or a type has no JSON form; the sentence says which.
    """
    if value is None or isinstance(value, (str, bool)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return jsonable(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): jsonable(entry) for key, entry in value.items()}
    if isinstance(value, (set, frozenset)):
        return jsonable(sorted(value))
    if isinstance(value, (list, tuple, range)):
        return [jsonable(entry) for entry in value]
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        return jsonable(np.asarray(value).tolist())
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"a record holds {value}, which JSON has no form for: store null and say why")
        return float(value)
    if isinstance(value, Path):
        return str(value)
    raise InputError(f"a record holds a {type(value).__name__}, which has no JSON form: convert it first")
