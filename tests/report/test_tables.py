import pytest

from bornbiased_jax.report import numbers
from bornbiased_jax.report.tables import Quantity, Row, Table, write

FRACTION = Quantity("share", numbers.percent(2))
P = Quantity("p")


def test_a_row_must_fit_the_heads():
    with pytest.raises(ValueError, match="does not fit"):
        Table("t", ("model", "T"), (FRACTION,), [Row(("a",), {"share": 0.1})])
    with pytest.raises(ValueError, match="no quantity 'shore'"):
        Table("t", ("model",), (FRACTION,), [Row(("a",), {"shore": 0.1})])


def test_a_quantity_has_a_column_only_for_sources_with_a_value():
    rows = [
        Row(("a",), {"share": 0.1, "p": 0.5}, theory={"share": 0.2}),
        Row(("b",), {"share": 0.1}, paper={"share": 0.1, "p": None}),
    ]
    table = Table("t", ("model",), (FRACTION, P), rows)
    assert table.sources(FRACTION) == ["paper", "measured", "theory"]
    assert table.sources(P) == ["measured"]


def test_values_are_written():
    assert write(None, FRACTION.format) == "—"
    assert write("0.00†", FRACTION.format) == "0.00†"
    assert write((0.026, 0.004), FRACTION.format) == "2.60% ± 0.40%"
    assert write(0.026, FRACTION.format) == "2.60%"
