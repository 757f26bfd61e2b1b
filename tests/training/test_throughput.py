"""The rate of training, and numbers read a step later."""

import time

import pytest

from bornbiased_jax.training import pretrain, train
from bornbiased_jax.training.metrics import MetricsLog, read_metrics
from tests.training.small_run import losses, make


@pytest.mark.slow
def test_rate_is_of_training_alone_and_peak_fraction_at_most_one(place, monkeypatch):
    """Also in the lines of a step after which something is evaluated or saved."""
    needed = 0.02
    # A peak measured in a busy moment.
    monkeypatch.setattr(train, "matmul_peak", lambda *arguments: 1.0)
    config = make(place, "slow", steps=7, eval_every=3, checkpoint_every=5, log_every=2)
    summary = pretrain(config, hooks=[lambda *arguments: time.sleep(needed)])
    fastest = 2 * config.tokens_per_step / needed
    rates = [line["tokens_per_second"] for line in read_metrics(config.out)]
    assert all(0 < rate <= fastest for rate in [*rates, summary["tokens_per_second"]])
    assert summary["peak_share"] == 1.0


@pytest.mark.slow
def test_numbers_read_one_step_behind_are_the_same(place, monkeypatch):
    """As on an accelerator, which never waits for the host."""
    runs = []
    for behind in (False, True):
        init = MetricsLog.__init__

        def log(self, *arguments, behind=behind, init=init):
            init(self, *arguments)
            self.reads_behind = behind

        with monkeypatch.context() as patch:
            patch.setattr(MetricsLog, "__init__", log)
            config = make(place, f"behind-{behind}", steps=7, eval_every=3, log_every=2)
            summary = pretrain(config)
        lines = read_metrics(config.out)
        assert [line["step"] for line in lines] == [2, 3, 4, 6, 7]
        assert [line["step"] for line in lines if "validation_loss" in line] == [3, 6, 7]
        runs.append((losses(config.out), summary["digests"]))
    assert runs[0] == runs[1]
