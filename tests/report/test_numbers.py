import math

import pytest

from bornbiased_jax.lineage.verdict import probability
from bornbiased_jax.report import numbers, tables


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (numbers.fixed(3), -0.5, "−0.500"),
        # Three significant digits at most, the integer part whole.
        (numbers.fixed(1), 12345.678, "12,346"),
        (numbers.fixed(1), -201.1, "−201"),
        (numbers.fixed(3), 3.4617, "3.46"),
        (numbers.fixed(4), 0.12345, "0.123"),
        (numbers.fixed(4), 0.01234, "0.0123"),
        # 9.996 and 99.96 have a digit more before the point than it seems.
        (numbers.fixed(3), 9.996, "10.0"),
        (numbers.fixed(1), 99.96, "100"),
        # Zero, and what rounds to it, keep the digits of their column and have no sign.
        (numbers.fixed(3), 0.0, "0.000"),
        (numbers.fixed(3), -0.0001, "0.000"),
        (numbers.fixed(1), math.inf, "inf"),
        (numbers.percent(2), 0.026, "2.60%"),
        (numbers.percent(2), 0.1131, "11.3%"),
        (numbers.percent(2), 0.9998, "100%"),
        (numbers.times(1), 58.5, "58.5×"),
        (numbers.times(2), 117.4, "117×"),
        # Of a number near one, the digits of its distance count.
        (numbers.near_one(numbers.percent(2)), 0.9998, "99.98%"),
        (numbers.near_one(numbers.percent(2)), 0.72434, "72.4%"),
        (numbers.near_one(numbers.fixed(3)), 1.00357, "1.004"),
        (numbers.near_one(numbers.fixed(3)), 54.987, "55.0"),
        (numbers.p_value(2), 0.0345, "0.035"),
        (numbers.p_value(2), 0.0, "< 10⁻³⁰⁰"),
        # The least that a verdict states: 10⁻⁵⁰⁷ stood in tables as 1.0 × 10⁻³⁰⁰.
        (numbers.p_value(2), probability(-507.0), "< 10⁻³⁰⁰"),
        (numbers.p_value(2), 2e-300, "2.0\u202f×\u202f10⁻³⁰⁰"),
        # What is no number is no p-value.
        (numbers.p_value(2), math.nan, "nan"),
        (numbers.from_log10(2), math.nan, "nan"),
        (numbers.integer, 50304, "50,304"),
        (numbers.integer, -0.3, "0"),
        (numbers.identifier, 50304, "50304"),
        (numbers.identifier, -0.3, "0"),
        (numbers.significant(3), 0, "0"),
        (numbers.significant(3), 0.33349, "0.333"),
        (numbers.significant(3), 9.996, "10.0"),
        (numbers.significant(3), 123456.0, "123,456"),
        (numbers.significant(3), -0.00012345, "−1.23\u202f×\u202f10⁻⁴"),
        (numbers.significant(2), 3.2e9, "3.2\u202f×\u202f10⁹"),
        (numbers.significant(3), 5e-324, "4.94\u202f×\u202f10⁻³²⁴"),
        (numbers.from_log10(3), -1.5, "0.0316"),
        (numbers.from_log10(3), 0.0, "1.00"),
        # The paper's first p-value, and one far below the smallest float.
        (numbers.from_log10(3), math.log10(4.55) - 137, "4.55\u202f×\u202f10⁻¹³⁷"),
        (numbers.from_log10(2), -234.5, "3.2\u202f×\u202f10⁻²³⁵"),
        (numbers.from_log10(2), -1234.5, "< 10⁻³⁰⁰"),
        # 9.999 rounds up to the next power of ten.
        (numbers.from_log10(3), math.log10(9.999) - 20, "1.00\u202f×\u202f10⁻¹⁹"),
    ],
)
def test_numbers_are_written(write, value, text):
    assert write(value) == text


@pytest.mark.parametrize(
    ("write", "mean", "deviation", "text"),
    [
        (numbers.fixed(2), 0.5, 0.25, "0.50 ± 0.25"),
        # To the digit of the mean.
        (numbers.fixed(2), 186.71, 18.99, "187 ± 19"),
        (numbers.percent(2), 0.1131, 0.0485, "11.3% ± 4.9%"),
        # Further for its own first digit, no further than the format.
        (numbers.fixed(3), 3.484, 0.0062, "3.48 ± 0.006"),
        (numbers.fixed(1), 124.3, 0.04, "124 ± 0.0"),
        (numbers.significant(3), 0.335, 0.0205, "0.335 ± 0.0205"),
    ],
)
def test_deviations_are_written_to_the_digit_of_their_mean(write, mean, deviation, text):
    assert tables.write((mean, deviation), write) == text


def test_ends_of_an_interval_and_of_a_range_have_three_digits_each():
    assert numbers.rate_interval({"rate": 1.0, "low": 0.8914, "high": 1.0}) == "100% [89.1, 100]"
    assert numbers.value_range([302.11, 99.84]) == "99.8 … 302"


@pytest.mark.parametrize(
    "name", ["fixed", "percent", "integer:3", "times:x", "mean_std", "value_range", "near_one:2", "prose:2"]
)
def test_a_name_of_no_format_is_refused_with_the_choices(name):
    with pytest.raises(
        ValueError, match=f"^no format '{name.partition(':')[0]}': choose one of integer, .*, fixed:DIGITS"
    ):
        numbers.format_named(name)
