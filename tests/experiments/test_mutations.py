"""The search that moves one constant of the theory at a time."""

import json

import pytest

from experiments.theory import mutations

TEXT = "SIZE = 3\n\n\ndef area(r, names=('a', 2)):\n    half = r / 2\n    return -half**2 + 0 * r + names[1]\n"


def test_operands_of_arithmetic_are_moved_and_nothing_else():
    found = list(mutations.mutations("area", TEXT))
    assert [(m.line, m.old, m.new) for m in found] == [(5, "2", "(1.05 * 2)"), (6, "2", "(1.05 * 2)")]
    assert found[0].apply(TEXT) == TEXT.replace("r / 2", "r / (1.05 * 2)")
    assert found[1].apply(TEXT) == TEXT.replace("half**2", "half**(1.05 * 2)")
    with pytest.raises(ValueError, match="has no 2 at line 5"):
        found[0].apply(TEXT.replace("r / 2", "r / 3"))


def test_every_module_of_the_theory_with_constants_is_searched():
    folder = mutations.ROOT / "theory"
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith(("test_", "__", "conftest"))}
    assert set(mutations.TESTS) <= modules
    for name in modules - set(mutations.TESTS):
        assert not list(mutations.mutations(name, (folder / f"{name}.py").read_text())), name
    assert all((folder / f"{test}.py").exists() for tests in mutations.TESTS.values() for test in tests)


@pytest.mark.slow
def test_a_mutation_is_tried_after_the_sound_code_and_the_search_goes_on(tmp_path):
    out = tmp_path / "found.json"
    first = mutations.run(out, ["given_head"], limit=1)
    (tried,) = first["mutations"]
    assert tried["module"] == "given_head" and tried["outcome"] not in ("no collection", "too long")
    assert len(first["provenance"]["code"]) > 8
    assert json.loads(out.read_text())["mutations"] == [tried] and first["constants"]["given_head"] > 1
    assert mutations.run(out, ["given_head"], minutes=0.0)["mutations"] == [tried]
    out.write_text(json.dumps(first | {"theory": "another"}))
    assert mutations.run(out, ["given_head"], limit=0)["mutations"] == []
