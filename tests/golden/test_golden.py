"""The package computes what it computed before: weights bit for bit, numbers within a stated tolerance."""

import importlib

import pytest

from tests.golden.record import MODULES, Case, differences, read


def _cases() -> list[pytest.param]:
    rows = []
    for name in MODULES:
        module = importlib.import_module(f"tests.golden.{name}")
        for key, case in module.CASES.items():
            marks = [pytest.mark.slow] if case.is_slow else []
            rows.append(pytest.param(name, key, case, module.TOLERANCE, id=f"{name}-{key}", marks=marks))
    return rows


@pytest.mark.parametrize(("module", "key", "case", "tolerance"), _cases())
def test_values_are_the_golden_ones(module, key, case: Case, tolerance):
    expected = read(module).get(key)
    assert expected, f"{module} has no golden values for {key}: python -m tests.golden {module}"
    assert not differences(expected, case.compute(), tolerance)


@pytest.mark.parametrize("module", MODULES)
def test_every_golden_value_belongs_to_a_case(module):
    cases = importlib.import_module(f"tests.golden.{module}").CASES
    assert read(module).keys() == cases.keys()
