"""Atomic writes, folders that know their own files, and sealed JSON: no file of others is replaced or removed."""

import contextlib
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest
from typing_extensions import TypedDict

from bornbiased_jax import io
from bornbiased_jax.errors import InputError
from bornbiased_jax.io import MARKER, Folder, replace_folder


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
    assert io.write_bytes(path, b"\x00\xff") == path
    assert path.read_bytes() == b"\x00\xff"
    io.write_text(path, "ρ = 0.3\n")
    assert path.read_text(encoding="utf-8") == "ρ = 0.3\n"
    value = {"ids": [1, 2], "share": 0.026, "none": None}
    io.write_json(path, value)
    assert io.read_json(path) == value
    assert path.read_bytes().endswith(b"\n")


def test_nothing_but_the_file_is_left(tmp_path):
    io.write_text(tmp_path / "a", "x")
    io.check_writable(tmp_path / "b")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_new_file_has_the_permissions_of_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        path = io.write_text(tmp_path / "a", "x")
        assert stat.S_IMODE(path.stat().st_mode) == mode
        path.chmod(0o640)
        io.write_text(path, "y")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("function", "error", "expected"),
    [
        ("fsync", OSError(28, "No space left on device"), InputError),
        ("replace", OSError(28, "No space left on device"), InputError),
        ("fsync", KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_failed_write_leaves_the_old_content_and_no_rubbish(tmp_path, monkeypatch, function, error, expected):
    path = io.write_text(tmp_path / "a", "old")

    def fail(*_):
        raise error

    monkeypatch.setattr(os, function, fail)
    with pytest.raises(expected, match="No space left on device|^$"):
        io.write_text(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_json_refuses_what_is_not_json_before_it_writes(tmp_path, number):
    path = io.write_text(tmp_path / "a", "old")
    with pytest.raises(ValueError, match="JSON"):
        io.write_json(path, {"x": number})
    assert path.read_text() == "old"


def test_a_folder_is_not_a_file(tmp_path):
    with pytest.raises(InputError, match="it is a folder"):
        io.check_writable(tmp_path)


def test_a_file_in_the_way_of_a_folder(tmp_path):
    (tmp_path / "a").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        io.check_writable(tmp_path / "a" / "b")


def test_a_folder_that_may_not_be_written_to():
    # Not in pytest's folder, which other users may not even enter.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o555)
        try:
            with an_ordinary_user(), pytest.raises(InputError, match="Permission denied"):
                io.check_writable(Path(folder) / "a")
        finally:
            Path(folder).chmod(0o700)
        io.check_writable(Path(folder) / "a")


def test_missing_or_invalid_json_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        io.read_json(tmp_path / "absent.json")
    broken = tmp_path / "broken.json"
    broken.write_text('{"a": ')
    with pytest.raises(InputError, match="not readable as JSON"):
        io.read_json(broken)
    broken.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not readable as JSON"):
        io.read_json(broken)
    with pytest.raises(InputError, match="is a folder"):
        io.read_json(tmp_path)
    broken.write_text(json.dumps([1]))
    assert io.read_json(broken) == [1]


def test_an_empty_path_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="empty path"):
        io.write_text("", "x")
    assert os.listdir(tmp_path) == []


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    (tmp_path / "far").mkdir()
    target = io.write_text(tmp_path / "far" / "target", "old")
    target.chmod(0o600)
    (tmp_path / "link").symlink_to(Path("far") / "target")
    (tmp_path / "dangling").symlink_to(tmp_path / "far" / "new")
    io.write_text(tmp_path / "link", "new")
    io.write_text(tmp_path / "dangling", "there")
    assert (tmp_path / "link").is_symlink() and target.read_text() == "new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert (tmp_path / "far" / "new").read_text() == "there"
    assert sorted(os.listdir(tmp_path / "far")) == ["new", "target"]
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(InputError, match="cannot write"):
        io.write_text(tmp_path / "round", "x")


def test_devices_and_pipes_are_written_to(tmp_path):
    """As root, a rename would make a plain file of /dev/null for the whole machine: tried on a device of our own."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    io.write_text(pipe, "through")
    reader.join(30)
    assert got == [b"through"] and stat.S_ISFIFO(pipe.stat().st_mode)
    try:
        os.mknod(tmp_path / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        return  # only root makes devices
    (tmp_path / "link").symlink_to("null")
    for name in ("null", "link"):
        io.write_json(tmp_path / name, {"a": 1})
    assert stat.S_ISCHR((tmp_path / "null").stat().st_mode)
    assert sorted(os.listdir(tmp_path)) == ["link", "null", "pipe"]


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "link"])
def test_append_redirection_not_truncated(tmp_path, name):
    if name == "link":
        name = str(tmp_path / "link")
        Path(name).symlink_to("/dev/stdout")
    log = tmp_path / "log"
    log.write_text("kept\n")
    code = f"from bornbiased_jax import io; print('before'); io.write_text({name!r}, 'written\\n'); print('after')"
    with log.open("a") as stream:
        subprocess.run([sys.executable, "-c", code], stdout=stream, check=True, timeout=60)
    assert log.read_text() == "kept\nbefore\nwritten\nafter\n"


def test_only_stale_part_files_removed(tmp_path):
    dead, alive, other = (tmp_path / name for name in (".a.00000000.part", ".a.11111111.part", ".ab.22222222.part"))
    for path in (dead, alive, other):
        path.write_text("half")
    (tmp_path / ".a.33333333.part").mkdir()
    thesis = tmp_path / ".a.my-thesis.part"
    thesis.mkdir()
    with alive.open() as stream:
        assert io.hold(stream.fileno())
        io.write_text(tmp_path / "a", "whole")
    assert sorted(os.listdir(tmp_path)) == [alive.name, thesis.name, other.name, "a"]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_refuses_nobody_and_removes_nothing(tmp_path, monkeypatch, code):
    """Lustre without its option `flock` answers ENOSYS: the first process there was told of another one."""

    def unsupported(*unused):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    for _ in range(2):
        with io.locked(tmp_path / "lock", wait=False) as is_held, io.locked(tmp_path / "lock"):
            assert is_held
    (tmp_path / ".a.00000000.part").write_text("half")
    io.write_text(tmp_path / "a", "whole")
    assert sorted(os.listdir(tmp_path)) == [".a.00000000.part", "a", "lock"]


def test_lock_is_for_one_and_let_go_of_although_a_child_has_the_file_open(tmp_path, monkeypatch):
    descriptors, real = [], fcntl.flock
    monkeypatch.setattr(fcntl, "flock", lambda number, kind: descriptors.append(number) or real(number, kind))
    with io.locked(tmp_path / "lock") as is_held:
        # A process that is forked meanwhile shares the open file.
        of_child = os.dup(descriptors[0])
        with io.locked(tmp_path / "lock", wait=False) as is_held_twice:
            assert is_held and not is_held_twice
        with io.locked(tmp_path / "lock", wait=False) as is_held_twice:
            assert not is_held_twice
    with io.locked(tmp_path / "lock", wait=False) as is_held:
        assert is_held
    os.close(of_child)


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("held", [False, True])
def test_a_part_that_was_cleared_before_its_lock_is_made_again(tmp_path, monkeypatch, folder, held):
    """Another process that clears up finds it between its making and its lock; it may have its lock meanwhile."""
    make, result = (os.mkdir, os.open)[not folder], []

    def met(name, *arguments):
        got = make(name, *arguments)
        # Opened again, by the test or by who clears up.
        if name in result:
            return got
        result.append(name)
        if len(result) < 3 and not held:
            io.clear_parts(tmp_path / "a")
        elif len(result) < 3:
            other = os.open(name, os.O_RDONLY)
            assert io.hold(other)

            def clear():
                (os.rmdir if folder else os.unlink)(name)
                os.close(other)

            threading.Timer(0.05, clear).start()
        return got

    monkeypatch.setattr(os, make.__name__, met)
    descriptor, name = io.make_part(tmp_path / "a", folder=folder)
    assert len(result) == 3 and name == result[-1]
    io.clear_parts(tmp_path / "a")
    assert [str(path) for path in tmp_path.iterdir()] == [name]
    os.close(descriptor)
    io.clear_parts(tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_writers_of_one_file_do_not_hinder_each_other(tmp_path):
    """Each clears up for its own write what it takes for left over."""
    code = (
        "import sys; from bornbiased_jax import io\n"
        "for number in range(300): io.write_text(sys.argv[1], f'{number}\\n' * 9)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "a")]
    writers = [subprocess.Popen(words, stderr=subprocess.PIPE) for _ in range(3)]
    assert [(writer.communicate(timeout=120)[1], writer.returncode) for writer in writers] == [(b"", 0)] * 3
    assert (tmp_path / "a").read_text() == "299\n" * 9
    assert os.listdir(tmp_path) == ["a"]


def test_damage_is_set_aside_under_a_new_name(tmp_path):
    for number in range(3):
        io.write_text(tmp_path / "a", str(number))
        io.set_aside(tmp_path / "a")
    contents = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert contents == {"a.damaged": "0", "a.damaged.1": "1", "a.damaged.2": "2"}
    assert io.set_aside(tmp_path / "gone meanwhile") == tmp_path / "gone meanwhile.damaged"


def test_homes_are_looked_up_in_one_way():
    """pathlib's own raises where a user has no home."""
    root = Path(io.__file__).parents[1]
    sources = [path for name in ("bornbiased_jax", "experiments") for path in (root / name).rglob("*.py")]
    assert len(sources) > 200
    assert not [path for path in sources if ".expanduser()" in path.read_text()]
    assert io.user_path("~nosuchuser/x") == Path("~nosuchuser/x")


def test_a_folder_that_goes_away_while_it_is_listed_is_named(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("")

    def going(self, pattern):
        yield self / "a"
        raise FileNotFoundError(2, "No such file or directory", str(self / "b"))

    monkeypatch.setattr(Path, "rglob", going)
    with pytest.raises(InputError, match="cannot be listed: .*/b: No such file or directory"):
        list(io.below(tmp_path))


class Count(TypedDict):
    count: int


@pytest.fixture
def path(tmp_path):
    io.write_sealed(tmp_path / "a.json", {"count": 3})
    return tmp_path / "a.json"


def test_json_model_round_trip(path):
    assert io.read_sealed(Count, path) == {"count": 3}


def test_a_changed_value_of_the_right_type_is_refused(path):
    path.write_text(path.read_text().replace("3,", "4,"))
    with pytest.raises(InputError, match="was changed since it was written: remove its folder"):
        io.read_sealed(Count, path)


def test_a_file_of_an_older_version_has_no_digest(path):
    path.write_text('{"count": 5}')
    assert io.read_sealed(Count, path) == {"count": 5}


@pytest.mark.parametrize("content", [[], {"count": "3"}, {"digest": "a"}, None])
def test_json_of_wrong_type_refused(path, content):
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"a\.json"):
        io.read_sealed(Count, path)


# Folders that commands fill.


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


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path):
    folder = Folder(tmp_path, "bornbiased x")
    folder.write_text("a", "x").unlink()
    os.mkfifo(tmp_path / "a")
    answer = []
    thread = threading.Thread(target=lambda: answer.append(folder.owns("a")), daemon=True)
    thread.start()
    thread.join(30)
    assert answer == [False]


def test_a_folder_that_the_same_command_began_meanwhile_is_its_own(tmp_path):
    actual, strange = Folder(tmp_path, "bornbiased x"), Folder(tmp_path, "bornbiased y")
    Folder(tmp_path, "bornbiased x").write_text("a", "by another process")
    actual.check("a")
    assert actual.is_marked and actual.owns("a")
    with pytest.raises(InputError, match="did not write"):
        strange.check()
