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


class FindingRow(TypedDict):
    """JSON of a :class:`Finding`."""

    kind: FindingKind
    subjects: list[str]
    text: str
    p_value: float | None
    nearest_scheme: NotRequired[dict[str, list[str]]]


class MomentsRow(TypedDict):
    """JSON of the moments of a tensor of an initialization."""

    tensor: str
    entries: int
    mean: float
    std: float
    kurtosis: float


class CheckpointRow(TypedDict):
    """JSON of a checkpoint: of a listing the digests of its files, else what was read of it."""

    name: str
    run: str
    step: int | None
    files: NotRequired[dict[str, str]]
    opened: NotRequired[bool]
    note: NotRequired[str]
    model: NotRequired[str | None]
    file_digest: NotRequired[str | None]
    digests: NotRequired[Mapping[str, str]]
    law: NotRequired[list[MomentsRow]]


class PairRow(TypedDict):
    """JSON of a tested pair."""

    checkpoints: list[str]
    log10_p: float | None
    log10_p_adjusted: float | None
    z: float | None
    tied: bool
    identical: bool
    reason: str
    p_value: float | None


class RunRow(TypedDict):
    """JSON of a run; of a listing it is not known who shares its data."""

    name: str
    steps: list[int]
    data: Mapping[str, object] | str
    shares_data_with: NotRequired[list[str] | str]


# A pair that shares an initialization; from one to the other where the record of a run gives the direction.
Edge = TypedDict(
    "Edge",
    {
        "between": list[str],
        "from": str | None,
        "to": str | None,
        "evidence": str,
        "direction": str | None,
        "p_value": float | None,
        "log10_p": float | None,
    },
)


class Graph(TypedDict):
    """JSON of the lineage graph."""

    nodes: list[str]
    edges: list[Edge]


class AuditResult(TypedDict):
    """JSON of an audit; without weights there is no level."""

    clean: bool
    findings: list[FindingRow]
    checkpoints: list[CheckpointRow]
    pairs: list[PairRow]
    runs: list[RunRow]
    graph: Graph
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
