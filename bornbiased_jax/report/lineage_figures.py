"""Figures about lineage: z by block and matrix, the null of a test, z by step, checkpoints joined by shared weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bornbiased_jax.lineage.audit.finding import INFORMATION
from bornbiased_jax.report import figures

# Runs drawn at most: a figure of more rows is not read.
_MOST_RUNS = 40
# Colors of z: below 4 a matrix says nothing, for of thousands of unrelated ones few reach it.
_Z = figures.Scale(-40.0, 40.0, gray_below=4.0)
# Names in one column of a legend.
_MOST_NAMES = 16


def module_map(by_module: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Figure | None:
    """Draw z by block (rows, counted from 1) and matrix (columns); None where no matrix of a block has one."""
    z_by_place = {
        (int(block), module): row["z"]
        for row in by_module
        for _, block, module in [split_module(str(row["module"]))]
        if block and row["z"] is not None
    }
    if not z_by_place:
        return None
    modules = list(dict.fromkeys(module for _, module in z_by_place))
    blocks = range(min(block for block, _ in z_by_place), max(block for block, _ in z_by_place) + 1)
    z_LM = np.array([[z_by_place.get((block, module), np.nan) for module in modules] for block in blocks])
    figure, ax = figures.new(width=1.8 + 0.85 * len(modules), height=max(2.2, 1.2 + 0.24 * len(blocks)), ax=ax)
    digits = 0 if len(blocks) <= 40 else None
    labels = [module.replace("/", "\n") for module in modules]
    # One scale for all pairs, so that pages compare.
    figures.heatmap(ax, z_LM, labels, list(blocks), name="z", diverging=True, digits=digits, scale=_Z)
    figures.label(ax, "", "block")
    return figure


def block_map(
    components: Sequence[Mapping[str, Any]],
    pairs: Sequence[Sequence[int]] | None,
    further: Sequence[Mapping[str, Any]] = (),
) -> Figure | None:
    """Draw z of each block by the evidence that decides about it; None where no block has any.

    Args:
        components: rows with "component" ("blocks/3"), "evidence" and "z".
        pairs: blocks of the base and of the suspect that correspond, which label the rows; None names the base's.
        further: blocks in no pair, with the "side" whose "number" it is, "partner" or None, "evidence" and "z".
    """
    z_by_place = {
        (int(row["component"].removeprefix("blocks/")), row["evidence"]): row["z"]
        for row in components
        if row["component"].startswith("blocks/") and row["z"] is not None
    }
    if not z_by_place:
        return None
    partner = {base: suspect for base, suspect in pairs or ()}
    # A row by its numbers in base and suspect, the blocks in no pair last.
    rows: dict[tuple[int | None, int | None], dict[str, float]]
    rows = {(block, partner.get(block)): {} for block in sorted({block for block, _ in z_by_place})}
    for (block, kind), z in z_by_place.items():
        rows[block, partner.get(block)][kind] = z
    for free in further:
        numbers = free["number"], free["partner"]
        base, suspect = numbers if free["side"] == "base" else numbers[::-1]
        rows[base, suspect] = {} if free["partner"] is None else {free["evidence"]: free["z"]}
    kinds = list(dict.fromkeys(kind for row in rows.values() for kind in row))
    z_LK = np.array([[row.get(kind, np.nan) for kind in kinds] for row in rows.values()])
    blocks = list(rows)
    labeling = rows if pairs is not None else [(base,) for base, _ in rows]
    labels = [" – ".join("none" if number is None else str(number) for number in numbers) for numbers in labeling]
    figure, ax = figures.new(width=2.4 + 1.6 * len(kinds), height=max(2.2, 1.2 + 0.24 * len(blocks)))
    digits = 0 if len(blocks) <= 40 else None
    figures.heatmap(ax, z_LK, kinds, labels, name="z", diverging=True, digits=digits, scale=_Z)
    figures.label(ax, "", "block" if pairs is None else "block, base – suspect")
    return figure


def null_figure(histogram: Mapping[str, Any], z: float, ax: Axes | None = None) -> Figure:
    """Draw counts of permuted statistics, in their standard deviations, and the observed one.

    The histogram is one of :func:`bornbiased_jax.stats.permutations.histogram`.
    """
    counts = np.asarray(histogram["counts"], float)
    edges = np.linspace(histogram["low"], histogram["high"], len(counts) + 1)
    figure, ax = figures.new(height=2.6, ax=ax)
    ax.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=figures.MEASURED)
    figures.reference(ax, z, f"observed, z = {z:.1f}".replace("-", "−"), vertical=True)
    room = 0.04 * max(10.0, abs(z))
    ax.set_xlim(min(-5.0, z - room), max(5.0, z + room))
    figures.label(ax, "statistic in standard deviations from its mean", "permutations")
    figures.legend(ax)
    return figure


def split_module(module: str) -> tuple[str, str, str]:
    """Split "blocks/3/mlp/up" into ("blocks", "3", "mlp/up"), and "embed" into ("", "", "embed")."""
    parts = module.split("/", 2)
    return (parts[0], parts[1], parts[2]) if parts[0] == "blocks" and len(parts) == 3 else ("", "", module)


def z_by_step(steps: Sequence[Mapping[str, Any]], ax: Axes | None = None) -> Figure | None:
    """Draw z at each step of a run, a curve for each component; None where no step has any."""
    components = dict.fromkeys(row["component"] for step in steps for row in step["components"])
    figure, ax = figures.new(ax=ax)
    is_drawn = False
    for index, component in enumerate(components):
        points = [
            (step["step"], row["z"])
            for step in steps
            for row in step["components"]
            if row["component"] == component and row["z"] is not None
        ]
        color, dashes = figures.curve_style(index)
        if points:
            x, y = zip(*points, strict=True)
            figures.line(ax, x, y, name=component, color=color, markers=True)
            ax.lines[-1].set_linestyle(dashes)
            is_drawn = True
    # The axes may hold curves of their owner.
    if not is_drawn:
        return None
    figures.count_axis(ax)
    figures.label(ax, "step", "z")
    # So many names hide curves wherever they stand inside.
    if len(components) > len(figures.SERIES):
        columns = -(-len(components) // _MOST_NAMES)
        ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=columns, handlelength=3)
    else:
        figures.legend(ax)
    return figure


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
            color = figures.BASELINE if wrong else figures.MEASURED
            x, y = (list(values) for values in zip(*points, strict=True))
            figures.points(ax, x, y, name="named by a finding" if wrong else "", color=color)
    ax.set_xticks(range(len(order)), ["no step" if step < 0 else f"{step:,}" for step in order], rotation=60)
    ax.set_yticks(range(len(rows)), [figures.short(run) or "(the folder)" for run in rows])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    figures.label(ax, "step", "run")
    figures.legend(ax)
    return figure
