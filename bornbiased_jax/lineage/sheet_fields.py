"""Which fields of their configurations two models have in common: by ``config.json``, or by this package's settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from bornbiased_jax import io
from bornbiased_jax.errors import InputError

CONFIG = "config.json"
Fields = Mapping[str, object]
"""Values of a configuration by the names of its fields; of objects inside it by names with dots."""


class FieldComparison(NamedTuple):
    """Names of the fields of two configurations, sorted.

    Attributes:
        equal, different: fields that both have.
        base_alone, suspect_alone: fields of one configuration; what the other model takes for them is not said there.
    """

    equal: tuple[str, ...]
    different: tuple[str, ...]
    base_alone: tuple[str, ...]
    suspect_alone: tuple[str, ...]

    @property
    def fraction(self) -> float | None:
        """Equal fields, as a fraction of those that both have; None without any."""
        count = len(self.equal) + len(self.different)
        return len(self.equal) / count if count else None


def compare_fields(base: Fields, suspect: Fields) -> FieldComparison:
    """Compare two configurations field by field.

    >>> compare_fields({"layers": 2, "eps": 1e-6, "bias": False}, {"layers": 2, "eps": 1e-5, "rope": None})
    FieldComparison(equal=('layers',), different=('eps',), base_alone=('bias',), suspect_alone=('rope',))
    """
    shared = sorted(base.keys() & suspect.keys())
    return FieldComparison(
        tuple(name for name in shared if base[name] == suspect[name]),
        tuple(name for name in shared if base[name] != suspect[name]),
        tuple(sorted(base.keys() - suspect.keys())),
        tuple(sorted(suspect.keys() - base.keys())),
    )


def config_fields(files: Sequence[Path]) -> Fields | None:
    """Read the fields of ``config.json`` next to weights; None where there is none that can be read.

    Args:
        files: of the weights; of several folders the first one's configuration is taken.
    """
    for folder in dict.fromkeys(path.parent for path in files):
        place = folder / CONFIG
        if place.is_file():
            try:
                content = io.read_json(place)
            except InputError:
                return None
            return _flat(content) if isinstance(content, dict) else None
    return None


def _flat(value: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Name what lies in objects inside an object: {"text_config": {"bias": False}} has the field text_config.bias."""
    fields: dict[str, object] = {}
    for name, entry in value.items():
        if isinstance(entry, dict) and entry:
            fields |= _flat(entry, f"{prefix}{name}.")
        else:
            fields[f"{prefix}{name}"] = entry
    return fields
