"""Training as a share of the rate at which this machine multiplies matrices of the model's own shapes.

    python -m benchmarks training_rate
    python -m benchmarks training_rate --model llama-nano --context 2048 --batch-size 32 --dtype bfloat16 --goal 0.45

The second line is meant for a GPU. Operations are those that training needs (six for each weight and token, and
causal attention), not those that are computed twice; the rate is that of the step's own products, forward and backward,
in the same type, measured before and after each turn of steps.
"""

from __future__ import annotations

import argparse
import functools
import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np

from benchmarks.matmul import ProductShape, linear_shapes, rate_of
from benchmarks.pretrain_vs_torch import JaxLoop, seconds
from benchmarks.recorded import Findings, median_and_range, run
from benchmarks.tables import facts
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.training import PretrainConfig
from bornbiased_jax.training.throughput import flops_per_token

# Rows and columns of the head that are multiplied at once: all of a small batch, a chunk of a large one.
MAX_ROWS_HEAD = 8192


def products(cfg: ModelConfig, rows: int) -> Counter[ProductShape]:
    """List (m, k, n) of every [m, k] × [k, n] of one step on so many positions, and how often it occurs.

    Of each linear map y = x W: y itself, the gradient of x and that of W.
    """
    counts: Counter[ProductShape] = Counter()
    head_rows = min(rows, MAX_ROWS_HEAD)
    maps = [(rows, *shape, cfg.num_layers) for shape in linear_shapes(cfg)]
    maps.append((head_rows, cfg.d_model, cfg.vocab_size, max(1, rows // head_rows)))
    for many, fan_in, fan_out, times in maps:
        for shape in ((many, fan_in, fan_out), (many, fan_out, fan_in), (fan_in, many, fan_out)):
            counts[shape] += times
    return counts


def measure(config: PretrainConfig, *, turns: int, steps: int) -> Findings:
    """Time turns of ``steps`` steps of the compiled step, between two measurements of the products' rate each."""
    cfg, rows = config.model, config.micro_batch * config.context
    shape = (steps, config.batch_size, config.context + 1)
    tokens = np.random.default_rng(0).integers(0, cfg.vocab_size, shape, dtype=np.int32)
    precision = "highest" if config.dtype == "float32" else "default"
    products_rate = functools.partial(rate_of, products(cfg, rows), config.dtype, precision)
    loop = JaxLoop(config, 1000)
    seconds(loop, list(tokens), steps)
    wall_times, rates = [], [products_rate()]
    for _ in range(turns):
        wall_times.append(seconds(loop, list(tokens), steps)[0])
        rates.append(products_rate())
    count = steps * config.tokens_per_step * len(config.seeds)
    needed = count * flops_per_token(cfg, config.context)
    fractions = [
        2 * needed / wall / (before + after)
        for wall, before, after in zip(wall_times, rates[:-1], rates[1:], strict=True)
    ]
    return {
        "tokens_per_step": config.tokens_per_step,
        "seeds": len(config.seeds),
        "mode": loop.mode,
        "turns": turns,
        "steps_each": steps,
        "tokens_per_second": count / statistics.median(wall_times),
        "needed_tflops": needed / statistics.median(wall_times) / 1e12,
        "products_tflops_median": statistics.median(rates) / 1e12,
        **median_and_range("share_of_products_rate", fractions),
    }


tables = functools.partial(
    facts,
    title="The training step, {tokens_per_step:integer} tokens a step",
    rows={
        "tokens/s": "{tokens_per_second:integer}",
        "fraction of the rate of the step's own products": (
            "{share_of_products_rate_median:percent:0} ({share_of_products_rate_range:percent:0})"
        ),
    },
)


def main(arguments: Sequence[str] | None = None) -> Findings:
    """Measure and print; return the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="llama-tiny")
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--remat", action="store_true")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--goal", type=float, help="Fraction to be reached, kept in the record next to what was.")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    fields = {name: getattr(options, name) for name in ("context", "batch_size", "accumulation", "dtype", "remat")}
    seeds = tuple(range(options.seeds))
    config = PretrainConfig(model=preset(options.model), data="none", out="none", seeds=seeds, **fields)

    def work() -> Findings:
        return measure(config, turns=options.turns, steps=options.steps) | {"goal": options.goal}

    return run(work, options.json, config=config.to_dict(), seeds=seeds, precision=options.dtype)
