"""Every listed fault turns its test red, and the test is green without it."""

import re

import pytest

from tests.faults.faults import load, run_fault, run_tests, scratch_copy

pytestmark = pytest.mark.slow
FAULTS = load()
NAMED = {
    room: sorted({fault.test for fault in FAULTS if fault.room == room}) for room in {f.room: None for f in FAULTS}
}


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """One scratch copy a worker: a fault is taken out again before the next goes in."""
    return scratch_copy(tmp_path_factory.mktemp("scratch") / "project")


@pytest.mark.parametrize("room", NAMED)
def test_named_tests_pass_on_sound_code(copy, room):
    code, printed = run_tests(copy, NAMED[room])
    assert code == 0, printed
    assert "skipped" not in printed.splitlines()[-1], f"a skipped test notices nothing:\n{printed}"


@pytest.mark.parametrize("fault", FAULTS, ids=[fault.name for fault in FAULTS])
def test_a_fault_is_noticed(copy, fault):
    code, printed = run_fault(copy, fault)
    assert code != 0, f"{fault.test} passes with {fault.new!r} in {fault.file}"
    # Anything else than failed tests (2: interrupted, as by a syntax error; 4: no such test) shows nothing.
    assert code == 1, printed
    assert re.search(r"\d+ (failed|error)", printed.splitlines()[-1]), printed
