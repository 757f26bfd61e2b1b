"""A text to train on, and a signal at a step: what tests of whole runs share."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from bornbiased_jax.training.stop import Stop


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
