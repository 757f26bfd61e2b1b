"""The changes that docs/extending.md shows: each needs at most four files, fits the code, and passes its test."""

import re
from pathlib import Path

import pytest

from tests.docs import scratch
from tests.docs.scratch import CHANGES, EVERY_DAY, ROOT, apply, failures_in, run_tests, scratch_copy
from tests.tiers import nightly_except

# Tests that go through lists: of fields, names, parameters, options, keys, experiments. A change that adds to one and
# forgets another list fails here; `make extending` runs all tests on such copies, the golden set among them.
LISTS = (
    "tests/cli/test_json.py tests/cli/test_options.py tests/docs/test_reference_pages.py "
    "tests/experiments/test_chapters.py tests/experiments/test_docs.py tests/test_config.py tests/test_exports.py "
    "tests/test_parameters.py tests/test_rooms.py tests/test_words.py"
).split()


def _files(diff: Path) -> list[str]:
    """Files that a diff changes or adds."""
    return re.findall(r"^diff --git a/\S+ b/(\S+)$", diff.read_text(), re.MULTILINE)


def _is_test(name: str) -> bool:
    return name.startswith("tests/")


def test_every_change_is_on_the_page():
    page = (ROOT / "docs" / "extending.md").read_text()
    assert len(CHANGES) == 8
    assert {diff.name for diff in CHANGES} == set(re.findall(r"\(extending/(\w+\.diff)\)", page))


@pytest.mark.parametrize("diff", CHANGES, ids=lambda diff: diff.stem)
def test_a_change_needs_four_files_and_fits(diff):
    names = _files(diff)
    assert 1 <= len([name for name in names if not _is_test(name) and not name.startswith("docs/")]) <= 4
    assert any(_is_test(name) for name in names)
    # Every line that is context or taken away is in the file as it is.
    for part in re.split(r"^(?=diff --git )", diff.read_text(), flags=re.MULTILINE)[1:]:
        name = _files_of(part)
        if "\nnew file mode" in part:
            assert not (ROOT / name).exists(), name
            continue
        text = (ROOT / name).read_text()
        for hunk in re.split(r"^@@.*$\n", part, flags=re.MULTILINE)[1:]:
            before = "".join(line[1:] for line in hunk.splitlines(keepends=True) if line[0] in " -")
            assert before in text, f"{diff.name} no longer fits {name}: make the change again and keep its diff"


def _files_of(part: str) -> str:
    match = re.match(r"diff --git a/\S+ b/(\S+)\n", part)
    assert match
    return match[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "diff",
    nightly_except(CHANGES, *(diff for diff in CHANGES if diff.stem == "baseline")),
    ids=lambda diff: diff.stem,
)
def test_a_change_passes_its_test(diff, tmp_path):
    copy = scratch_copy(tmp_path / "project")
    apply(copy, diff)
    code, printed = run_tests(copy, [name for name in _files(diff) if _is_test(name)])
    assert code == 0, printed


@pytest.mark.nightly
@pytest.mark.parametrize("diff", CHANGES, ids=lambda diff: diff.stem)
def test_a_change_passes_the_tests_of_lists(diff, tmp_path):
    copy = scratch_copy(tmp_path / "project")
    apply(copy, diff)
    code, printed = run_tests(copy, LISTS, marks=EVERY_DAY)
    assert code == 0, printed


TWO_TESTS = """
import pytest

def test_one_that_passes():
    pass

@pytest.mark.parametrize("number", [1, 2])
def test_numbers_are_odd(number):
    assert number % 2

@pytest.mark.slow
def test_that_takes_a_night():
    assert False
"""


@pytest.mark.slow
def test_failures_in_a_copy_are_named(tmp_path):
    copy = tmp_path / "project"
    copy.mkdir()
    (copy / "test_two.py").write_text(TWO_TESTS)
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore"]
    assert failures_in(copy, options) == ["test_two::test_numbers_are_odd[2]"]
    assert failures_in(copy, [*options, "-k", "passes"]) == []
    # Neither a suite without tests nor a call that pytest refuses counts as passed.
    assert failures_in(copy, [*options, "-k", "nothing"]) == ["pytest ended with code 5"]
    assert failures_in(copy, ["--no-such-option"]) == ["pytest ended with code 4"]


def test_each_change_is_run_in_a_copy_of_its_own_and_summed_up(monkeypatch, capsys, tmp_path):
    runs = []

    def copied(target):
        target.mkdir()
        return target

    def failing(copy, options):
        runs.append(([path.name for path in copy.iterdir()], options))
        return ["tests.test_words::test_a", "tests.test_words::test_b"] if (copy / "family.diff").exists() else []

    monkeypatch.setattr(scratch, "scratch_copy", copied)
    monkeypatch.setattr(scratch, "apply", lambda copy, change: (copy / change.name).write_text(""))
    monkeypatch.setattr(scratch, "failures_in", failing)
    assert scratch.main(["--diffs", "family table", "-n", "2"]) == 1
    assert runs == [(["family.diff"], ["-n", "2"]), (["table.diff"], ["-n", "2"])]
    summary = capsys.readouterr().out.rpartition("\n\n")[2]
    assert summary.splitlines() == [
        "family.diff: 2 failed", "  tests.test_words::test_a", "  tests.test_words::test_b", "table.diff: passed"
    ]  # fmt: skip
    assert scratch.main(["--diffs", "table"]) == 0
    # All of them, unless some are named.
    runs.clear()
    assert scratch.main([]) == 1
    assert [names for names, _ in runs] == [[change.name] for change in CHANGES]
    with pytest.raises(SystemExit):
        scratch.main(["--diffs", "families"])
    assert "no diff is called families: name some of activation, baseline" in capsys.readouterr().err
