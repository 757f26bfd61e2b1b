"""A text to train on, and a signal at a step: what tests of whole runs share."""

import dataclasses
import os
import signal

import numpy as np
import pytest

from bornbiased_jax.training import train
from bornbiased_jax.training.stop import Stop

# Settings of a run that are none of its programs': where it reads, and what it writes how often.
UNCOMPILED = {
    *("data", "out", "seeds", "data_seed", "tokenizer", "validation_fraction", "init_from", "steps", "schedule_steps"),
    *("checkpoint_every", "checkpoint_log_spaced", "keep_latest", "eval_every", "eval_sequences", "log_every"),
    *("tensorboard", "csv", "wandb", "token_cache", "processes", "quiet"),
}
_made = {}


def _once(make):
    """Make what is compiled for a run once in this process; a CPU takes seeds in turn, by the program of one."""

    def made(config, *arguments):
        if config.mesh is not None or config.seeds_mode != "auto":
            return make(config, *arguments)
        names = [field.name for field in dataclasses.fields(config) if field.name not in UNCOMPILED]
        key = make, arguments[0], *(getattr(config, name) for name in names)
        if key not in _made:
            _made[key] = make(config, *arguments)
        return _made[key]

    return made


train.make_optimizer = _once(train.make_optimizer)
train.compile_step = _once(train.compile_step)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with ``story.txt``, eighty documents of a few words."""
    folder = tmp_path_factory.mktemp("runs")
    rng = np.random.default_rng(0)
    words = ["sun", "moon", "river", "stone", "bird", "and", "the", "under"]
    (folder / "story.txt").write_text("\n\n".join(" ".join(rng.choice(words, 40)) for _ in range(80)))
    return folder


@pytest.fixture
def signal_at(monkeypatch):
    """``signal_at(step)``: SIGTERM when the given step of this call begins, which is still done."""

    def arrange(step: int) -> None:
        real = Stop.asked
        begun = []

        def asked(self, done):
            answer = real(self, done)
            begun.append(done)
            if len(begun) == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return answer

        monkeypatch.setattr(Stop, "asked", asked)

    return arrange
