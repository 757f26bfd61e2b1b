"""A task that is all arithmetic, and that can be made to die once."""

import os
import signal
from pathlib import Path

import numpy as np


def compute(settings, sources, chunks):
    if settings.get("dies_at") in [chunk.seed for chunk in chunks]:
        try:
            Path(sources["once"]).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        except FileExistsError:
            pass
    for chunk in chunks:
        if chunk.seed == settings.get("fails_at"):
            raise ZeroDivisionError("this seed is bad")
        inputs_N = np.arange(chunk.start, chunk.stop, dtype=np.float32)
        yield {"sum": settings["factor"] * chunk.seed + inputs_N.sum(), "nested": {"inputs": inputs_N}}
