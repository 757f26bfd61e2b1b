"""Numbers as a careful typesetter writes them: a true minus sign, powers of ten, the digits that count."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

Format = Callable[[float], str]

MOST_DIGITS = 3
"""Significant digits that a measured number has at most; its integer part stays whole."""

LEAST_LOG10_P = -300
"""Log₁₀ of the smallest p-value that is written in digits."""

SUPERSCRIPT = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A format with digits after the point, which become fewer as the integer part grows (:data:`MOST_DIGITS`).

    Attributes:
        digits: after the point, at most.
        scale: what a value is multiplied by.
        unit: what follows the number.
        origin: the value from which a number's size is counted, before scaling.
    """

    digits: int
    scale: float = 1.0
    unit: str = ""
    origin: float = 0.0

    def __call__(self, value: float) -> str:
        """Write a number."""
        return self._written(value, self._decimals(value))

    def deviation(self, mean: float, deviation: float) -> str:
        """Write a standard deviation to the digit of its mean, or further for its own first digit.

        Example:
            >>> fixed(2).deviation(36.94, 2.74), fixed(1).deviation(113.1, 0.31)
            ('2.7', '0.3')
        """
        place = -_exponent(self.scale * deviation, 1)
        return self._written(deviation, min(self.digits, max(self._decimals(mean), place)))

    def _decimals(self, value: float) -> int:
        size = self.scale * (value - self.origin)
        # Zero has no digit that counts.
        if size == 0:
            return self.digits
        return min(self.digits, max(0, MOST_DIGITS - 1 - _exponent(size, MOST_DIGITS)))

    def _written(self, value: float, decimals: int) -> str:
        # z: what rounds to zero has no sign.
        return _minus(f"{self.scale * value:z,.{decimals}f}{self.unit}")


def fixed(digits: int) -> Fixed:
    """Format numbers with so many digits after the point, three significant ones at most.

    Example:
        >>> fixed(3)(-0.5), fixed(3)(12.3456), fixed(1)(33858.1)
        ('−0.500', '12.3', '33,858')
    """
    return Fixed(digits)


def peak_memory(num_bytes: float, children_bytes: float | None = 0) -> str:
    """Write the largest memory of a process in bytes, and that it is this one's where a child of it may have had more.

    A child's is no number of its own: it is the largest of all children, None where it is not known.

    Example:
        >>> peak_memory(2.5e9, 1e9), peak_memory(0.57e9, 2.54e9)
        ('2.50 GB at most', '0.57 GB at most in the main process')
    """
    text = f"{fixed(2)(num_bytes / 1e9)} GB at most"
    is_largest = children_bytes is not None and children_bytes <= num_bytes
    return text if is_largest else f"{text} in the main process"


def percent(digits: int = 2) -> Fixed:
    """Format fractions as percentages, three significant digits at most.

    Example:
        >>> percent(2)(0.026), percent(2)(0.1131)
        ('2.60%', '11.3%')
    """
    return Fixed(digits, 100, "%")


def times(digits: int = 1) -> Fixed:
    """Format ratios, three significant digits at most.

    Example:
        >>> times(1)(58.5), times(1)(117.4)
        ('58.5×', '117×')
    """
    return Fixed(digits, 1, "×")


def near_one(form: Fixed) -> Fixed:
    """Format numbers whose distance from one is what they say: three significant digits of that distance at most.

    Example:
        >>> near_one(times(3))(1.0114), near_one(percent(2))(0.9998), times(3)(1.0114)
        ('1.011×', '99.98%', '1.01×')
    """
    return dataclasses.replace(form, origin=1.0)


def integer(value: float) -> str:
    """Format whole numbers: ``integer(50304) == "50,304"``."""
    return _minus(f"{value:z,.0f}")


def identifier(value: float) -> str:
    """Format whole numbers that name something, such as a token: no separators."""
    return f"{value:z.0f}"


def significant(digits: int = 3) -> Format:
    """Format numbers with so many significant digits, as a power of ten where that is shorter to read.

    Example:
        >>> significant(3)(0.0012345), significant(2)(1234.5)
        ('0.00123', '1,234')
    """

    def write(value: float) -> str:
        if value == 0:
            return "0"
        exponent = _exponent(value, digits)
        if -4 < exponent < 7:
            return _minus(f"{value:,.{max(0, digits - 1 - exponent)}f}")
        # Not by division: below 10⁻³⁰⁸ powers of ten have lost their digits.
        return _power(float(f"{value:.{digits - 1}e}".partition("e")[0]), exponent, digits)

    return write


def from_log10(digits: int = 3) -> Format:
    """Format a p-value from its log₁₀; below 10⁻³⁰⁰ only that it is, since no reader needs more. NaN stays NaN.

    Example:
        >>> from_log10(3)(-124512.0)
        '< 10⁻³⁰⁰'
    """

    def write(log10: float) -> str:
        if log10 < LEAST_LOG10_P:
            return f"< 10{str(LEAST_LOG10_P).translate(SUPERSCRIPT)}"
        if not log10 <= -3:
            return significant(digits)(10.0**log10)
        exponent = math.floor(log10)
        mantissa = 10.0 ** (log10 - exponent)
        if float(f"{mantissa:.{digits - 1}f}") >= 10:
            mantissa, exponent = mantissa / 10, exponent + 1
        return _power(mantissa, exponent, digits)

    return write


def format_named(name: str) -> Format:
    """Return the format that a text names: one of this module, and its digits after a colon.

    Raises:
        ValueError: there is no such format, or its digits are absent or too many.

    Example:
        >>> format_named("times:2")(1.37), format_named("integer")(50304)
        ('1.37×', '50,304')
    """
    kind, _, digits = name.partition(":")
    if not digits and kind in _FORMATS:
        return _FORMATS[kind]
    if digits.isdecimal() and kind in _FORMATS_OF_DIGITS:
        return _FORMATS_OF_DIGITS[kind](int(digits))
    choices = ", ".join([*_FORMATS, *(f"{name}:DIGITS" for name in _FORMATS_OF_DIGITS)])
    raise ValueError(f"no format {kind!r}: choose one of {choices}")


def _exponent(value: float, digits: int) -> int:
    """Return the power of ten of a number rounded to so many digits: 9.996 has one more before the point than it seems.

    Zero, and what is no finite number, has the power 0.
    """
    return int(f"{value:.{digits - 1}e}".split("e")[1]) if math.isfinite(value) else 0


def p_value(digits: int = 2) -> Format:
    """Format a p-value; verdicts state 10⁻³⁰⁰ and a float has zero where p is smaller.

    Example:
        >>> p_value(2)(0.0345), p_value(2)(1e-300), p_value(2)(0.0)
        ('0.035', '< 10⁻³⁰⁰', '< 10⁻³⁰⁰')
    """
    write = from_log10(digits)
    return lambda p: write(-math.inf if p <= 10.0**LEAST_LOG10_P else math.log10(p))


_FORMATS: dict[str, Format] = {"integer": integer, "identifier": identifier}
_FORMATS_OF_DIGITS: dict[str, Callable[[int], Format]] = {
    "fixed": fixed,
    "percent": percent,
    "times": times,
    "significant": significant,
    "from_log10": from_log10,
    "p_value": p_value,
}


def _power(mantissa: float, exponent: int, digits: int) -> str:
    return f"{_minus(f'{mantissa:.{digits - 1}f}')}\u202f×\u202f10{str(exponent).translate(SUPERSCRIPT)}"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def rate_interval(rate: Mapping[str, float], digits: int = 1, percent_digits: int | None = None) -> str:
    """Format a fraction with the ends of its interval, in percent: ``rate``, ``low`` and ``high``.

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
    numbers = [float(value) for value in values]
    return (float(np.mean(numbers)), float(np.std(numbers, ddof=1))) if len(numbers) > 1 else numbers[0]


def value_range(values: Sequence[float]) -> str | None:
    """Write the smallest and the largest of some numbers; None where there is none.

    Example:
        >>> value_range([2.5, -1.0])
        '−1.0 … 2.5'
    """
    write = fixed(1)
    return f"{write(min(values))} … {write(max(values))}" if values else None
