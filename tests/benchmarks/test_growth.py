"""The exponents of growth and the stages of a start: their arithmetic, and one small round of each."""

import numpy as np
import pytest

from benchmarks import cold_start, growth, tables
from bornbiased_jax.errors import InputError


def test_the_exponent_is_that_of_the_power_law():
    sizes = np.array([3.0, 6.0, 12.0])
    assert growth.slope(sizes, 5 * sizes**1.7) == pytest.approx(1.7)
    # Twice as wide is between twice and four times the work: the head and the scores grow with D, the products with D².
    axes = {axis: growth.operations({**growth.BASE, axis: 2 * size}) for axis, size in growth.BASE.items()}
    ratios = {axis: number / growth.operations(growth.BASE) for axis, number in axes.items()}
    assert ratios["seeds"] == ratios["inputs"] == 2
    assert 2 < ratios["length"] < 4 and 2 < ratios["width"] < 4 and 1.5 < ratios["layers"] < 2.5


def test_a_round_of_growth_is_shown(monkeypatch):
    base = {"seeds": 1, "inputs": 4, "length": 8, "layers": 1, "width": 32}
    growth.call(base)()
    # More sizes would be compiled, and what a probe gives is tested where probes are.
    monkeypatch.setattr(growth, "call", lambda sizes: lambda: sum(range(1000 * sizes["inputs"])) and None)
    found = growth.measure(base, 1)
    assert [row["axis"] for row in found["rows"]] == list(base)
    assert all(
        row["sizes"] == [size, 2 * size, 4 * size] for row, size in zip(found["rows"], base.values(), strict=True)
    )
    assert all(np.isfinite(row["exponent"]) and min(row["seconds"]) > 0 for row in found["rows"])
    (table,) = tables.TABLES["growth"](found)
    assert len(table.rows) == 5


def test_stages_of_a_start_add_up(monkeypatch):
    found = cold_start.once(["models"])
    assert sum(found[stage] for stage in cold_start.STAGES) == pytest.approx(found["whole"])
    assert found["interpreter"] > 0 and found["imports"] > 0
    monkeypatch.setattr(cold_start, "once", lambda words, kept=None: found)
    (table,) = tables.TABLES["cold_start"](cold_start.measure(1))
    assert len(table.rows) == len(cold_start.STAGES) + 1


def test_a_command_that_fails_is_named():
    with pytest.raises(InputError, match="nonsense failed"):
        cold_start.once(["nonsense"])
