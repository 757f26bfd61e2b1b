"""Numbers and names, written for a sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVEL = 0.01
"""A p-value below this, divided by the number of results it was chosen among, is called more than chance."""
_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def chance(log10_p: float) -> str:
    """Write a probability that is given as its log₁₀.

    >>> chance(-0.4), chance(-2.3), chance(-183.2), chance(0.0)
    ('0.4', '0.005', '10⁻¹⁸³', '1')
    """
    if log10_p > -4:
        return f"{10.0**log10_p:.2g}"
    # Rounded up, so that no more is claimed than was found.
    return f"10{str(math.ceil(log10_p)).translate(_SUPERSCRIPT)}"


def count(number: int, noun: str) -> str:
    """Write a number with its noun.

    >>> count(1, "seed"), count(2000, "seed")
    ('1 seed', '2,000 seeds')
    """
    return f"{number:,} {noun if number == 1 else noun + 's'}"


def percent(fraction: float) -> str:
    """Write a fraction as a percentage with two significant digits.

    >>> percent(0.0190), percent(0.5), percent(0.00042), percent(0.0)
    ('1.9%', '50%', '0.042%', '0%')
    """
    return f"{100 * fraction:.2g}%" if fraction < 0.995 else f"{100 * fraction:.3g}%"


def rounded(value: float) -> str:
    """Write three significant digits, with a power of ten only from a billion on.

    >>> rounded(9.0412), rounded(4292.4), rounded(1.5e12)
    ('9.04', '4,290', '1.5e+12')
    """
    return f"{float(f'{value:.3g}'):,.15g}" if value < 1e9 else f"{value:.3g}"


def span(values: Sequence[float], digits: int = 2) -> str:
    """Write one value, or the range from the least to the largest.

    >>> span([0.5]), span([0.25, 0.5, 0.3])
    ('0.50', '0.25 to 0.50')
    """
    low, high = (f"{end(values):.{digits}f}" for end in (min, max))
    return low if low == high else f"{low} to {high}"


def among(names: Sequence[str]) -> str:
    """Join names by commas and "and".

    >>> among(["a"]), among(["a", "b"]), among(["a", "b", "c"])
    ('a', 'a and b', 'a, b and c')
    """
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def size(number: float) -> str:
    """Write bytes as MB or GB.

    >>> size(512.0), size(1.5e9), size(3.2e14)
    ('0 MB', '1.50 GB', '320,000 GB')
    """
    if number < 1e9:
        return f"{number / 1e6:.0f} MB"
    return f"{number / 1e9:.2f} GB" if number < 1e11 else f"{number / 1e9:,.0f} GB"
