"""The package computes what it computed before: weights bit for bit, numbers within a stated tolerance."""

import importlib

import pytest

from tests.golden import forward
from tests.golden.record import MODULES, Case, case_differences, read


def _cases() -> list[pytest.param]:
    rows = []
    for name in MODULES:
        module = importlib.import_module(f"tests.golden.{name}")
        for key, case in module.CASES.items():
            marks = [getattr(pytest.mark, mark) for mark in case.marks]
            rows.append(pytest.param(name, key, case, module.TOLERANCE, id=f"{name}-{key}", marks=marks))
    return rows


@pytest.mark.parametrize(("module", "key", "case", "tolerance"), _cases())
def test_values_equal_golden_values(module, key, case: Case, tolerance):
    expected = read(module).get(key)
    assert expected, f"{module} has no golden values for {key}: python -m tests.golden {module}"
    assert not case_differences(expected, case.compute(), tolerance, case)


@pytest.mark.parametrize("module", MODULES)
def test_every_golden_value_belongs_to_a_case(module):
    cases = importlib.import_module(f"tests.golden.{module}").CASES
    assert read(module).keys() == cases.keys()


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("fault", forward.FAULTS)
@pytest.mark.parametrize("name", ["olmo2", "gemma3"])
def test_planted_faults_exceed_rounding(name, fault):
    """The rows whose rounding errors grow most: faults of one layer or of 1% of an angle are still far outside."""
    expected, case = read("forward")[name], forward.CASES[name]
    faulty = forward.activations(*forward.FAULTS[fault](*forward.model(name)))
    differing = case_differences(expected, faulty, forward.TOLERANCE, case)
    assert "final" in {row.partition(":")[0] for row in differing}
