"""What an audit finds: one kind, the checkpoints in question, a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Kind = Literal[
    "duplicate",
    "near-duplicate",
    "gap",
    "break",
    "parentage",
    "inconclusive",
    "shared-birth",
    "repeats",
    "init-law",
    "one-per-run",
    "unreadable",
]
INFORMATION: tuple[Kind, ...] = ("inconclusive", "shared-birth")
"""Kinds that a reader should know of, and that are no defect."""
TITLES: dict[Kind, str] = {
    "duplicate": "Duplicates",
    "near-duplicate": "Duplicates up to signed zeros or number format",
    "gap": "Steps missing from the grid",
    "break": "Breaks in a trajectory",
    "parentage": "Not from its own birth",
    "repeats": "Births that repeat themselves",
    "init-law": "Births that contradict their configuration",
    "one-per-run": "One checkpoint a run, by their names",
    "unreadable": "Not readable",
    "shared-birth": "Shared births (no defect)",
    "inconclusive": "Not decided (no defect)",
}
"""Headings, in the order of a report."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One finding.

    Attributes:
        kind: of what kind.
        subjects: names of the checkpoints in question; of a gap, those that are missing.
        text: a sentence or two.
        p_value: after Holm's correction over the whole audit; None where no test was needed.
        nearest_scheme: of an initialization, the named schemes that draw each group so.
    """

    kind: Kind
    subjects: tuple[str, ...]
    text: str
    p_value: float | None = None
    nearest_scheme: Mapping[str, tuple[str, ...]] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON has it."""
        values = {"kind": self.kind, "subjects": list(self.subjects), "text": self.text, "p_value": self.p_value}
        if self.nearest_scheme is None:
            return values
        return {**values, "nearest_scheme": {group: list(names) for group, names in self.nearest_scheme.items()}}


def is_clean(findings: Iterable[Finding]) -> bool:
    """Tell whether nothing was found but information."""
    return all(finding.kind in INFORMATION for finding in findings)


def listed(names: Iterable[str], most: int = 4) -> str:
    """Join names in a sentence: all of a few, the first of many."""
    items = list(names)
    if len(items) > most:
        return f"{', '.join(items[: most - 1])} and {len(items) - most + 1} more"
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 2 else items)
