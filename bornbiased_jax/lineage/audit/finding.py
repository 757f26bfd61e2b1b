"""Findings of an audit, each of one kind with the checkpoints in question and a sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal, NotRequired

from typing_extensions import TypedDict

FindingKind = Literal[
    "duplicate",
    "near-duplicate",
    "gap",
    "break",
    "parentage",
    "inconclusive",
    "shared-birth",
    "idle-step",
    "repeats",
    "init-law",
    "one-per-run",
    "unreadable",
]
INFORMATION: tuple[FindingKind, ...] = ("inconclusive", "shared-birth", "idle-step")
"""Kinds that a reader should know of, and that are no defect."""
AuditRow = dict[str, object]
"""JSON of a checkpoint, a tested pair or an edge."""


class FindingRow(TypedDict):
    """JSON of a :class:`Finding`."""

    kind: FindingKind
    subjects: list[str]
    text: str
    p_value: float | None
    nearest_scheme: NotRequired[dict[str, list[str]]]


class RunRow(TypedDict):
    """JSON of a run; of a listing it is not known who shares its data."""

    name: str
    steps: list[int]
    data: Mapping[str, object] | str
    shares_data_with: NotRequired[list[str] | str]


class AuditResult(TypedDict):
    """JSON of an audit; without weights there is no level."""

    clean: bool
    findings: list[FindingRow]
    checkpoints: list[AuditRow]
    pairs: list[AuditRow]
    runs: list[RunRow]
    graph: dict[str, list[str] | list[AuditRow]]
    source: str
    basis: str
    alpha: NotRequired[float]
    listing: NotRequired[list[FindingRow]]


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

    kind: FindingKind
    subjects: tuple[str, ...]
    text: str
    p_value: float | None = None
    nearest_scheme: Mapping[str, tuple[str, ...]] | None = None

    def to_dict(self) -> FindingRow:
        """Return the finding as JSON has it."""
        row: FindingRow = {
            "kind": self.kind,
            "subjects": list(self.subjects),
            "text": self.text,
            "p_value": self.p_value,
        }
        if self.nearest_scheme is not None:
            row["nearest_scheme"] = {group: list(names) for group, names in self.nearest_scheme.items()}
        return row


def is_clean(findings: Iterable[Finding]) -> bool:
    """Tell whether nothing was found but information."""
    return all(finding.kind in INFORMATION for finding in findings)


def listed(names: Iterable[str], most: int = 4) -> str:
    """Join names in a sentence: all of a few, the first of many."""
    items = list(names)
    if len(items) > most:
        return f"{', '.join(items[: most - 1])} and {len(items) - most + 1} more"
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 2 else items)
