import io
import os
import pty
import subprocess
import sys

import pytest

from bornbiased_jax import progress


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "_clock", clock)
    return clock


@pytest.fixture(autouse=True)
def audible():
    progress.set_quiet(False)
    yield
    progress.set_quiet(False)


def test_plain_lines_come_at_most_every_ten_seconds_and_once_at_the_end(clock, capsys):
    with progress.bar(100, "sweep", unit="sequences") as advance:
        for _ in range(50):
            clock.now += 0.5
            advance(2)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "sweep: 40 of 100 sequences, 4.0 sequences/s, 15 s left",
        "sweep: 80 of 100 sequences, 4.0 sequences/s, 5.0 s left",
        "sweep: 100 of 100 sequences in 25 s, 4.0 sequences/s once compiled",
    ]


def test_a_job_without_work_says_nothing(capsys):
    with progress.bar(0, "distances", unit="pairs"):
        pass
    assert capsys.readouterr().err == ""


def test_a_short_job_says_one_line(clock, capsys):
    with progress.bar(3, "models") as advance:
        clock.now += 0.5
        advance(3)
    assert capsys.readouterr().err == "models: 3 of 3 steps in 0.5 s\n"


def test_an_unknown_total_has_a_rate_but_no_end(clock, capsys):
    with progress.bar(None, "read", unit="lines") as advance:
        clock.now += 12
        advance(24_000)
    assert capsys.readouterr().err.splitlines() == [
        "read: 24,000 lines, 2,000 lines/s",
        "read: 24,000 lines in 12 s, 2,000 lines/s",
    ]


def test_rate_excludes_earlier_work(clock, capsys):
    with progress.bar(1000, "sweep", unit="seeds", completed=900) as advance:
        clock.now += 5
        advance(10)
        clock.now += 5
        advance.say("loss 2.50, epoch 0.10")
        advance(10)
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "sweep: 920 of 1,000 seeds, 2.0 seeds/s, 40 s left, loss 2.50, epoch 0.10"


def test_rate_excludes_chunks_already_stored(clock, capsys):
    with progress.bar(1000, "sweep", unit="sequences") as advance:
        advance.kept(500)
        clock.now += 3
        advance()  # the one that was compiled for
        clock.now += 10
        advance(20)
        advance.kept(479)
    assert capsys.readouterr().err.splitlines() == [
        "sweep: 521 of 1,000 sequences, 2.0 sequences/s, 4 min 00 s left",
        "sweep: 1,000 of 1,000 sequences in 13 s, 2.0 sequences/s once compiled",
    ]


def test_slow_rate_shown_as_seconds_each(clock, capsys):
    with progress.bar(4, "table1", unit="models") as advance:
        clock.now += 180
        advance()
    first = capsys.readouterr().err.splitlines()[0]
    assert first == "table1: 1 of 4 models, 3 min 00 s each, 9 min 00 s left"


def test_an_interrupted_job_says_where_it_stopped(clock, capsys):
    with pytest.raises(KeyboardInterrupt), progress.bar(10, "sweep", unit="seeds") as advance:
        advance(3)
        raise KeyboardInterrupt
    assert capsys.readouterr().err == "sweep: stopped at 3 of 10 seeds\n"


@pytest.mark.parametrize("everywhere", [False, True])
def test_quiet_says_nothing(everywhere, clock, capsys):
    progress.set_quiet(everywhere)
    with progress.bar(2, "sweep", quiet=not everywhere) as advance:
        clock.now += 60
        advance()
        advance(1)
    if everywhere:
        progress.note("nor this")
    assert capsys.readouterr() == ("", "")


def test_a_note_goes_to_standard_error(capsys):
    progress.note("one line")
    assert capsys.readouterr() == ("", "one line\n")


def test_terminal_bars_nest_and_leave_the_outermost_standing(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.delenv("NO_COLOR", raising=False)
    with progress.bar(2, "outer [all]", unit="experiments") as outer:
        with progress.bar(5, "inner", unit="seeds") as inner:
            inner(5)
        progress.note("between [the bars]")
        outer(2)
        assert [task.description for task in progress._live.tasks] == ["outer [all]"]
    assert progress._live is None
    text = terminal.getvalue()
    assert "between [the bars]" in text
    assert "2 of 2 experiments" in text and "outer [all]" in text


def test_on_a_real_terminal_the_bar_is_drawn_there():
    leader, follower = pty.openpty()
    program = (
        "from bornbiased_jax import progress\nwith progress.bar(3, 'sweep', unit='seeds') as advance:\n    advance(3)\n"
    )
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [sys.executable, "-W", "error", "-c", program]
    subprocess.run(command, stderr=follower, check=True, env=environment, timeout=120)
    os.close(follower)
    drawn = os.read(leader, 65536).decode()
    os.close(leader)
    assert "\x1b[" in drawn and "3 of 3 seeds" in drawn


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (185, "3 min 05 s"),
        (7800, "2 h 10 min"),
    ],
)
def test_duration(seconds, words):
    assert progress.duration(seconds) == words


def test_refused_job_prints_no_stop_line(clock, capsys):
    with pytest.raises(ValueError), progress.bar(10, "sweep", unit="seeds"):
        raise ValueError
    assert capsys.readouterr().err == ""


def test_compilation_shown_and_excluded_from_rate(clock, capsys):
    """100 s for the first batch, of which 99 are the compiler's; then a batch a second."""
    meter = progress._Meter(50, "sequences", 0)
    assert meter.text() == "0 of 50 sequences, compiling"
    clock.now += 100
    meter.add(2)
    assert meter.text() == "2 of 50 sequences"
    for _ in range(4):
        clock.now += 1
        meter.add(2)
    assert meter.text() == "10 of 50 sequences, 2.0 sequences/s, 20 s left"
    assert meter.closing() == "10 of 50 sequences in 1 min 44 s, 2.0 sequences/s once compiled"
    # Nothing is compiled where all was there before.
    meter = progress._Meter(50, "sequences", 0)
    meter.add(50, is_prior=True)
    assert meter.text() == "50 of 50 sequences"


def test_no_compilation_line_without_compilation(clock):
    meter = progress._Meter(4, "experiments", 0)
    assert meter.text() == "0 of 4 experiments"
