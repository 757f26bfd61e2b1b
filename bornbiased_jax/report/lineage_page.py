"""A verdict as one page: what was decided, where in the weights it shows, and the null it was held against."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import bornbiased_jax
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, from_log10
from bornbiased_jax.report.page import Section, render
from bornbiased_jax.report.tables import Panel, Quantity, Row, Table

# The first keys of a verdict that a reader looks for when the record is opened.
_SETTINGS = ("base", "suspect", "test", "alpha", "num_inputs", "base_digest", "committed", "identity")


def draw_verdict(verdict: Mapping[str, Any], *, command: Sequence[str] = ()) -> str:
    """Render the page of one verdict, as a text of HTML without outside references.

    Args:
        verdict: what ``bornbiased seedprint --json`` writes.
        command: the words of the command line that made it.
    """
    names = [str(verdict.get(side, side)) for side in ("base", "suspect")]
    panels = []
    with figures.style():
        # Where in the weights, and how far from the null.
        heat = module_map(verdict.get("by_module") or [])
        if heat is not None:
            panels.append(
                Panel(
                    heat,
                    "z of each matrix by block: where in the weights the two models agree. z describes; it is no p.",
                )
            )
        if verdict.get("null_histogram") and verdict.get("z") is not None:
            panels.append(
                Panel(
                    null_figure(verdict["null_histogram"], verdict["z"]),
                    "The statistic of the deciding test under permutations of labels, in standard deviations from "
                    "its mean, and the observed one.",
                )
            )
    record = {
        "settings": {name: verdict[name] for name in _SETTINGS if verdict.get(name) is not None},
        "provenance": {"version": bornbiased_jax.__version__},
        "verdict": dict(verdict),
    }
    section = Section(
        name="verdict",
        title=f"Verdict: {verdict['verdict']}",
        paper="",
        description="\n\n".join([*map(str, verdict.get("notes") or ()), str(verdict.get("scope", ""))]),
        command=shlex.join(command),
        scale="",
        headline=f"{verdict['verdict']}: {verdict['reason']}.",
        tables=[table for table in (_tests(verdict), _outside(verdict)) if table is not None],
        panels=panels,
        record=record,
    )
    return render("Were two models born from the same seed?", f"{names[0]} and {names[1]}", [section])


def module_map(by_module: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Draw z by block (rows, counted from 1) and matrix (columns); None where no matrix of a block has one."""
    z_by_place = {
        (int(block), module): row["z"]
        for row in by_module
        for _, block, module in [_split(str(row["module"]))]
        if block and row["z"] is not None
    }
    if not z_by_place:
        return None
    modules = list(dict.fromkeys(module for _, module in z_by_place))
    blocks = range(min(block for block, _ in z_by_place), max(block for block, _ in z_by_place) + 1)
    z_LM = np.array([[z_by_place.get((block, module), np.nan) for module in modules] for block in blocks])
    figure, ax = figures.new(width=1.8 + 0.85 * len(modules), height=max(2.2, 1.2 + 0.24 * len(blocks)))
    digits = 0 if len(blocks) <= 40 else None
    labels = [module.replace("/", "\n") for module in modules]
    figures.heatmap(ax, z_LM, x_labels=labels, y_labels=list(blocks), name="z", diverging=True, digits=digits)
    figures.label(ax, "", "block")
    return figure


def null_figure(histogram: Mapping[str, Any], z: float) -> Figure:
    """Draw counts of permuted statistics, in their standard deviations, and the observed one.

    Args:
        histogram: "low", "high" and "counts" of equal bins between them (:func:`bornbiased_jax.stats.permutations.
            histogram`).
        z: the observed statistic.
    """
    counts = np.asarray(histogram["counts"], float)
    edges = np.linspace(histogram["low"], histogram["high"], len(counts) + 1)
    figure, ax = figures.new(height=2.6)
    ax.bar(edges[:-1], counts, width=np.diff(edges), align="edge", color=figures.MEASURED)
    figures.reference(ax, z, f"observed, z = {z:.1f}", vertical=True)
    room = 0.04 * max(10.0, abs(z))
    ax.set_xlim(min(-5.0, z - room), max(5.0, z + room))
    figures.label(ax, "statistic in standard deviations from its mean", "permutations")
    figures.legend(ax)
    return figure


def _split(module: str) -> tuple[str, str, str]:
    """Split "blocks/3/mlp/up" into ("blocks", "3", "mlp/up"), and "embed" into ("", "", "embed")."""
    parts = module.split("/", 2)
    return (parts[0], parts[1], parts[2]) if parts[0] == "blocks" and len(parts) == 3 else ("", "", module)


def _tests(verdict: Mapping[str, Any]) -> Table | None:
    """Tabulate the battery, or the one test."""
    # A single test is a battery of one.
    rows = verdict.get("tests") or [{**verdict, "name": verdict["test"], "log10_p_adjusted": verdict["log10_p"]}]
    return Table(
        title="Tests",
        settings=["test", "labels permuted", "null", "verdict"],
        quantities=[Quantity("p", from_log10()), Quantity("Holm's p", from_log10()), Quantity("z", fixed(1))],
        rows=[
            Row(
                [row["name"], row.get("permuted") or "—", row.get("null") or "—", row["verdict"]],
                {"p": row.get("log10_p"), "Holm's p": row.get("log10_p_adjusted"), "z": row.get("z")},
                configuration="ours",
            )
            for row in rows
        ],
        note=f"Level {verdict['alpha']:g}. A p that no permutation reached is bounded by a proof.",
    )


def _outside(verdict: Mapping[str, Any]) -> Table | None:
    """Tabulate z of the matrices outside the blocks."""
    rows = [row for row in verdict.get("by_module") or [] if not _split(str(row["module"]))[1]]
    if not rows:
        return None
    return Table(
        title="Outside the blocks",
        settings=["matrix"],
        quantities=[Quantity("z", fixed(1))],
        rows=[Row([row["module"]], {"z": row["z"]}, configuration="ours") for row in rows],
    )
