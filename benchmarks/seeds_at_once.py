"""S seeds trained at once against S runs of one seed, in turn: what the common loop costs or saves.

    python -m benchmarks seeds_at_once

On a CPU one seed fills the cores, so that no more than equal cost is to be had; on a GPU small models do not fill
it, and seeds at once are much cheaper.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.pretrain_vs_torch import TINY, Ours, seconds
from benchmarks.recorded import run
from bornbiased_jax.training import PretrainConfig


def measure(seeds: int, *, pairs: int, steps: int, batch_size: int, context: int) -> dict[str, Any]:
    """Pair timings: ``steps`` steps of all seeds at once, then of one seed ``seeds`` times."""
    rows = np.random.default_rng(0).integers(0, TINY.vocab_size, (steps, batch_size, context + 1), dtype=np.int32)
    config = PretrainConfig(
        model=TINY, data="none", out="none", seeds=tuple(range(seeds)), context=context, batch_size=batch_size
    )
    together, alone = Ours(config, 1000), Ours(PretrainConfig(**{**vars(config), "seeds": (0,)}), 1000)
    for side in (together, alone):
        seconds(side, list(rows), steps)
    times = []
    for _ in range(pairs):
        at_once = seconds(together, list(rows), steps)[0]
        in_turn = sum(seconds(alone, list(rows), steps)[0] for _ in range(seeds))
        times.append((at_once, in_turn))
    ratios = [at_once / in_turn for at_once, in_turn in times]
    tokens = seeds * steps * batch_size * context
    return {
        "seeds": seeds,
        "mode": together.mode,
        "cost_at_once_over_in_turn": statistics.median(ratios),
        "range": [min(ratios), max(ratios)],
        "tokens_per_second_at_once": tokens / statistics.median(pair[0] for pair in times),
        "tokens_per_second_in_turn": tokens / statistics.median(pair[1] for pair in times),
    }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; return the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    sizes = {name: getattr(options, name) for name in ("pairs", "steps", "batch_size", "context")}
    facts = dict(config=TINY, seeds=range(options.seeds), precision="float32 highest")
    return run(lambda: measure(options.seeds, **sizes), options.json, **facts)


if __name__ == "__main__":
    main()
