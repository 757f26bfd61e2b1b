"""Signals before, between and while saving: a run stops where it can resume."""

import contextlib
import os
import signal
from pathlib import Path

import pytest
from orbax.checkpoint.experimental.v1._src.handlers.pytree_handler import PyTreeHandler

from bornbiased_jax.cli.main import run as command
from bornbiased_jax.training import pretrain, train
from bornbiased_jax.training.checkpoint import Checkpointer, find_steps
from bornbiased_jax.training.metrics import read_metrics
from bornbiased_jax.training.stop import PATIENCE, Stop
from tests.tiers import nightly_except
from tests.training.small_run import make, words

pytestmark = pytest.mark.slow


def test_a_run_stopped_between_two_lines_still_logs(place, signal_at, capsys):
    signal_at(3)
    assert command(words(place, "seldom", "--log-every", "100", "--tokenizer", "bytes")) == 143
    assert "step 3 of 6, loss seed 42" in capsys.readouterr().out
    assert [line["step"] for line in read_metrics(place / "seldom")] == [3]
    assert find_steps(place / "seldom") == [0, 3]
    # In the end there are the lines of a run that nothing stopped.
    assert command(words(place, "seldom", "--log-every", "100", "--tokenizer", "bytes")) == 0
    assert [line["step"] for line in read_metrics(place / "seldom")] == [6]


SIGNALS = nightly_except(
    [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)], (signal.SIGINT, KeyboardInterrupt)
)


@pytest.mark.parametrize("number, expected", SIGNALS)
def test_signals_before_training(place, monkeypatch, number, expected):
    real = train.compile_step

    def compiled(*arguments):
        os.kill(os.getpid(), number)
        return real(*arguments)

    config = make(place, f"early{int(number)}")
    with monkeypatch.context() as patch:
        patch.setattr(train, "compile_step", compiled)
        with pytest.raises(expected):
            pretrain(config)
    assert signal.getsignal(number) is not None and not read_metrics(config.out)
    assert pretrain(config)["finished"]


def test_an_interrupt_that_was_lost_stops_before_the_first_step(place, monkeypatch):
    """Some callbacks swallow exceptions."""
    real = train.compile_step

    def compiled(*arguments):
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        return real(*arguments)

    monkeypatch.setattr(train, "compile_step", compiled)
    config = make(place, "swallowed")
    with pytest.raises(KeyboardInterrupt):
        pretrain(config)
    assert find_steps(Path(config.out)) == [0] and not read_metrics(config.out)


@pytest.mark.parametrize("number, expected", SIGNALS)
def test_a_signal_while_a_checkpoint_is_read_waits_for_it(place, monkeypatch, number, expected, capsys):
    """Orbax answers any exception within its reading of metadata as if there were none."""
    config = make(place, f"reading{int(number)}")
    full = pretrain(config)
    real, reads = PyTreeHandler.metadata, []

    async def metadata(self, directory):
        reads.append(directory)
        os.kill(os.getpid(), number)
        return await real(self, directory)

    with monkeypatch.context() as patch:
        patch.setattr(PyTreeHandler, "metadata", metadata)
        with pytest.raises(expected):
            pretrain(config)
    message = capsys.readouterr().err
    assert reads and "as soon as this checkpoint is read" in message and "corrupted" not in message
    assert pretrain(config)["digests"] == full["digests"]


@pytest.mark.nightly
def test_many_interrupts_break_off_even_the_reading(place, monkeypatch):
    config, reads = make(place, "stuck"), []
    pretrain(config)

    def restore(self, abstract, seeds):
        for _ in range(20):
            reads.append(1)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Checkpointer, "restore", restore)
    with pytest.raises(KeyboardInterrupt):
        pretrain(config)
    assert len(reads) == PATIENCE + 1


@pytest.mark.nightly
def test_metadata_that_cannot_be_read_are_left_to_the_reading(place, monkeypatch):
    config = make(place, "unread")
    full = pretrain(config)

    async def metadata(self, directory):
        raise OSError("not now")

    monkeypatch.setattr(PyTreeHandler, "metadata", metadata)
    again = pretrain(config)
    assert again["resumed_from"] == 6 and again["digests"] == full["digests"]


def test_signals_while_saving_wait_for_it(place, monkeypatch, signal_at):
    signal_at(3)
    real, waits = Checkpointer.wait, []

    def wait(self):
        waits.append(1)
        # The first is for the initialization.
        if len(waits) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGINT)
        real(self)

    monkeypatch.setattr(Checkpointer, "wait", wait)
    config = make(place, "impatient", checkpoint_every=None)
    with pytest.raises(KeyboardInterrupt):
        pretrain(config)
    assert find_steps(Path(config.out))[-1] == 3


def test_a_handler_that_python_did_not_set_stays(monkeypatch):
    """Python says None of one that a host program set in C, and takes no None back."""
    handlers = {signal.SIGTERM: None, signal.SIGINT: signal.default_int_handler}

    def set_handler(number, handler):
        if handler is None:
            raise TypeError("signal handler must be signal.SIG_IGN, signal.SIG_DFL, or a callable object")
        former, handlers[number] = handlers[number], handler
        return former

    before = dict(handlers)
    monkeypatch.setattr(signal, "getsignal", handlers.get)
    monkeypatch.setattr(signal, "signal", set_handler)
    stop = Stop()
    with stop.listening():
        assert handlers[signal.SIGINT] == stop._take
    assert handlers == before
