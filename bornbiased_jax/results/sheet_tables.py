"""Tables of the sheet: what each popular statistic is worth, its value for a pair, and its range elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bornbiased_jax.lineage.sheet import KINDS, STATISTICS, SYNTHETIC, Sheet, SheetRow, StdProfiles
from bornbiased_jax.lineage.spectra import MATRICES, SPECTRA
from bornbiased_jax.results.result import Listing

_PLACES = {
    "above": "above all of them",
    "inside": "among them",
    "below": "below all of them",
}
# Digits after the point that a number next to 1 has at most.
_MOST_DECIMALS = 6
_RANGES_NOTE = (
    "Medians and, in brackets, least and largest of unrelated pairs. {sizes} A dash: not defined there; norm scales "
    "are constant and biases zero before training, vectors of two widths do not fit, and tokenizers are compared by "
    "their texts alone. The last column is of no model: norm scales of two releases that were drawn apart for this "
    "package, as those of trained models vary."
)


def sheet_listings(sheet: Sheet) -> list[Listing]:
    """List the values of a pair with what they are worth, then the ranges of unrelated models."""
    worth = [
        [STATISTICS[row.key].title, STATISTICS[row.key].worth, value_text(row), place_text(row)] for row in sheet.rows
    ]
    columns = ["statistic", "what it is worth", "this pair", "next to unrelated models"]
    note = (
        "None of these numbers is part of the verdict. Where a value lies is said where it can mean something: for "
        "statistics that are evidence, between models of the architecture and a size that unrelated ones were "
        "measured at."
    )
    if any(row.by_block for row in sheet.rows):
        note += (
            " After a cosine of norm scales stand those of the least and the most similar block, in brackets; the "
            "ranges are of means over all norms."
        )
    if any(row.sample for row in sheet.rows if row.key in ("spectra", *SPECTRA)):
        note += " Spectra of wide models are those of some matrices, in brackets; the ranges are over all matrices."
    listings = [Listing("What is this evidence worth?", columns, worth, note)]
    if any(sheet.stds):
        listings.append(_stds_listing(*sheet.stds))
    # Ranges stand apart: next to the sentences no page is wide enough for them.
    kinds = (*KINDS, SYNTHETIC)
    ranges = [[STATISTICS[row.key].title, *(_range(row.ranges.get(kind)) for kind in kinds)] for row in sheet.rows]
    note = _RANGES_NOTE.format(sizes=sheet.sizes)
    return [*listings, Listing("The same statistics of unrelated models", ["statistic", *kinds], ranges, note)]


def _stds_listing(base: StdProfiles, suspect: StdProfiles) -> Listing:
    """List the standard deviations of Q, K, V, O of both models, a row for each block."""
    depth = max(len(stds) for profiles in (base, suspect) for stds in profiles.values())
    matrices = [matrix for matrix in MATRICES if matrix in base or matrix in suspect]
    rows = []
    for block in range(depth):
        pairs = [[profiles.get(matrix, ())[block : block + 1] for profiles in (base, suspect)] for matrix in matrices]
        rows.append([block + 1, *(" | ".join(_std_text(std) for std in pair) for pair in pairs)])
    columns = ["block", *(matrix[0].upper() for matrix in matrices)]
    note = (
        "In each cell the base, then the suspect. Initialization, depth and optimizer shape these profiles, whatever "
        "the seed: models that share nothing may have them alike."
    )
    return Listing("Standard deviations of Q, K, V, O by block: base | suspect", columns, rows, note)


def _std_text(stds: Sequence[float | None]) -> str:
    std = stds[0] if stds else None
    return "–" if std is None else number_text(std)


def value_text(row: SheetRow) -> str:
    """Write the value of a pair, in brackets its ends over blocks or the part that it is of; or why there is none."""
    if row.value is None:
        return f"none: {row.reason}"
    of_blocks = [] if row.by_block is None else [f"{' to '.join(map(number_text, row.by_block))} by block"]
    brackets = ", ".join([*of_blocks, *([row.sample] if row.sample else [])])
    return number_text(row.value) + (f" ({brackets})" if brackets else "")


def place_text(row: SheetRow) -> str:
    """Say where the value of a pair lies among unrelated models, or why that is not said."""
    statistic = STATISTICS[row.key]
    if row.value is None:
        return "–"
    if not statistic.is_evidence:
        return "not said: it is no evidence"
    if not row.ranges:
        return "not measured there"
    if row.place is None:
        return "not said: other architecture or size"
    return _PLACES[row.place]


def number_text(value: float) -> str:
    """Write four significant digits, and next to 1 as many as tell a number from it.

    >>> number_text(0.38354), number_text(0.99996), number_text(0.9999999), number_text(-0.0047191)
    ('0.3835', '0.99996', '1', '−0.004719')
    """
    text = f"{value:.4g}"
    if float(text) == 1.0 and round(value, _MOST_DECIMALS) != 1.0:
        text = f"{value:.{min(_MOST_DECIMALS, 1 - math.floor(math.log10(abs(1.0 - value))))}f}".rstrip("0")
    return text.replace("-", "−")


def _range(quantiles: Sequence[float] | None) -> str | None:
    if quantiles is None:
        return None
    least, median, largest = (number_text(quantiles[at]) for at in (0, len(quantiles) // 2, -1))
    return median if least == largest else f"{median} ({least} to {largest})"
