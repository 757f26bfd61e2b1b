"""The changes that docs/extending.md shows: each needs at most four files, fits the code, and passes its test."""

import re
import shutil
from pathlib import Path

import pytest

from tests.docs import scratch
from tests.docs.scratch import CHANGES, ROOT, apply, run_tests, scratch_copy
from tests.tiers import nightly_except


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


def test_each_change_is_run_in_a_copy_of_its_own_and_summed_up(monkeypatch, capsys, tmp_path):
    """A suite in which one change fails stands for the project's; pytest's own code counts."""
    (tmp_path / "test_one.py").write_text(
        "def test_without_a_change():\n    assert not open('change').read() == 'family'"
    )
    monkeypatch.setattr(scratch, "scratch_copy", lambda target: shutil.copytree(tmp_path, target))
    monkeypatch.setattr(scratch, "apply", lambda copy, change: (copy / "change").write_text(change.stem))
    options = ["-q", "-p", "no:cacheprovider", "-W", "ignore"]
    assert scratch.main(["--diffs", "family table", *options]) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == ["family.diff: failed", "table.diff: passed"]
    assert scratch.main(["--diffs", "table", *options]) == 0
    with pytest.raises(SystemExit):
        scratch.main(["--diffs", "families"])
    assert "no diff is called families: name some of activation, baseline" in capsys.readouterr().err
