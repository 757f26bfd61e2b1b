"""Findings of an audit, each of one kind with the checkpoints in question and a sentence, and their report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Literal, NotRequired

from typing_extensions import TypedDict

Kind = Literal[
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
INFORMATION: tuple[Kind, ...] = ("inconclusive", "shared-birth", "idle-step")
"""Kinds that a reader should know of, and that are no defect."""
TITLES: dict[Kind, str] = {
    "duplicate": "Duplicates",
    "near-duplicate": "Duplicates up to signed zeros or number format",
    "gap": "Steps missing from the grid",
    "break": "Breaks in a trajectory",
    "parentage": "Not from its own initialization",
    "repeats": "Initializations that repeat themselves",
    "init-law": "Initializations that contradict their configuration",
    "one-per-run": "One checkpoint a run, by their names",
    "unreadable": "Not readable",
    "shared-birth": "Shared initializations (no defect)",
    "idle-step": "Steps that changed no weight (no defect)",
    "inconclusive": "Not decided (no defect)",
}
"""Headings, in the order of a report."""


class FindingRow(TypedDict):
    """JSON of a finding."""

    kind: Kind
    subjects: list[str]
    text: str
    p_value: float | None
    nearest_scheme: NotRequired[dict[str, list[str]]]


class PairRow(TypedDict):
    """JSON of a tested pair."""

    checkpoints: list[str]
    tied: bool
    identical: bool
    p_value: float | None
    log10_p: float | None
    log10_p_adjusted: float | None
    z: float | None
    reason: str


# JSON of a run: its steps, and which other runs had the same data.
RunRow = TypedDict(  # noqa: UP013 (a class would need the name of a frozen key)
    "RunRow",
    {
        "name": str,
        "steps": list[int],
        "data": Mapping[str, object] | str,
        "shares_data_with": NotRequired[list[str] | str],
    },
)


class AuditResult(TypedDict):
    """JSON of an audit; without weights there is no level."""

    clean: bool
    findings: list[FindingRow]
    checkpoints: list[dict[str, object]]
    pairs: list[PairRow]
    runs: list[RunRow]
    graph: dict[str, list[str] | list[dict[str, object]]]
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

    kind: Kind
    subjects: tuple[str, ...]
    text: str
    p_value: float | None = None
    nearest_scheme: Mapping[str, tuple[str, ...]] | None = None

    def to_dict(self) -> FindingRow:
        """Return the finding as JSON has it."""
        row = FindingRow(kind=self.kind, subjects=list(self.subjects), text=self.text, p_value=self.p_value)
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


def write_report(audit: AuditResult) -> str:
    """Write the report of what an audit returns.

    >>> print(write_report({"source": "models", "clean": True, "findings": [], "checkpoints": [], "pairs": [],
    ...                     "runs": [], "basis": "digests", "graph": {}}).splitlines()[0])
    ## Audit of `models`: clean
    """
    # The heading: how many defects, of how many checkpoints and runs.
    findings = audit["findings"]
    defects = [finding for finding in findings if finding["kind"] not in INFORMATION]
    count = "clean" if audit["clean"] else f"{len(defects)} finding{'s' if len(defects) != 1 else ''}"
    tested = sum(pair["p_value"] is not None for pair in audit["pairs"])
    lines = [
        f"## Audit of `{audit['source']}`: {count}",
        "",
        f"{len(audit['checkpoints'])} checkpoints of {len(audit['runs'])} runs; {audit['basis']}."
        + (f" {tested} pairs tested, family-wise level {audit['alpha']:g} (Holm)." if tested else ""),
    ]
    # A section for each kind of finding.
    for kind, title in TITLES.items():
        members = [finding for finding in findings if finding["kind"] == kind]
        if members:
            lines += ["", f"### {title}", ""]
            lines += [f"- {finding['text']}{_p(finding['p_value'])}" for finding in members]
    # A table of runs, their steps, and who shares their data.
    if audit["runs"]:
        lines += ["", "### Runs", "", "| run | steps | shares data with |", "| --- | --- | --- |"]
        for run in audit["runs"]:
            steps = run["steps"]
            span = f"{len(steps)} from {steps[0]} to {steps[-1]}" if len(steps) > 1 else str(steps[0])
            sharing = run.get("shares_data_with", "not known")
            sharing_text = sharing if isinstance(sharing, str) else ", ".join(sharing) or "none here"
            lines.append(f"| {run['name'] or '(the folder)'} | {span} | {sharing_text} |")
    return "\n".join(lines) + "\n"


def _p(value: float | None) -> str:
    if value is None:
        return ""
    return " (p < 1e-300)" if value < 1e-300 else f" (p = {value:.2g})"
