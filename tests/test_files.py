import contextlib
import json
import os
import stat
import tempfile
from pathlib import Path

import pytest

from bornbiased_jax import files
from bornbiased_jax.errors import InputError


@contextlib.contextmanager
def an_ordinary_user():
    """Permission bits do not stop root: root is nobody for as long."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_bytes_text_and_json_come_back_and_folders_are_made(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    assert files.write_bytes(path, b"\x00\xff") == path
    assert path.read_bytes() == b"\x00\xff"
    files.write_text(path, "ρ = 0.3\n")
    assert path.read_text(encoding="utf-8") == "ρ = 0.3\n"
    value = {"ids": [1, 2], "share": 0.026, "none": None}
    files.write_json(path, value)
    assert files.read_json(path) == value
    assert path.read_bytes().endswith(b"\n")


def test_nothing_but_the_file_is_left(tmp_path):
    files.write_text(tmp_path / "a", "x")
    files.check_writable(tmp_path / "b")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_the_file_can_be_read_by_others(tmp_path):
    path = files.write_text(tmp_path / "a", "x")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_content_and_no_rubbish(tmp_path, monkeypatch, failing):
    path = files.write_text(tmp_path / "a", "old")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(InputError, match=r"No space left on device"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_an_interrupted_write_leaves_the_old_content_and_no_rubbish(tmp_path, monkeypatch):
    path = files.write_text(tmp_path / "a", "old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_refuses_what_is_not_json_before_it_writes(tmp_path, number):
    path = files.write_text(tmp_path / "a", "old")
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, {"x": number})
    assert path.read_text() == "old"


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="it is a folder"):
        files.check_writable(tmp_path)


def test_a_file_in_the_way_of_a_folder(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        files.check_writable(tmp_path / "a" / "b")


def test_a_folder_that_may_not_be_written_to():
    # Not in pytest's folder, which other users may not even enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        try:
            with an_ordinary_user(), pytest.raises(InputError, match="Permission denied"):
                files.check_writable(Path(folder) / "a")
        finally:
            Path(folder).chmod(0o700)
        files.check_writable(Path(folder) / "a")


def test_reading_what_is_missing_or_is_not_json(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        files.read_json(tmp_path / "absent.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"a": ')
    with pytest.raises(InputError, match="not readable as JSON"):
        files.read_json(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not readable as JSON"):
        files.read_json(broken)
    with pytest.raises(InputError, match="not readable as JSON"):
        files.read_json(tmp_path)
    broken.write_text(json.dumps([1]))
    assert files.read_json(broken) == [1]
