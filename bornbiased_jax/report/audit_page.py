"""An audit as one page: the findings, the lineage graph, the runs."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

import bornbiased_jax
from bornbiased_jax.lineage.audit.finding import INFORMATION, TITLES
from bornbiased_jax.report import figures
from bornbiased_jax.report.page import Section, render
from bornbiased_jax.report.tables import Panel, Row, Table

# Runs drawn at most: a figure of more rows is not read.
_MOST_RUNS = 40


def draw_audit(report: Mapping[str, Any], *, command: Sequence[str] = ()) -> str:
    """Render the page of one audit, as a text of HTML without outside references.

    Args:
        report: what ``bornbiased audit --json`` writes.
        command: the words of the command line that made it.
    """
    # The graph, where there is one.
    panels = []
    with figures.style():
        graph = lineage_graph(report)
        if graph is not None:
            panels.append(
                Panel(
                    graph,
                    "Checkpoints by run and order of steps. Lines: shared births of neighbours and with the earliest "
                    "steps, or copies, orange between runs; an arrow where a run's record gives the direction. "
                    "Orange circles: named by a finding.",
                )
            )
    defects = [finding for finding in report["findings"] if finding["kind"] not in INFORMATION]
    # Title and headline: the number of findings, and each kind with its count.
    count = f"{len(defects)} finding{'s' if len(defects) != 1 else ''}"
    kinds = Counter(finding["kind"] for finding in defects)
    named = [f"{TITLES[kind].lower()} ({kinds[kind]})" for kind in TITLES if kind in kinds]
    headline = f"Against the labels speak: {', '.join(named)}." if named else "Nothing speaks against the labels."
    section = Section(
        name="audit",
        title="Clean" if report["clean"] else count,
        paper="",
        description=f"{len(report['checkpoints'])} checkpoints; {report['basis']}.\n\nA test controls false ties, "
        "never false differences: no shared birth found is not a different birth. Ties have no direction of their own.",
        command=shlex.join(command),
        scale="",
        headline=headline,
        tables=[_findings(report["findings"])] if report["findings"] else [],
        panels=panels,
        record={
            "settings": {"source": report["source"]},
            "provenance": {"version": bornbiased_jax.__version__},
            **report,
        },
    )
    return render("What a folder of checkpoints holds", str(report["source"]), [section])


def lineage_graph(report: Mapping[str, Any]) -> Figure | None:
    """Draw checkpoints as points, runs as rows, edges as lines; None where there are none, or too many runs."""
    rows = {run: index for index, run in enumerate(dict.fromkeys(row["run"] for row in report["checkpoints"]))}
    if not rows or len(rows) > _MOST_RUNS:
        return None
    order = sorted({row["step"] if row["step"] is not None else -1 for row in report["checkpoints"]})
    # Places: columns by step, rows by run.
    at = {
        row["name"]: (order.index(row["step"] if row["step"] is not None else -1), rows[row["run"]])
        for row in report["checkpoints"]
    }
    figure, ax = figures.new(width=max(4.0, 1.6 + 0.42 * len(order)), height=max(1.8, 1.0 + 0.5 * len(rows)))
    # Edges, bent where they would cross the points of their own row.
    for edge in report["graph"]["edges"]:
        ends = (edge["from"], edge["to"]) if edge["from"] else edge["between"]
        (x0, y0), (x1, y1) = (at[name] for name in ends)
        bend = 0.0 if y0 != y1 or abs(x1 - x0) <= 1 else -0.25
        arrow = {
            "arrowstyle": "->" if edge["from"] else "-",
            "color": figures.BASELINE if y0 != y1 else figures.MEASURED,
            "alpha": 0.45,
            "connectionstyle": f"arc3,rad={bend}",
        }
        ax.annotate("", (x1, y1), (x0, y0), arrowprops=arrow)
    defects = [finding for finding in report["findings"] if finding["kind"] not in INFORMATION]
    # Points, those of a finding in their own color.
    named = {name for finding in defects for name in finding["subjects"]}
    for wrong in (False, True):
        points = [place for name, place in at.items() if (name in named) == wrong]
        if points:
            colour = figures.BASELINE if wrong else figures.MEASURED
            x, y = (list(values) for values in zip(*points, strict=True))
            figures.points(ax, x, y, name="named by a finding" if wrong else "", colour=colour)
    ax.set_xticks(range(len(order)), ["no step" if step < 0 else f"{step:,}" for step in order], rotation=60)
    ax.set_yticks(range(len(rows)), [run or "(the folder)" for run in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    figures.label(ax, "step", "run")
    figures.legend(ax)
    return figure


def _findings(findings: Sequence[Mapping[str, Any]]) -> Table:
    """Tabulate findings in the order of a report."""
    order = list(TITLES)
    rows = sorted(findings, key=lambda finding: order.index(finding["kind"]))
    return Table(
        title="Findings",
        settings=["kind", "what", "p"],
        quantities=[],
        rows=[
            Row(
                [row["kind"], row["text"], "—" if row["p_value"] is None else f"{row['p_value']:.2g}"],
                {},
                configuration="ours",
            )
            for row in rows
        ],
        note="p after Holm's correction over the audit.",
    )
