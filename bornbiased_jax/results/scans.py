"""Results of `scan`: which of many models a suspect shares an initialization with."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from bornbiased_jax.lineage.verdict import format_probability
from bornbiased_jax.results.listing import Listing, data_frame, fragment

if TYPE_CHECKING:
    from pandas import DataFrame

    from bornbiased_jax.lineage.scan import ScanResult

# Bases that the table shows beside those that match.
_SHOWN = 10


@dataclasses.dataclass(frozen=True, repr=False)
class Scan:
    """A suspect against many bases.

    Attributes:
        result: what was measured.
    """

    result: ScanResult

    def to_json(self) -> dict[str, Any]:
        """Give what the command writes with --json."""
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

    def table(self) -> Listing:
        """List the bases that agree most."""
        rows = [
            [
                match.base,
                match.verdict,
                match.evidence or "–",
                "–" if match.log10_p is None else match.log10_p,
                "–" if match.z is None else match.z,
            ]
            for index, match in enumerate(self.result.matches)
            if match.verdict == "same-lineage" or index < _SHOWN
        ]
        columns = ["base", "verdict", "evidence", "log10 p", "z"]
        note = f"{self.result.num_tested} of {len(self.result.matches)} bases passed the screen at z = 3."
        return Listing(f"{self.result.suspect} against {len(self.result.matches)} bases", columns, rows, note)

    def to_pandas(self) -> DataFrame:
        """Make a data frame with a row for each base; needs pandas."""
        keys = ("base", "verdict", "log10_p", "z", "evidence")
        return data_frame([{key: row[key] for key in keys} for row in self.to_json()["matches"]])

    def __repr__(self) -> str:
        return " ".join(self.summary())

    def _repr_html_(self) -> str:
        return fragment(self.summary(), [self.table()])


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
        >>> from bornbiased_jax import progress
        >>> progress.set_quiet(True)
        >>> small = "llama-tiny,num_layers=1,d_model=32,vocab_size=64"
        >>> [match.verdict for match in scan(f"seed:1@{small}", f"seed:1@{small}", f"seed:2@{small}").result.matches]
        ['same-lineage', 'unrelated']
    """
    from bornbiased_jax import progress
    from bornbiased_jax.lineage import scan as scanning
    from bornbiased_jax.lineage.battery import ALPHA
    from bornbiased_jax.lineage.permutation import check_alpha
    from bornbiased_jax.lineage.weights_compare import check_count
    from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

    level = check_alpha(ALPHA if alpha is None else alpha)
    count = check_count(NUM_PERMUTATIONS if num_permutations is None else num_permutations)
    models = scanning.find_bases(bases)
    with progress.bar(len(models), f"scan {suspect}", unit="bases") as advance:
        return Scan(scanning.scan(suspect, models, alpha=level, num_permutations=count, advance=advance))
