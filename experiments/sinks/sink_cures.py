"""Every mitigation side by side: sinks, dimension disparity, loss and cost, same data and same seeds.

Beside them what practitioners pay: rounding by scheme and scale with the first token rounded or not, the spread of the
activations, and the loss with a rolling cache (:mod:`experiments.sinks.price_tables`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, percent, times
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table
from experiments.base import Context, Experiment, Record
from experiments.sinks import price_tables, sink_training
from experiments.sinks.figure12 import setting_note
from experiments.sinks.mitigations import HEAD_NORM, MITIGATIONS
from experiments.sinks.step_cost import step_costs


def _last_loss(run: Mapping[str, Any], seed_index: int) -> float:
    return float(run["curve_validation_loss"][-1][seed_index])


def _paired(run: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[float, float] | float:
    """Validation loss less the baseline's of the same seed: mean and standard deviation across seeds."""
    gaps = np.array([_last_loss(run, i) - _last_loss(base, i) for i in range(len(run["seeds"]))])
    return (float(gaps.mean()), float(gaps.std(ddof=1))) if len(gaps) > 1 else float(gaps[0])


def _cost(record: Record, name: str) -> tuple[float, float] | float | None:
    """Time of a step over the baseline's: median and standard deviation over rounds, or of the whole runs."""
    result = record["result"]
    if "step_seconds" in result:
        ratios = np.array(result["step_seconds"][name]) / np.array(result["step_seconds"]["baseline"])
        return float(np.median(ratios)), float(ratios.std(ddof=1))
    own, base = (result["cures"][which]["seconds_per_step"] for which in (name, "baseline"))
    return own / base if own and base else None


def _of_average(seed: Mapping[str, Any]) -> float:
    return float(seed["sink_rate_of_shares"])


def tables(record: Record) -> Sequence[Table]:
    """The table that no paper has, then what was measured of prices."""
    result = record["result"]["cures"]
    base = result["baseline"]
    seeds = [seed for run in result.values() for seed in run["by_seed"]]
    # Rows of weights that do not sum to 1, divided by their sums: a column of its own where it says anything else.
    differ = any(list(seed["sink_rate"].values())[-1] != seed["sink_rate_of_shares"] for seed in seeds)
    rows = []
    for name, run in result.items():
        losses = [_last_loss(run, index) for index in range(len(run["seeds"]))]
        loss = (float(np.mean(losses)), float(np.std(losses, ddof=1))) if len(losses) > 1 else losses[0]
        rows.append(
            Row(
                [name],
                {
                    "sink rate": sink_training.over_seeds(run, lambda seed: list(seed["sink_rate"].values())[-1]),
                    **({"of shares": sink_training.over_seeds(run, _of_average)} if differ else {}),
                    "top score": sink_training.over_seeds(run, lambda seed: seed["largest_score"]),
                    "DomRatio": sink_training.over_seeds(run, lambda seed: seed["dom_ratio_first"][-1]),
                    "rank": sink_training.over_seeds(run, lambda seed: seed["effective_rank"][-1]),
                    "loss": loss,
                    "less baseline": _paired(run, base),
                    "cost": _cost(record, name),
                },
                configuration="ours",
            )
        )
    quantities = [
        Quantity("sink rate", percent(0)),
        *([Quantity("of shares", percent(0))] if differ else []),
        Quantity("top score", fixed(2)),
        Quantity("DomRatio", fixed(1)),
        Quantity("rank", fixed(1)),
        Quantity("loss", fixed(3)),
        Quantity("less baseline", fixed(3)),
        Quantity("cost", times(2)),
    ]
    timed = "step_seconds" in record["result"]
    note = (
        f"After {base['steps']:,} steps of {base['data']}, ± across seeds "
        f"{', '.join(map(str, base['seeds']))}. Sink rate at the greatest length, ε = "
        f"{sink_training.EPSILON}; with rows of weights divided by their sums first, "
        + ("as in the column of shares" if differ else "the same")
        + ". DomRatio of the first token and effective rank of all states, after the last block. Loss: held out; "
        "less baseline: paired by seed. Cost: time per step over the baseline's"
        + (", timed in turn, median ± standard deviation over rounds. " if timed else " over the whole run. ")
        + setting_note(record)
    )
    first = Table("Every attention, same data, same seeds", ["attention"], quantities, rows, note=note)
    return [first, *price_tables.tables(record)]


def run(context: Context) -> dict[str, Any]:
    """Train and measure every mitigation; where the settings have a ``timing``, time their steps side by side too."""
    found = sink_training.run_mitigations(context)
    if "timing" in context.settings:
        found["step_seconds"] = step_costs(context, context.settings["cures"], **context.settings["timing"])
    return found


def panels(record: Record) -> Sequence[Panel]:
    """Convergence of per-head RMSNorm against the baseline, then every gap to the baseline."""
    result = record["result"]["cures"]
    figure, ax = figures.new()
    for index, name in enumerate(("baseline", HEAD_NORM)):
        one = result[name]
        curve_ES = np.asarray(one["curve_validation_loss"])
        figures.line(
            ax,
            one["curve_steps"],
            curve_ES.mean(axis=1),
            curve_ES.min(axis=1),
            curve_ES.max(axis=1),
            name=name,
            colour=figures.SERIES[index],
            markers=True,
        )
    figures.label(ax, "step", "validation loss (nats per token)")
    ax.legend(frameon=False)
    first = Panel(
        figure,
        "Convergence of per-head RMSNorm and of the baseline; bands span the seeds. The paper reports "
        "2.7812 → 2.7421 after 20 billion tokens at 152 million parameters.",
    )
    figure, ax = figures.new(height=4.2)
    base = np.asarray(result["baseline"]["curve_validation_loss"])
    for index, (name, run) in enumerate((name, run) for name, run in result.items() if name != "baseline"):
        gap_E = (np.asarray(run["curve_validation_loss"]) - base).mean(axis=1)
        figures.line(
            ax,
            run["curve_steps"],
            gap_E,
            name=name,
            colour=figures.SERIES[index % len(figures.SERIES)],
            dashed=index >= len(figures.SERIES),
        )
    figures.reference(ax, 0.0, "baseline", colour=figures.MUTED)
    figures.label(ax, "step", "validation loss less the baseline's")
    ax.legend(frameon=False, ncols=2)
    second = Panel(figure, "Gap to the baseline of the same seed, mean across seeds; below zero is better.")
    return [first, second, *price_tables.panels(record)]


def claims(record: Record) -> Sequence[Claim]:
    """Per-head RMSNorm against the baseline."""
    result = record["result"]["cures"]
    return [
        Claim(
            f"Validation loss of per-head RMSNorm less the baseline's, {result['baseline']['steps']:,} "
            "steps, paired by seed",
            _paired(result[HEAD_NORM], result["baseline"]),
            format=fixed(4),
        )
    ]


EXPERIMENT = Experiment(
    name="sink_cures",
    title="Every mitigation against sinks, and what it costs",
    paper="beyond the papers; “The Structural Origin of Attention Sink”, per-head RMSNorm",
    description=(
        "The calibrations of Section 6.2, per-head RMSNorm, output gates, extra logits, other kernels, a learned key "
        "and value, a window and no positions at all, trained from the same seeds on the same data in the same order."
        "\n\nBeside the sinks stands what they cost: the loss with activations, weights and caches rounded, by scale "
        "and with the first token kept in full precision or not, and the loss with a rolling cache."
    ),
    settings={
        "smoke": {
            **sink_training.smoke(["baseline", HEAD_NORM, "sigmoid attention"]),
            "price": sink_training.PRICED_SMOKE,
            "timing": {"rounds": 2, "steps": 1},
        },
        "laptop": {
            **sink_training.laptop(list(MITIGATIONS)),
            "seeds": sink_training.FIVE_SEEDS,
            "price": sink_training.PRICED,
            "timing": {"rounds": 9, "steps": 10},
        },
        "paper": sink_training.paper(list(MITIGATIONS)),
    },
    cost={
        "smoke": "seconds",
        "laptop": "see the record",
        "paper": "weeks on several GPUs",
    },
    precision="float32 highest; bfloat16 training at paper scale",
    run=run,
    tables=tables,
    figures=panels,
    claims=claims,
)
