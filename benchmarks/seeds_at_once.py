"""S seeds trained at once against S runs of one seed, in turn: what the common loop costs or saves.

    python -m benchmarks seeds_at_once

On a CPU one seed fills the cores, so that no more than equal cost is to be had; on a GPU small models do not fill
it, and seeds at once are much cheaper.
"""

from __future__ import annotations

import functools
import statistics

import numpy as np

from benchmarks.pretrain_vs_torch import TINY, JaxLoop, seconds
from benchmarks.recorded import Findings, command
from benchmarks.tables import facts
from bornbiased_jax.training import PretrainConfig


def measure(seeds: int = 4, pairs: int = 5, steps: int = 4, batch_size: int = 16, context: int = 128) -> Findings:
    """Pair timings: ``steps`` steps of all seeds at once, then of one seed ``seeds`` times."""
    rows = np.random.default_rng(0).integers(0, TINY.vocab_size, (steps, batch_size, context + 1), dtype=np.int32)
    config = PretrainConfig(
        model=TINY, data="none", out="none", seeds=tuple(range(seeds)), context=context, batch_size=batch_size
    )
    together, alone = JaxLoop(config, 1000), JaxLoop(PretrainConfig(**{**vars(config), "seeds": (0,)}), 1000)
    for loop in (together, alone):
        seconds(loop, list(rows), steps)
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


tables = functools.partial(
    facts,
    title="{seeds} seeds at once (mode {mode})",
    rows={
        "time over that of runs of one seed": "{cost_at_once_over_in_turn:fixed:2} ({range:fixed:2})",
        "tokens/s at once": "{tokens_per_second_at_once:integer}",
        "tokens/s in turn": "{tokens_per_second_in_turn:integer}",
    },
)

main = functools.partial(
    command, measure, about=lambda seeds, **_: {"seeds": range(seeds)}, config=TINY, precision="float32 highest"
)
