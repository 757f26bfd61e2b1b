"""How far a long job is: a bar on a terminal, now and then a plain line elsewhere. All on standard error."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text

PLAIN_INTERVAL = 10.0
"""Seconds between two plain lines of one job, at least."""

COMPILED = frozenset({"sequences", "seeds", "steps", "tokens"})
"""Units of compiled programs: until the first is done the program is being compiled, which no rate should count."""

Advance = Callable[..., None]
"""Is called with a number of units that are done."""

_quiet = False
_live: Progress | None = None
_clock = time.monotonic


class Bar:
    """A bar that is shown: called with a number of units that are done, 1 unless given."""

    def __init__(self, tell: Callable[[int, bool], None], meter: _Meter | None = None) -> None:
        self._tell, self._meter = tell, meter

    def __call__(self, n: int = 1) -> None:
        """Count units that are done."""
        self._tell(n, False)

    def say(self, text: str) -> None:
        """Show a few words after the numbers, such as the loss; none where nothing is shown."""
        if self._meter is not None:
            self._meter.words = text

    def kept(self, n: int) -> None:
        """Count units that this job did not do: what was there before, or others bring; not for its rate."""
        self._tell(n, True)


def set_quiet(quiet: bool) -> None:
    """Silence every bar and note of this process, or let them speak again."""
    global _quiet
    _quiet = quiet


def note(text: str) -> None:
    """Print one line for the reader, above any bar, unless quiet."""
    if not _quiet:
        warn(text)


@functools.cache
def once(say: Callable[[str], None], text: str) -> None:
    """Print one line by :func:`note` or :func:`warn`, the first time in this process."""
    say(text)


def warn(text: str) -> None:
    """Print one line that changes what a result means: shown also where notes are silenced."""
    if _live is not None:
        _live.console.print(Text(text))
    else:
        # Nobody reads it, or its disk is full: no reason to lose the work.
        with contextlib.suppress(OSError):
            print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def bar(
    total: int | None, label: str, unit: str = "steps", quiet: bool = False, completed: int = 0, timed: bool = True
) -> Iterator[Bar]:
    """Show the progress of a block; the value it yields is called as work is done: ``advance(n=1)``.

    Bars may nest: on a terminal the inner ones stand below the outer one while they run.

    Args:
        total: how many units there are, or None where that is unknown; of 0 nothing is shown.
        label: what is being done ("sweep", "table1").
        unit: what is counted, in the plural ("sequences").
        quiet: show nothing.
        completed: units of earlier runs (a resumed job), where that is known by now; they do not count for the rate.
        timed: show a rate and the time left; not where units take very different times.

    Example:
        >>> with bar(3, "counting", quiet=True) as advance:
        ...     advance(2)
    """
    if quiet or _quiet or total == 0:
        yield Bar(lambda _n, _is_prior: None)
        return
    meter = _Meter(total, unit, completed, timed)
    show = _terminal_bar if _on_terminal() else _plain_bar
    with show(label, meter) as tell:
        yield Bar(tell, meter)


def _on_terminal() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def _terminal_bar(label: str, meter: _Meter) -> Iterator[Callable[[int, bool], None]]:
    # One live display holds the bars of every nesting level.
    global _live
    outermost = _live is None
    if _live is None:
        _live = Progress(
            SpinnerColumn(finished_text="✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=28),
            _Numbers(),
            console=Console(file=sys.stderr),
            refresh_per_second=5,
            redirect_stdout=False,  # standard output may be a pipe that carries JSON
        )
        _live.start()
    live = _live
    task = live.add_task(label, total=meter.total, completed=meter.done, meter=meter)

    def tell(n: int, is_prior: bool) -> None:
        meter.add(n, is_prior)
        live.advance(task, n)

    try:
        yield tell
    finally:
        if outermost:
            _live = None
            live.refresh()
            live.stop()
        else:
            live.remove_task(task)


class _Numbers(ProgressColumn):
    """Count, rate and time left of one task."""

    def render(self, task: Task) -> Text:
        return Text(task.fields["meter"].text())


@contextlib.contextmanager
def _plain_bar(label: str, meter: _Meter) -> Iterator[Callable[[int, bool], None]]:
    last_line_at = _clock()

    def tell(n: int, is_prior: bool) -> None:
        nonlocal last_line_at
        meter.add(n, is_prior)
        if _clock() - last_line_at >= PLAIN_INTERVAL and meter.done != meter.total:
            last_line_at = _clock()
            note(f"{label}: {meter.text()}")

    try:
        yield tell
    except BaseException:
        # What was refused before it began has an error to say so.
        if meter.done:
            note(f"{label}: stopped at {meter.count()}")
        raise
    note(f"{label}: {meter.closing()}")


class _Meter:
    """Counts units against the clock."""

    def __init__(self, total: int | None, unit: str, completed: int, timed: bool = True) -> None:
        self.total, self.unit, self.done, self._timed = total, unit, completed, timed
        self._before = completed
        self._start = self._began = self._latest = _clock()
        self._compiling = unit in COMPILED
        self.words = ""

    def add(self, n: int, is_prior: bool = False) -> None:
        self.done += n
        if is_prior:
            self._before += n
            return
        self._latest = _clock()
        if self._compiling:
            self._compiling, self._before, self._start = False, self.done, self._latest

    def rate(self) -> float | None:
        """Compute units per second up to the latest of them; None until there is one, or where it means nothing.

        The first units of a compiled program do not count: most of their time was the compiler's.
        """
        elapsed = self._latest - self._start if self._timed else 0.0
        return (self.done - self._before) / elapsed if elapsed > 0 and self.done > self._before else None

    def count(self) -> str:
        of = "" if self.total is None else f" of {self.total:,}"
        return f"{self.done:,}{of} {self.unit}"

    def text(self) -> str:
        parts = [self.count()]
        if self._compiling and self._timed and self.done != self.total:
            parts.append("compiling")
        rate = self.rate()
        if rate is not None:
            parts.append(_speed(rate, self.unit))
            if self.total is not None and self.done < self.total:
                since = _clock() - self._latest
                parts.append(f"{duration(max(0.0, (self.total - self.done) / rate - since))} left")
        return ", ".join([*parts, self.words] if self.words else parts)

    def closing(self) -> str:
        rate = self.rate()
        parts = [f"{self.count()} in {duration(_clock() - self._began)}"]
        if rate is not None:
            once_compiled = " once compiled" if self.unit in COMPILED else ""
            parts.append(f"{_speed(rate, self.unit)}{once_compiled}")
        return ", ".join(parts)


def _speed(rate: float, unit: str) -> str:
    if rate >= 0.95:
        return f"{rate:,.0f} {unit}/s" if rate >= 10 else f"{rate:.1f} {unit}/s"
    return f"{duration(1 / rate)} each"


def duration(seconds: float) -> str:
    """Write seconds in words: "0.4 s", "12 s", "3 min 05 s", "2 h 10 min".

    Example:
        >>> duration(0.44), duration(125)
        ('0.4 s', '2 min 05 s')
    """
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    if rounded < 3600:
        return f"{rounded // 60} min {rounded % 60:02d} s"
    return f"{rounded // 3600} h {rounded % 3600 // 60:02d} min"
