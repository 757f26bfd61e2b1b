"""A text to train on, and a signal at a step: what tests of whole runs share."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from bornbiased_jax.training import loop


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
    """``signal_at(step)``: SIGTERM while the given step is under way."""

    def arrange(step: int) -> None:
        real, calls = loop._Run._batch, []

        def batch(self):
            calls.append(1)
            if len(calls) == step:
                os.kill(os.getpid(), signal.SIGTERM)
            return real(self)

        monkeypatch.setattr(loop._Run, "_batch", batch)

    return arrange
