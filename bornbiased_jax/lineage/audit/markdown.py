"""The report of an audit as Markdown, to be pasted into an issue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bornbiased_jax.lineage.audit.finding import INFORMATION, TITLES


def write_report(audit: Mapping[str, Any]) -> str:
    """Write the report of what an audit returns.

    >>> print(write_report({"source": "models", "clean": True, "findings": [], "checkpoints": [], "pairs": [],
    ...                     "runs": [], "basis": "digests"}).splitlines()[0])
    ## Audit of `models`: clean
    """
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
    for kind, title in TITLES.items():
        members = [finding for finding in findings if finding["kind"] == kind]
        if members:
            lines += ["", f"### {title}", ""]
            lines += [f"- {finding['text']}{_p(finding['p_value'])}" for finding in members]
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
