"""Every mitigation compared: sinks, dimension disparity, loss and cost, same data and same seeds.

Next to them what practitioners pay: rounding by scheme and scale with the first token rounded or not, the spread of the
activations, and the loss with a rolling cache (:mod:`bornbiased_jax.experiments.sinks.price_tables`).
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, each, variants
from bornbiased_jax.experiments.sinks import price_tables, sink_training
from bornbiased_jax.experiments.sinks.figure12 import setting_note
from bornbiased_jax.experiments.sinks.settings import (
    EPSILON,
    FIVE_SEEDS,
    HEAD_NORM,
    MITIGATIONS,
    PRICED,
    PRICED_SHORT,
    PRICED_SMOKE,
    settings_of,
)
from bornbiased_jax.report.numbers import fixed, mean_std, percent, significant, times
from bornbiased_jax.report.tables import Claim, Table, tabulate
from bornbiased_jax.training import PretrainConfig, State, begin


def _paired(run: Entry, base: Entry) -> tuple[float, float] | float:
    """Subtract the baseline's validation loss of the same seed: mean and standard deviation across seeds."""
    return mean_std(np.subtract(run["curve_validation_loss"][-1], base["curve_validation_loss"][-1]))


def _cost(record: Record, name: str) -> tuple[float, float] | float | None:
    """Divide the time of a step by the baseline's: median and standard deviation over rounds, or of the whole runs."""
    result = record["result"]
    if "step_seconds" in result:
        ratios = np.array(result["step_seconds"][name]) / np.array(result["step_seconds"]["baseline"])
        return float(np.median(ratios)), float(ratios.std(ddof=1))
    seconds, base = (result["cures"][variant]["seconds_per_step"] for variant in (name, "baseline"))
    return seconds / base if seconds and base else None


def tables(record: Record) -> Sequence[Table]:
    """Show the table that no paper has, then the measured prices."""
    result = record["result"]["cures"]
    base = result["baseline"]
    seeds = [seed for run in result.values() for seed in run["by_seed"]]
    # Rows of weights that do not sum to 1, divided by their sums: a column of its own where it says anything else.
    differ = any(sink_training.last_rate(seed) != seed["sink_rate_of_shares"] for seed in seeds)
    rows = []
    for name, run in result.items():
        over_seeds = functools.partial(sink_training.over_seeds, run)
        rate = {"sink rate": (percent(0), over_seeds(sink_training.last_rate))}
        if differ:
            rate["normalized rows"] = (percent(0), over_seeds(lambda seed: seed["sink_rate_of_shares"]))
        measured = {
            "top score": (fixed(2), over_seeds(lambda seed: seed["largest_score"])),
            "DomRatio": (fixed(1), over_seeds(lambda seed: seed["dom_ratio_first"][-1])),
            "rank": (fixed(1), over_seeds(lambda seed: seed["effective_rank"][-1])),
            "loss": (fixed(3), mean_std(run["curve_validation_loss"][-1])),
            "less baseline": (fixed(3), _paired(run, base)),
            "cost": (times(2), _cost(record, name)),
        }
        rows.append(([name], rate | measured))
    timed = "step_seconds" in record["result"]
    note = (
        f"After {base['steps']:,} steps of {base['data']}, mean ± standard deviation across seeds "
        f"{', '.join(map(str, base['seeds']))}. Sink rate: fraction of heads above ε = {EPSILON} at the greatest "
        "length; "
        + ("normalized rows: " if differ else "")
        + "the same after each row of weights was divided by its sum"
        + (". " if differ else ", which changes nothing. ")
        + "Top score: of the strongest head. DomRatio of the first token and effective rank of all states are those "
        "after the last block. Loss: held out, in nats a token; less baseline: of the same seed. Cost: time of a step "
        "over the baseline's"
        + (", timed in turn, median ± standard deviation over rounds. " if timed else " over the whole run. ")
        + setting_note(record)
    )
    first = tabulate("Every attention, same data, same seeds", ["attention"], rows, note)
    return [first, *price_tables.tables(record), *price_tables.worth(record)]


def run(context: Context) -> Entry:
    """Train and measure every mitigation; where the settings have a ``timing``, time their steps side by side too."""
    outcome = sink_training.run_mitigations(context)
    if "timing" not in context.settings:
        return outcome
    seconds = step_costs(context, context.settings["cures"], **context.settings["timing"])
    return {**outcome, "step_seconds": seconds}


def step_costs(context: Context, mitigations: Sequence[str], *, rounds: int, steps: int) -> dict[str, list[float]]:
    """Time a step of one seed in seconds, for each mitigation a list over rounds, and the losses.

    In a round every mitigation does its ``steps`` steps, one after the other, so that what else the machine does meets
    all of them: compare within a round. Compilation and a first step come before. Batches are random ids.
    """
    running = {name: _started(sink_training.run_config(context, name, context.work / "timed")) for name in mitigations}
    seconds: dict[str, list[float]] = {name: [] for name in mitigations}
    for _ in each(range(rounds), "cost of a step", "rounds", context.quiet):
        for name, (step, state, rows) in running.items():
            start = time.perf_counter()
            for _ in range(steps):
                state, _ = step(state, rows)
            jax.block_until_ready(state)
            seconds[name].append((time.perf_counter() - start) / steps)
            running[name] = (step, state, rows)
    return seconds


def _started(config: PretrainConfig) -> tuple[Any, State, jax.Array]:
    """Return the compiled step, the state after one step, and a batch."""
    state, step = begin(dataclasses.replace(config, seeds=config.seeds[:1]))
    shape = (config.accumulation, config.micro_batch, config.context + 1)
    rows = jnp.asarray(np.random.default_rng(0).integers(0, config.model.vocab_size, shape, dtype=np.int32))
    state, _ = step(state, rows)
    return step, jax.block_until_ready(state), rows


def claims(record: Record) -> Sequence[Claim]:
    """Claim per-head RMSNorm against the baseline."""
    result = record["result"]["cures"]
    return [
        Claim(
            f"Validation loss of per-head RMSNorm less the baseline's, {result['baseline']['steps']:,} "
            "steps, paired by seed",
            _paired(result[HEAD_NORM], result["baseline"]),
            format=significant(3),
        )
    ]


EXPERIMENT = Experiment(
    name="sink_cures",
    title="Every mitigation against sinks, and what it costs",
    paper="beyond the papers; “The Structural Origin of Attention Sink”, per-head RMSNorm",
    description=(
        "The calibrations of Section 6.2, per-head RMSNorm, output gates, extra logits, other kernels, a learned key "
        "and value, a window and no positions at all, trained from the same seeds on the same data: sinks, and what "
        "rounding and a rolling cache cost."
    ),
    settings={
        "smoke": settings_of(
            "smoke", ["baseline", HEAD_NORM, "sigmoid attention"], price=PRICED_SMOKE, timing={"rounds": 2, "steps": 1}
        ),
        "laptop": settings_of("laptop", MITIGATIONS, seeds=FIVE_SEEDS, price=PRICED, timing={"rounds": 9, "steps": 10}),
        "paper": settings_of("paper", MITIGATIONS),
    },
    cost={"laptop": "see the record", "paper": "weeks on several GPUs"},
    precision="float32 highest; bfloat16 training at paper scale",
    run=run,
    takes_data=SCALES,
    tables=tables,
    claims=claims,
)

EXPERIMENTS = variants(
    EXPERIMENT,
    sink_cures_larger=dict(
        title="Every mitigation at a larger size",
        paper="no paper's table",
        description=(
            "What sink_cures shows of two layers of width 32, for two of width 128, trained on half the context: what "
            "holds at one size alone shows where the two tables differ."
        ),
        settings={
            "smoke": {**EXPERIMENT.settings["smoke"], "cures": ["baseline", HEAD_NORM]},
            "laptop": settings_of(
                "larger", MITIGATIONS, seeds=FIVE_SEEDS, price=PRICED_SHORT, timing={"rounds": 5, "steps": 5}
            ),
        },
        cost={"laptop": "an hour or two on two cores"},
    ),
)
