"""Folders that commands fill: marked as theirs, those of others refused, and old ones replaced as a whole."""

import json
import os
import stat

import pytest

from bornbiased_jax import io
from bornbiased_jax.errors import InputError
from bornbiased_jax.folders import MARKER, Folder, replace_folder


def test_a_new_folder_is_marked_with_its_first_file(tmp_path):
    folder = Folder(tmp_path / "out", "bornbiased x")
    folder.check("a.json")
    assert not folder.path.exists() and not folder.is_marked
    folder.write_json("a.json", {"a": 1})
    again = Folder(folder.path, "bornbiased x")
    again.check("a.json")
    assert again.is_marked and again.owns("a.json") and again.entries() == ["a.json"]
    again.write_json("a.json", {"a": 2})
    assert json.loads((folder.path / "a.json").read_text()) == {"a": 2}
    assert io.read_json(folder.path / "a.json") == {"a": 2}


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "a.json").write_text("mine")
    for overwrite, offered in ((None, False), (False, True)):
        with pytest.raises(InputError, match=r"holds a.json and 1 more, which `bornbiased x` did not write") as caught:
            Folder(tmp_path, "bornbiased x", overwrite=overwrite).check("a.json")
        assert ("--overwrite" in str(caught.value)) == offered
    assert sorted(os.listdir(tmp_path)) == ["a.json", "thesis.tex"]
    taken = Folder(tmp_path, "bornbiased x", overwrite=True)
    taken.check("a.json")
    taken.write_text("a.json", "ours")
    assert (tmp_path / "thesis.tex").read_text() == "years of work" and (tmp_path / "a.json").read_text() == "ours"
    # From now on it is the command's, and the rest is left alone without being asked about.
    Folder(tmp_path, "bornbiased x", overwrite=False).write_text("a.json", "again")


def test_folder_of_another_command_refused(tmp_path):
    Folder(tmp_path, "bornbiased x").write_text("a", "x")
    with pytest.raises(InputError, match="holds a, which `bornbiased y` did not write"):
        Folder(tmp_path, "bornbiased y").check("a")


def test_a_file_that_was_changed_or_put_in_the_way_is_refused(tmp_path):
    folder = Folder(tmp_path, "bornbiased x", overwrite=False)
    folder.write_text("a", "ours")
    (tmp_path / "a").write_text("changed")
    (tmp_path / "b").symlink_to("a")
    for name in ("a", "b"):
        with pytest.raises(InputError, match="was changed since .* or give --overwrite"):
            Folder(tmp_path, "bornbiased x", overwrite=False).check(name)
        with pytest.raises(InputError, match="was changed since"):
            folder.write_text(name, "new")
    assert (tmp_path / "a").read_text() == "changed"


def test_a_kill_between_marker_and_file_leaves_the_old_file_known(tmp_path, monkeypatch):
    folder = Folder(tmp_path, "bornbiased x")
    folder.write_text("a", "old")
    with monkeypatch.context() as patched:
        patched.setattr(io, "write_bytes", lambda *unused: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            folder.write_text("a", "new")
    with (tmp_path / MARKER).open("a") as stream:
        stream.write('{"file": "b", "sh')  # a line cut short
    again = Folder(tmp_path, "bornbiased x")
    assert again.owns("a") and not again.knows("b")
    again.write_text("b", "b")
    assert Folder(tmp_path, "bornbiased x").owns("b")


def test_a_fresh_folder_takes_the_place_of_the_old_one(tmp_path):
    target = tmp_path / "out"
    for content in ("one", "two"):
        with replace_folder(target, "bornbiased x") as result:
            (result / content).write_text(content)
        marked = Folder(target, "bornbiased x")
        assert marked.entries() == [content] and marked.owns(content)
        target.chmod(0o750)
    with replace_folder(target, "bornbiased x") as result:
        (result / "two").write_text("")
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    assert os.listdir(tmp_path) == ["out"]
    with pytest.raises(ZeroDivisionError), replace_folder(target, "bornbiased x") as result:
        (result / "three").write_text("")
        raise ZeroDivisionError
    assert os.listdir(tmp_path) == ["out"] and Folder(target, "bornbiased x").entries() == ["two"]


def killed_after(renames, target, monkeypatch):
    """Replace a folder by a call that ends at once after so many renames."""
    rename, calls = os.rename, []

    def some(*names):
        calls.append(names)
        if len(calls) > renames:
            raise OSError(5, "Input/output error")
        rename(*names)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", some)
        with pytest.raises(InputError, match="Input/output error"), replace_folder(target, "bornbiased x") as result:
            (result / "new").write_text("new")


def test_a_folder_that_a_killed_call_moved_aside_is_brought_back(tmp_path, monkeypatch):
    target, replaced = tmp_path / "out", tmp_path / ".out.replaced"
    with replace_folder(target, "bornbiased x") as result:
        (result / "old").write_text("kept")
    killed_after(1, target, monkeypatch)
    assert not target.exists() and (replaced / "old").read_text() == "kept"
    with replace_folder(target, "bornbiased x") as result:
        assert Folder(target, "bornbiased x").owns("old") and not replaced.exists()
        (result / "newer").write_text("newer")
    assert os.listdir(tmp_path) == ["out"] and Folder(target, "bornbiased x").entries() == ["newer"]


def test_an_older_folder_next_to_its_successor_is_removed_and_next_to_another_named(tmp_path, monkeypatch):
    target, replaced = tmp_path / "out", tmp_path / ".out.replaced"
    with replace_folder(target, "bornbiased x") as result:
        (result / "old").write_text("kept")
    killed_after(2, target, monkeypatch)
    assert (target / "new").read_text() == "new" and (replaced / "old").read_text() == "kept"
    both_left = r"\.out\.replaced is what `bornbiased y` moved aside for .*out: move one"
    with pytest.raises(InputError, match=both_left), replace_folder(target, "bornbiased y"):
        pass
    assert (replaced / "old").read_text() == "kept"
    with replace_folder(target, "bornbiased x") as result:
        assert Folder(target, "bornbiased x").owns("new") and not replaced.exists()
    assert os.listdir(tmp_path) == ["out"]


def test_a_file_that_another_process_of_the_command_wrote_meanwhile_is_its_own(tmp_path):
    first, other = Folder(tmp_path, "bornbiased x"), Folder(tmp_path, "bornbiased x")
    other.write_text("a", "by the other")
    assert first.owns("a")
    first.write_text("a", "by the first")
    other.write_text("a", "by the other again")
    (tmp_path / "a").write_text("by hand")
    with pytest.raises(InputError, match="was changed since"):
        first.write_text("a", "by the first")


def test_a_folder_that_the_same_command_began_meanwhile_is_its_own(tmp_path):
    actual, strange = Folder(tmp_path, "bornbiased x"), Folder(tmp_path, "bornbiased y")
    Folder(tmp_path, "bornbiased x").write_text("a", "by another process")
    actual.check("a")
    assert actual.is_marked and actual.owns("a")
    with pytest.raises(InputError, match="did not write"):
        strange.check()
