"""Signals that ask a run to stop: answered between two steps, and never in the middle of a checkpoint."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Literal, NoReturn

import jax
from jax.experimental import multihost_utils

from bornbiased_jax import progress

# So many signals are answered by stopping in good order; after them Ctrl-C breaks off.
PATIENCE = 3

Handler = Callable[[int, FrameType | None], object] | int | None
"""What Python does at a signal: a function, one of ``signal.Handlers``, or None where it was set by another program."""


class Stop:
    """Remembers that somebody asked the run to stop, so that it does so between two steps."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.phase: Literal["before", "training", "saving"] = "before"
        self._num_signals = 0
        self._is_blocked = False
        self._former: dict[int, Handler] = {}

    def asked(self, step: int) -> bool:
        """Return whether to stop before the next step; the same answer in every process."""
        if jax.process_count() > 1:
            # jax's own service listens for SIGTERM and agrees on a step with the other processes.
            return bool(multihost_utils.reached_preemption_sync_point(step))
        return self.signal is not None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM and Ctrl-C while the block runs, where that is possible: in the main thread, from Python."""
        if jax.process_count() > 1 or threading.current_thread() is not threading.main_thread():
            yield
            return
        # A handler that another program set in this process could not be put back: it stays.
        numbers = [number for number in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(number) is not None]
        self._former = {number: signal.signal(number, self._take) for number in numbers}
        try:
            yield
        finally:
            for number, handler in self._former.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Put signals before training off until the block ends.

        Orbax catches the exception of one, and then misses what it was reading as if the checkpoint were corrupted.
        """
        self._is_blocked = True
        try:
            yield
        finally:
            self._is_blocked = False
        if self.signal is not None:
            self._break_off(self.signal, None)

    def _break_off(self, number: int, frame: FrameType | None) -> NoReturn:
        former = self._former.get(number)
        if number == signal.SIGINT and callable(former):
            # Whoever listened before knows better when an exception may be raised.
            former(number, frame)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _take(self, number: int, frame: FrameType | None) -> None:
        # Also where the exception is lost, as it is in a callback, the run ends before its first step.
        self.signal, self._num_signals = number, self._num_signals + 1
        if self._is_blocked and self._num_signals <= PATIENCE:
            progress.note("stopping as soon as this checkpoint is read or written")
            return
        if self.phase == "before":
            self._break_off(number, frame)
        if number == signal.SIGINT and self._num_signals > PATIENCE:
            raise KeyboardInterrupt
        saving = self._num_signals > 1 or self.phase == "saving"
        progress.note("the checkpoint is being written" if saving else "stopping after this step, with a checkpoint")
