"""The exponents of growth and the stages of a start: their arithmetic, and one small round of each."""

import json
import subprocess

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


@pytest.mark.slow
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


@pytest.mark.slow
def test_stages_of_a_start_are_told_apart(monkeypatch):
    found = cold_start.once(["models"])
    # It counts parameters by their shapes alone.
    assert found["imports"] > 0.1 and found["compiling"] == 0
    seconds = {"jaxpr_trace": 0.5, "jaxpr_to_mlir_module": 0.25, "backend_compile": 2.0}
    durations = {f"/jax/core/compile/{name}_duration": value for name, value in seconds.items()}
    said = json.dumps({"interpreter": 0.125, "imports": 1.0, "whole": 5.0, "durations": durations})
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, said, ""))
    split = {"interpreter": 0.125, "imports": 1.0, "tracing": 0.5, "lowering": 0.25, "compiling": 2.0, "rest": 1.125}
    assert cold_start.once(["probe"]) == {**split, "whole": 5.0}
    (table,) = tables.TABLES["cold_start"](cold_start.measure(1))
    assert [row.measured["a small probe"] for row in table.rows] == [*split.values(), 5.0]


@pytest.mark.slow
def test_a_command_that_fails_is_named():
    with pytest.raises(InputError, match="nonsense failed"):
        cold_start.once(["nonsense"])
