"""Numbers as a careful typesetter writes them: a true minus sign, powers of ten, the digits that count."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

Format = Callable[[float], str]

LEAST_LOG10_P = -300
"""Log₁₀ of the smallest p-value that is written in digits."""

_SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def fixed(digits: int) -> Format:
    """Format numbers with so many digits after the point.

    Example:
        >>> fixed(3)(-0.5)
        '−0.500'
    """
    return lambda value: _minus(f"{value:,.{digits}f}")


def percent(digits: int = 2) -> Format:
    """Format fractions as percentages.

    Example:
        >>> percent(2)(0.026)
        '2.60%'
    """
    return lambda value: _minus(f"{100 * value:.{digits}f}%")


def times(digits: int = 1) -> Format:
    """Format ratios.

    Example:
        >>> times(1)(58.5)
        '58.5×'
    """
    return lambda value: _minus(f"{value:,.{digits}f}×")


def integer(value: float) -> str:
    """Format whole numbers: ``integer(50304) == "50,304"``."""
    return _minus(f"{value:,.0f}")


def identifier(value: float) -> str:
    """Format whole numbers that name something, such as a token: no separators."""
    return f"{value:.0f}"


def significant(digits: int = 3) -> Format:
    """Format numbers with so many significant digits, as a power of ten where that is shorter to read.

    Example:
        >>> significant(3)(0.0012345), significant(2)(1234.5)
        ('0.00123', '1,234')
    """

    def write(value: float) -> str:
        if value == 0:
            return "0"
        # Rounded first: 9.996 has one digit more before the point than it seems.
        exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
        if -4 < exponent < 7:
            return _minus(f"{value:,.{max(0, digits - 1 - exponent)}f}")
        return _power(value / 10.0**exponent, exponent, digits)

    return write


def from_log10(digits: int = 3) -> Format:
    """Format a p-value from its log₁₀; below 10⁻³⁰⁰ only that it is, since no reader needs more.

    Example:
        >>> from_log10(3)(-124512.0)
        '< 10⁻³⁰⁰'
    """

    def write(log10: float) -> str:
        if log10 < LEAST_LOG10_P:
            return f"< 10{str(LEAST_LOG10_P).translate(_SUPERSCRIPT)}"
        if log10 > -3:
            return significant(digits)(10.0**log10)
        exponent = math.floor(log10)
        mantissa = 10.0 ** (log10 - exponent)
        if float(f"{mantissa:.{digits - 1}f}") >= 10:
            mantissa, exponent = mantissa / 10, exponent + 1
        return _power(mantissa, exponent, digits)

    return write


def _power(mantissa: float, exponent: int, digits: int) -> str:
    return f"{_minus(f'{mantissa:.{digits - 1}f}')}\u202f×\u202f10{str(exponent).translate(_SUPERSCRIPT)}"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def rate_interval(rate: Mapping[str, float], digits: int = 1, percent_digits: int | None = None) -> str:
    """A fraction with the ends of its interval, in percent: ``rate``, ``low`` and ``high``.

    Example:
        >>> rate_interval({"rate": 0.012, "low": 0.01, "high": 0.02}, 1)
        '1.2% [1.0, 2.0]'
    """
    low, high = (fixed(digits)(100 * rate[end]) for end in ("low", "high"))
    return f"{percent(digits if percent_digits is None else percent_digits)(rate['rate'])} [{low}, {high}]"


def mean_std(values: Iterable[float]) -> tuple[float, float] | float:
    """Mean and standard deviation of a sample, as a table shows them; a single value alone.

    Example:
        >>> mean_std([1.0, 3.0]), mean_std([2.0])
        ((2.0, 1.4142135623730951), 2.0)
    """
    known = [float(value) for value in values]
    return (float(np.mean(known)), float(np.std(known, ddof=1))) if len(known) > 1 else known[0]


def value_range(values: Sequence[float], digits: int = 1) -> str | None:
    """Write the smallest and the largest of some numbers; None where there is none.

    Example:
        >>> value_range([2.5, -1.0])
        '−1.0 … 2.5'
    """
    write = fixed(digits)
    return f"{write(min(values))} … {write(max(values))}" if values else None
