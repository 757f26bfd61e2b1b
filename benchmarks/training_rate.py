"""Training as a share of the rate at which this machine multiplies matrices of the model's own shapes.

    python -m benchmarks training_rate
    python -m benchmarks training_rate --model llama-nano --context 2048 --batch-size 32 --dtype bfloat16 --goal 0.45

The second line is meant for a GPU. Operations are those that training needs (six for each weight and token, and
causal attention), not those that are computed twice; the rate is that of the step's own products, forward and backward,
in the same type, measured before and after each turn of steps.
"""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from typing import Literal

import numpy as np

from benchmarks.matmul import ProductShape, linear_shapes, rate_of
from benchmarks.pretrain_vs_torch import JaxLoop, seconds
from benchmarks.recorded import Findings, command, median_and_range
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


def measure(
    model: str = "llama-tiny",
    context: int = 128,
    batch_size: int = 16,
    dtype: Literal["float32", "bfloat16"] = "float32",
    seeds: int = 1,
    turns: int = 5,
    steps: int = 8,
    goal: float | None = None,
) -> Findings:
    """Measure training as a fraction of the rate at which this machine multiplies the step's own matrices.

    Turns of the compiled step are timed, each between two measurements of the products' rate.

    Args:
        model: A preset.
        context: Tokens of a sequence.
        batch_size: Sequences of a step.
        dtype: Type of activations.
        seeds: Trained at once.
        turns: How often both are measured.
        steps: Of a turn.
        goal: Fraction to be reached, kept in the record next to what was.
    """
    config = PretrainConfig(
        model=preset(model), data="none", out="none", seeds=tuple(range(seeds)),
        context=context, batch_size=batch_size, dtype=dtype,
    )  # fmt: skip
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
        "goal": goal,
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


main = functools.partial(
    command,
    measure,
    about=lambda seeds, dtype, **_: {"seeds": range(seeds), "precision": dtype},
)
