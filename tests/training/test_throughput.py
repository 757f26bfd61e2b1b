"""The rate of training: what its clock counts, and numbers read a step later."""

import time

import pytest

from bornbiased_jax.training import loop, pretrain, setup, throughput
from bornbiased_jax.training.metrics import read_metrics
from tests.training.small_run import losses, make


class _Slow:
    """A compiled step that takes at least so many seconds."""

    def __init__(self, program, seconds):
        self._program, self._seconds = program, seconds

    def __call__(self, state, batch):
        time.sleep(self._seconds)
        return self._program(state, batch)


@pytest.mark.slow
def test_the_rate_is_of_training_alone_and_never_beyond_it(place, monkeypatch):
    """Also in the lines of a step after which something is evaluated or saved."""
    compiled, needed = setup.compiled_step, 0.02

    def slow(*arguments):
        program, mode = compiled(*arguments)
        return _Slow(program, needed), mode

    monkeypatch.setattr(setup, "compiled_step", slow)
    # A peak measured in a busy moment.
    monkeypatch.setattr(loop, "matmul_peak", lambda *arguments: 1.0)
    config = make(place, "slow", steps=7, eval_every=3, checkpoint_every=5, log_every=2)
    summary = pretrain(config)
    fastest = 2 * config.tokens_per_step / needed
    rates = [line["tokens_per_second"] for line in read_metrics(config.out)]
    assert all(0 < rate <= fastest for rate in [*rates, summary["tokens_per_second"]])
    assert summary["peak_share"] == 1.0


@pytest.mark.slow
def test_numbers_read_one_step_behind_are_the_same(place, monkeypatch):
    """As on an accelerator, which never waits for the host."""
    runs = []
    init = loop._Run.__init__
    for behind in (False, True):

        def reading(self, *arguments, behind=behind):
            init(self, *arguments)
            self._reads_behind = behind

        monkeypatch.setattr(loop._Run, "__init__", reading)
        config = make(place, f"behind-{behind}", steps=7, eval_every=3, log_every=2)
        summary = pretrain(config)
        lines = read_metrics(config.out)
        assert [line["step"] for line in lines] == [2, 3, 4, 6, 7]
        assert [line["step"] for line in lines if "validation_loss" in line] == [3, 6, 7]
        runs.append((losses(config.out), summary["digests"]))
    assert runs[0] == runs[1]


def test_a_clock_counts_the_time_of_steps_alone(monkeypatch):
    times = iter([0.0, 10.0, 12.0, 16.0, 100.0, 101.0])
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: next(times))
    clock = throughput.TrainingClock(60)
    assert clock.rate is None
    clock.start()
    clock.count_step()
    clock.count_step()
    assert clock.lap() == clock.rate == 20.0
    # A checkpoint, from 16 to 100.
    clock.start()
    clock.count_step()
    assert clock.lap() == 60.0 and clock.rate == pytest.approx(180 / 7)
