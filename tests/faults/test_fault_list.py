"""The lists of faults fit the code: every old text is there once, every named test exists."""

import ast
from pathlib import Path

import pytest

from tests.faults.faults import ROOT, Fault, load, patched

FAULTS = load()


def _tests_in(path: Path) -> set[str]:
    """Names of the test functions of a file, those of classes as ``Class::test``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return {name for name in names if name.rpartition("::")[2].startswith("test_")}


@pytest.mark.parametrize("room", sorted({fault.room for fault in FAULTS}))
def test_every_fault_fits_the_code(room):
    problems = []
    for fault in FAULTS:
        if fault.room != room:
            continue
        try:
            if fault.file.endswith(".py"):
                ast.parse(patched((ROOT / fault.file).read_text(), fault))
        except (OSError, ValueError, SyntaxError) as error:
            problems.append(str(error))
        file, _, name = fault.test.partition("::")
        if not (ROOT / file).is_file() or name.partition("[")[0] not in _tests_in(ROOT / file):
            problems.append(f"{fault.file}: there is no test {fault.test}")
    assert not problems, "\n".join(problems)


def test_no_fault_is_listed_twice():
    places = [(fault.file, fault.old, fault.new) for fault in FAULTS]
    assert len(places) == len(set(places))


def _fault(old: str, new: str) -> Fault:
    return Fault(room="r", file="f.py", old=old, new=new, test="t")


def test_a_fault_whose_text_is_absent_or_repeated_is_refused():
    assert patched("a = 1\nb = 2\n", _fault("b = 2", "b = 3")) == "a = 1\nb = 3\n"
    for old, new in (("c", "d"), ("=", "+="), ("a = 1", "a = 1")):
        with pytest.raises(ValueError, match=r"times, not once|is the old one"):
            patched("a = 1\nb = 2\n", _fault(old, new))
