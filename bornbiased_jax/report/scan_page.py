"""A scan as one page: the bases that agree most with a suspect, and in which components."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import bornbiased_jax
from bornbiased_jax.report.numbers import fixed, from_log10
from bornbiased_jax.report.page import Section, render
from bornbiased_jax.report.tables import Quantity, Row, Table

# Bases that the page lists beside those that match.
_SHOWN = 50


def draw_scan(report: Mapping[str, Any], *, command: Sequence[str] = ()) -> str:
    """Render the page of one scan, as a text of HTML without outside references.

    Args:
        report: what ``bornbiased scan --json`` writes.
        command: the words of the command line that made it.
    """
    matches = report["matches"]
    related = [match for match in matches if match["verdict"] == "same-lineage"]
    shown = [match for index, match in enumerate(matches) if match in related or index < _SHOWN]
    components = [_components(match) for match in related]
    section = Section(
        name="scan",
        title=f"{len(related)} of {len(matches)} bases share an initialization",
        paper="",
        description=f"{report['num_tested']} of {report['num_bases']} bases passed the screen at z = 3 and were "
        "tested; p-values are corrected for every base.",
        command=shlex.join(command),
        scale="",
        headline=", ".join(match["base"] for match in related) or "No base shares an initialization with the suspect.",
        tables=[_bases(shown), *components],
        panels=[],
        record={
            "settings": {"alpha": report["alpha"]},
            "provenance": {"version": bornbiased_jax.__version__},
            **report,
        },
    )
    return render("Which models share an initialization?", str(report["suspect"]), [section])


def _bases(matches: Sequence[Mapping[str, Any]]) -> Table:
    return Table(
        title="Bases",
        settings=["base", "verdict", "evidence"],
        quantities=[Quantity("Holm's p", from_log10()), Quantity("z", fixed(1))],
        rows=[
            Row(
                [match["base"], match["verdict"], match["evidence"] or "—"],
                {"Holm's p": match["log10_p"], "z": match["z"]},
                configuration="ours",
            )
            for match in matches
        ],
        note="z by moments describes; p is bounded by a proof where no permutation reaches the statistic.",
    )


def _components(match: Mapping[str, Any]) -> Table:
    return Table(
        title=f"Components of {match['base']}",
        settings=["component", "evidence", "verdict"],
        quantities=[Quantity("Holm's p", from_log10()), Quantity("z", fixed(1))],
        rows=[
            Row(
                [row["component"], row["evidence"], row["verdict"]],
                {"Holm's p": row["log10_p"], "z": row["z"]},
                configuration="ours",
            )
            for row in match["components"]
        ],
        note="",
    )
