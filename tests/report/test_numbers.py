import math

import pytest

from bornbiased_jax.report import numbers


@pytest.mark.parametrize(
    ("write", "value", "text"),
    [
        (numbers.fixed(3), -0.5, "−0.500"),
        (numbers.fixed(1), 12345.678, "12,345.7"),
        (numbers.percent(2), 0.026, "2.60%"),
        (numbers.times(1), 58.5, "58.5×"),
        (numbers.integer, 50304, "50,304"),
        (numbers.identifier, 50304, "50304"),
        (numbers.significant(3), 0, "0"),
        (numbers.significant(3), 0.33349, "0.333"),
        (numbers.significant(3), 9.996, "10.0"),
        (numbers.significant(3), 123456.0, "123,456"),
        (numbers.significant(3), -0.00012345, "−1.23\u202f×\u202f10⁻⁴"),
        (numbers.significant(2), 3.2e9, "3.2\u202f×\u202f10⁹"),
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
