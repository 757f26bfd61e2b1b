"""What a terminal, a pipe or a full disk does to a command: an exit code and at most one sentence."""

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bornbiased_jax.cli import main as entry
from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError

MAIN = sys.modules["bornbiased_jax.cli.main"]
CALL = [sys.executable, "-m", "bornbiased_jax", "--help"]


def test_a_full_disk_behind_standard_output_is_one_sentence():
    with Path("/dev/full").open("w") as full:
        process = subprocess.run(CALL, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert (process.returncode, process.stderr.count("\n")) == (2, 1)
    assert "No space left on device" in process.stderr and "Traceback" not in process.stderr


def test_broken_pipe_is_silent():
    reading, writing = os.pipe()
    os.close(reading)
    process = subprocess.run(CALL, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120)
    os.close(writing)
    assert (process.returncode, process.stderr) == (1, "")


def test_a_full_disk_behind_standard_error_loses_the_sentence_alone():
    with Path("/dev/full").open("w") as full:
        process = subprocess.run([*CALL[:3], "nonsense"], stdout=subprocess.PIPE, stderr=full, timeout=120)
    assert process.returncode == 2


@pytest.mark.parametrize(
    ("words", "closed", "code"), [(["--help"], "1>&-", 0), (["nonsense"], "2>&-", 2), (["--help"], "0<&-", 0)]
)
def test_a_stream_that_the_shell_has_closed_changes_no_exit_code(words, closed, code):
    command = shlex.join([*CALL[:3], *words])
    process = subprocess.run(["bash", "-c", f"{command} {closed}"], capture_output=True, text=True, timeout=120)
    assert process.returncode == code and "Traceback" not in process.stderr
    # The sentence goes where errors go, or nowhere.
    assert not process.stdout if code else not process.stderr


# Where the tests run in the background SIGINT is ignored, and would be in what they start.
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
INTERRUPTED = (
    HEARD
    + """
import os, sys
from bornbiased_jax.cli.main import main
from bornbiased_jax.cli import main as _, options

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "bornbiased_jax.cli.models":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
main(["models"])
"""
)


def test_ctrl_c_during_imports_ends_at_once():
    process = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=120)
    assert (process.returncode, process.stdout, process.stderr) == (130, "", "bornbiased: interrupted\n")


@pytest.fixture
def interrupted(monkeypatch):
    """``interrupted(work)``: the exit code of a command that does ``work``, in which Ctrl-C is pressed."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def of(work):
        with monkeypatch.context() as patch:
            patch.setattr(MAIN.cli, "main", lambda **unused: work())
            patch.setattr(MAIN, "leave", lambda code: (_ for _ in ()).throw(SystemExit(code)))
            with pytest.raises(SystemExit) as ended:
                entry(["models"])
        return ended.value.code

    yield of
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_during_work_can_be_answered_by_the_work(interrupted, capsys):
    """A KeyboardInterrupt, so that what was begun is finished or taken back."""
    cleaned = []

    def work():
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            cleaned.append(True)

    assert interrupted(work) == 130 and cleaned
    assert capsys.readouterr().err == "bornbiased: interrupted\n"


def test_ctrl_c_that_a_library_catches_is_not_taken_for_bad_input(interrupted, capsys):
    """Raise the error of a library that was interrupted while it read."""

    def work():
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            raise InputError("the checkpoint is corrupted") from None

    assert interrupted(work) == 130
    assert capsys.readouterr().err == "bornbiased: interrupted\n"
    # The next command of the process is judged for itself.
    assert run(["report", "no such folder"]) == 2


EMPTY = [
    ["models", "--json", ""],
    ["export", "seed:1@gpt2-tiny", ""],
    ["export", "", "out"],
    ["probe", "preference", "--model", "gpt2-tiny", "--num-inputs", "4", "--seq-len", "4", "--resume", " "],
    ["fingerprint", "seed:1@gpt2-tiny", "--out", ""],
    ["seedprint", "seed:1@gpt2-tiny", "seed:2@gpt2-tiny", "--page", ""],
    ["sinks", "seed:1@gpt2-tiny", "--text", "a.txt", "--figures", ""],
    ["pretrain", "--model", "gpt2-tiny", "--data", "builtin:prose", "--out", ""],
    ["reproduce", "table1", "--out", ""],
    ["plot", "run", "--out", ""],
    ["whichseed", "seed:1@gpt2-tiny", "--seeds", "0:9", "--resume", ""],
]


@pytest.mark.parametrize("argv", EMPTY, ids=lambda argv: argv[0])
def test_an_empty_path_is_refused(argv, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert "it is empty" in refused(argv)
    assert list(tmp_path.iterdir()) == []


def test_dev_stdout_is_standard_output(capsys, monkeypatch):
    assert run(["reproduce", "--list", "--scale", "smoke", "--json", "/dev/stdout"]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("{") and out.out.endswith("}\n") and "table1" in out.err


def test_interrupt_in_gc_callback_ends_command():
    """There Python prints what was raised and continues as if nothing had been asked."""
    program = HEARD + (
        "import gc, os, sys; import bornbiased_jax.cli; entry = sys.modules['bornbiased_jax.cli.main']; "
        "interrupt = lambda *unused: os.kill(os.getpid(), signal.SIGINT); "
        "entry.run = lambda argv: (gc.callbacks.append(interrupt), gc.collect(), 0)[2]; entry.main([])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 130
    assert ended.stderr.strip().splitlines() == ["bornbiased: interrupted"]
