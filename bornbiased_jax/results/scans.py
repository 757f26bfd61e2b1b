"""Results of `scan`: which of many models a suspect shares an initialization with."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.lineage import scan as scanning
from bornbiased_jax.lineage.battery import ALPHA
from bornbiased_jax.lineage.permutation import check_alpha
from bornbiased_jax.lineage.scan import ScanResult
from bornbiased_jax.lineage.verdict import format_probability
from bornbiased_jax.lineage.weights_compare import check_count
from bornbiased_jax.report import figures
from bornbiased_jax.report.tables import Panel
from bornbiased_jax.results.result import Listing, Result, listing
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

# Bases that the table shows besides those that match.
_SHOWN = 10
_COLUMNS = {"verdict": "verdict", "evidence": "evidence", "log10_p": "log10 p", "z": "z"}


@dataclasses.dataclass(frozen=True, repr=False)
class Scan(Result):
    """A suspect against many bases.

    Attributes:
        result: what was measured.
    """

    question = "Which models share an initialization?"
    result: ScanResult

    def to_json(self) -> dict[str, Any]:
        """Return what the command writes with --json."""
        rows = [
            {
                "base": match.base,
                "verdict": match.verdict,
                "p_value": match.p_value,
                "log10_p": match.log10_p,
                "z": match.z,
                "evidence": match.evidence,
                "identical": match.is_identical,
                "components": list(match.components),
            }
            for match in self.result.matches
        ]
        facts = {"num_bases": len(rows), "num_tested": self.result.num_tested, "alpha": self.result.alpha}
        return {"suspect": self.result.suspect, "matches": rows, **facts}

    def summary(self) -> list[str]:
        """Say with which bases an initialization is shared, and how sure that is."""
        matches, count = self.result.matches, len(self.result.matches)
        related = [match for match in matches if match.verdict == "same-lineage"]
        if not related:
            return [
                f"None of {count} bases shares an initialization with {self.result.suspect} as far as the order of "
                "coordinates, neurons and heads tells: neurons in another order are matched by `bornbiased seedprint`."
            ]
        named = ", ".join(
            f"{match.base} (the same weights)"
            if match.is_identical
            else f"{match.base} (p {format_probability(match.log10_p or 0.0)})"
            for match in related
        )
        return [
            f"{self.result.suspect} shares an initialization with {len(related)} of {count} bases: {named}. "
            "Which of two is older no test of weights can say."
        ]

    def tables(self) -> list[Listing]:
        """List the bases that agree most, then the components of those that match."""
        matches = self.to_json()["matches"]
        shown = [match for index, match in enumerate(matches) if match["verdict"] == "same-lineage" or index < _SHOWN]
        note = f"{self.result.num_tested} of {len(matches)} bases passed the screen at z = 3; p is corrected for all."
        title = f"{self.result.suspect} against {len(matches)} bases"
        components = [
            listing(f"Components of {match['base']}", {"component": "component", **_COLUMNS}, match["components"])
            for match in shown
            if match["verdict"] == "same-lineage" and match["components"]
        ]
        return [listing(title, {"base": "base", **_COLUMNS}, shown, note), *components]

    def figures(self) -> dict[str, Panel]:
        """Draw z of the bases that agree most."""
        rows = [match for match in self.result.matches if match.z is not None][:_SHOWN]
        if not rows:
            return {}
        figure, ax = figures.new(height=1.0 + 0.3 * len(rows))
        places = np.arange(len(rows))
        z = [float(match.z or 0.0) for match in rows]
        colours = [figures.SERIES[1] if match.verdict == "same-lineage" else figures.MEASURED for match in rows]
        ax.barh(places, z, color=colours)
        # Of a long path the end tells most.
        ax.set_yticks(places, [match.base if len(match.base) <= 30 else f"…{match.base[-29:]}" for match in rows])
        ax.invert_yaxis()
        figures.label(ax, "z", "")
        return {"bases": Panel(figure, "z of the bases that agree most; orange: they share an initialization.")}

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each base."""
        return [{key: row[key] for key in ("base", *_COLUMNS)} for row in self.to_json()["matches"]]


def scan(suspect: str, *bases: str, alpha: float | None = None, num_permutations: int | None = None) -> Scan:
    """Say which of many models one model shares an initialization with.

    Args:
        suspect: a checkpoint or a file of a stored fingerprint.
        bases: checkpoints, stored fingerprints, or folders of fingerprints.
        alpha: level of all decisions together; 10⁻⁴ by default.
        num_permutations: of the tests of those bases that pass the screen.

    Raises:
        InputError: a model that cannot be read, no base at all, or a bad option.

    Example:
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> [match.verdict for match in scan(f"seed:1@{small}", f"seed:1@{small}", f"seed:2@{small}").result.matches]
        ['same-lineage', 'unrelated']
    """
    level = check_alpha(ALPHA if alpha is None else alpha)
    count = check_count(NUM_PERMUTATIONS if num_permutations is None else num_permutations)
    models = scanning.find_bases(bases)
    with progress.bar(len(models), f"scan {suspect}", unit="bases") as advance:
        return Scan(scanning.scan(suspect, models, alpha=level, num_permutations=count, advance=advance))
