"""How small a model can be, and how short its training, for sinks to grow on two cores; and the searches for that."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record
from bornbiased_jax.experiments.sinks import sink_training
from bornbiased_jax.experiments.sinks.settings import (
    EPSILON,
    FIVE_SEEDS,
    HELD_OUT,
    ONE_LAYER,
    settings_of,
    with_changes,
)
from bornbiased_jax.report.numbers import fixed, integer, p_value, percent, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.intervals import mean_interval
from bornbiased_jax.stats.multiple import holm
from bornbiased_jax.training import PretrainConfig

LEVEL = 0.05


def run(context: Context) -> Entry:
    """Train the baseline in every variant of the settings."""
    variants = {}
    for name, settings in context.settings["variants"].items():
        inner = dataclasses.replace(context, settings=settings)
        variants[name] = sink_training.run_mitigations(inner)["cures"]["baseline"]
    return {"variants": variants}


def _first_step(run: Entry) -> int | None:
    """Return the first step at which the strongest head of some seed was above ε."""
    for step, scores in zip(run["curve_steps"], run["curve_largest_score"], strict=True):
        if max(scores) > EPSILON:
            return int(step)
    return None


def tables(record: Record) -> Sequence[Table]:
    """Show each variant with its strongest head."""
    rows = []
    for name, run in record["result"]["variants"].items():
        settings = record["settings"]["variants"][name]
        # The first snapshot with a head above ε.
        first_step = _first_step(run)
        over_seeds = functools.partial(sink_training.over_seeds, run)
        measured = {
            "largest score": (significant(2), over_seeds(lambda seed: seed["largest_score"])),
            "sink rate": (percent(1), over_seeds(sink_training.last_rate)),
            "DomRatio, first token": (fixed(1), over_seeds(lambda seed: seed["dom_ratio_first"][-1])),
            "above ε from step": "never" if first_step is None else integer(first_step),
            "validation loss": (fixed(3), over_seeds(lambda seed: seed["loss"][HELD_OUT])),
        }
        size = "{num_layers} × {d_model}".format(**settings["changes"])
        has_bos = "yes" if settings["bos_token"] else "no"
        rows.append(([name, size, integer(settings["schedule"]["steps"]), has_bos], measured))
    note = (
        f"Mean ± standard deviation across seeds. A head is a sink above ε = {EPSILON}; above ε from step: the first "
        "snapshot in which a head of some seed was."
    )
    heads = ["variant", "layers × width", "steps", "BOS token"]
    return [tabulate("What it takes to grow a sink", heads, rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the strongest head of the first variant and of the one without a BOS token."""
    return [
        Claim(
            f"Largest score α₁ of any head after training: {name}",
            sink_training.over_seeds(run, lambda seed: seed["largest_score"]),
            format=fixed(3),
        )
        for name, run in record["result"]["variants"].items()
    ]


def _variants(base: Entry, single: Mapping[str, int]) -> Entry:
    one_layer = with_changes(base, **single)
    return {
        "two layers": base,
        "two layers, no BOS token": {**base, "bos_token": False},
        "one layer": one_layer,
        "one layer, no BOS token": {**one_layer, "bos_token": False},
    }


SCHEDULE = ("steps", "learning_rate", "tokenizer", "batch_size", "context", "weight_decay")
"""Changes that are the training's, not the model's."""
TextColumns = Mapping[str, Callable[[Entry], str]]
"""What a table says of a setting, by the column's name."""

_SIZE: TextColumns = {
    "layers × width, heads": lambda tried: "{num_layers} × {d_model}, {num_heads}".format(**tried["changes"]),
}
_STEPS: TextColumns = {
    "steps": lambda tried: integer(tried["schedule"]["steps"]),
    "learning rate": lambda tried: significant(2)(tried["schedule"]["learning_rate"]),
}
COLUMNS: TextColumns = {
    **_SIZE,
    "tokenizer": lambda tried: str(tried["schedule"]["tokenizer"]),
    "BOS token": lambda tried: "yes" if tried["bos_token"] else "no",
    **_STEPS,
}
BATCHED_COLUMNS: TextColumns = {
    **_SIZE,
    "batch × T": lambda tried: "{batch_size} × {context}".format(**tried["schedule"]),
    "weight decay": lambda tried: significant(2)(tried["schedule"].get("weight_decay", PretrainConfig.weight_decay)),
    **_STEPS,
}


def search_tables(record: Record, columns: TextColumns = COLUMNS) -> Sequence[Table]:
    """Show every setting that was tried, with the outcome of every seed in the order of the settings."""
    variants = record["settings"]["variants"]
    rows = []
    for name, run in record["result"]["variants"].items():
        measured = {
            "largest score by seed": ", ".join(fixed(2)(seed["largest_score"]) for seed in run["by_seed"]),
            "sink rate by seed": ", ".join(percent(0)(sink_training.last_rate(seed)) for seed in run["by_seed"]),
        }
        rows.append(([describe(variants[name]) for describe in columns.values()], measured))
    lengths = sorted({variant["lengths"][-1] for variant in variants.values()})
    seeds = ", ".join(map(str, record["settings"]["seeds"]))
    note = (
        f"A cell has the seeds {seeds} in this order, as far as they were run. ε = {EPSILON}, T = "
        f"{', '.join(map(str, lengths))}."
    )
    return [tabulate("Settings tried in the search", list(columns), rows, note)]


def _tried(base: Entry, seeds: int = 3, bos_token: bool = True, **changes: object) -> Entry:
    """Vary layers, widths, heads or schedule of the base setting; the last learning rate is a tenth of the first."""
    schedule = {**base["schedule"], **{key: value for key, value in changes.items() if key in SCHEDULE}}
    schedule["min_learning_rate"] = schedule["learning_rate"] / 10
    model = {**base["changes"], **{key: value for key, value in changes.items() if key not in SCHEDULE}}
    if "d_model" in changes:
        model["d_ff"] = 8 * round(model["d_model"] * 8 / 3 / 8)
    if schedule["tokenizer"] == "byte":
        model["vocab_size"] = 260
    return {
        **base,
        "seeds": base["seeds"][:seeds],
        "bos_token": bos_token,
        "num_sequences": 30,
        "lengths": [length for length in base["lengths"] if length <= schedule["context"]],
        "evaluation": {**base["evaluation"], "context": schedule["context"]},
        "changes": model,
        "schedule": schedule,
    }


_BASE = settings_of("laptop", ["baseline"])
_TINY = settings_of("smoke", ["baseline"], bos_token=True)
_GROWTH = {"seeds": [42, 123, 1000], "variants": _variants(_BASE, ONE_LAYER)}
_four = functools.partial(_tried, _BASE, num_heads=4)
_SEARCH = {
    "one layer": _four(num_layers=1),
    "two layers, two heads": _tried(_BASE),
    "two layers, four heads": _four(),
    "slower": _four(steps=1200, learning_rate=0.01),
    "faster": _four(2, steps=600, learning_rate=0.03),
    "wider": _four(1, d_model=64, steps=800),
    "deeper": _four(2, num_layers=4, learning_rate=0.01),
    "wider and deeper": _four(1, num_layers=4, d_model=64, steps=1200, learning_rate=0.008),
    "bytes": _four(1, num_layers=3, tokenizer="byte"),
    "no BOS token": _four(1, bos_token=False),
}
_deep = functools.partial(_four, 1, num_layers=4, d_model=96, learning_rate=6e-3)
_wide = functools.partial(_four, 1, num_layers=2, d_model=128, learning_rate=6e-3)
_LARGER_SEARCH = {
    "deep": _deep(),
    "deep, faster": _deep(learning_rate=0.015),
    "deep, two heads": _deep(num_heads=2),
    "wide, two heads": _wide(num_heads=2),
    "wide, two heads, decayed": _wide(num_heads=2, weight_decay=0.5),
    "wide, slower": _wide(learning_rate=3e-3),
    "deep, short": _deep(context=32, batch_size=32, steps=600),
    "deep, short, half the batch": _deep(context=32, batch_size=16, steps=600),
    "wide, short, half the batch": _wide(context=32, batch_size=16, steps=600),
    "wide, short": _four(num_layers=2, d_model=128, learning_rate=6e-3, context=32, batch_size=32, steps=600),
}

SCHEMES = ("gpt2-scaled", "normal-0.02", "neox", "olmo-mitchell", "torchtitan-llama3", "nanochat")
"""Named initializations whose sinks are compared; the first is the reference."""


def _score_differences(result: Entry) -> dict[str, tuple[np.ndarray, float]]:
    """Subtract the reference's largest score from each scheme's, seed by seed, with p of a paired t test after Holm."""
    scores = {
        name: np.array([seed["largest_score"] for seed in run["by_seed"]]) for name, run in result["variants"].items()
    }
    base = scores.pop(SCHEMES[0])
    differences = {name: values - base for name, values in scores.items()}
    adjusted = holm([float(stats.ttest_1samp(values, 0.0).pvalue) for values in differences.values()])
    return {name: (differences[name], float(p)) for name, p in zip(differences, adjusted, strict=True)}


def scheme_tables(record: Record) -> Sequence[Table]:
    """Show the sinks of every initialization, and how its strongest head differs from the reference's."""
    differences = _score_differences(record["result"])
    rows = []
    for name, run in record["result"]["variants"].items():
        first_step = _first_step(run)
        over_seeds = functools.partial(sink_training.over_seeds, run)
        measured: Cells = {
            "largest score": (fixed(2), over_seeds(lambda seed: seed["largest_score"])),
            "sink rate": (percent(0), over_seeds(sink_training.last_rate)),
            "above ε from step": "never" if first_step is None else integer(first_step),
            "validation loss": (fixed(3), over_seeds(lambda seed: seed["loss"][HELD_OUT])),
        }
        if name in differences:
            values, p = differences[name]
            low, high = mean_interval(values)
            measured["score − gpt2-scaled's"] = f"{fixed(2)(low)} to {fixed(2)(high)}"
            measured["p (Holm)"] = (p_value(2), p)
        rows.append(([name], measured))
    note = (
        f"Mean ± standard deviation across seeds. A head is a sink above ε = {EPSILON}; above ε from step: the first "
        "snapshot in which a head of some seed was. The difference in the largest score is paired by seed: 95% "
        "interval of its mean, and p of a paired t test, corrected over the comparisons shown."
    )
    return [tabulate("Sinks by initialization", ["scheme"], rows, note)]


def scheme_claims(record: Record) -> Sequence[Claim]:
    """Claim how many schemes differ from the reference in their strongest head."""
    differences = _score_differences(record["result"])
    return [
        Claim(
            f"Schemes of {len(differences)} whose largest score differs from {SCHEMES[0]}'s (Holm, 5%)",
            float(sum(p <= LEVEL for _, p in differences.values())),
            format=integer,
        )
    ]


EXPERIMENT = Experiment(
    name="sink_growth",
    title="The smallest setting in which sinks grow",
    description=(
        "Small models grew no sink in 900 steps on packed text. Give every sequence a first id of its own, and one "
        "layer of width 32 grows sinks in under a thousand steps of 1,024 tokens; its keys are read before any "
        "attention, so that the variance of no attention output stands behind them."
    ),
    settings={
        "smoke": {"seeds": [42, 123], "variants": _variants(_TINY, {"num_layers": 1})},
        "laptop": _GROWTH,
        "paper": _GROWTH,
    },
    cost={"laptop": "3 minutes on two cores", "paper": "3 minutes on two cores"},
    run=run,
    takes_data=SCALES,
    tables=tables,
    claims=claims,
)
SEARCH = Experiment(
    name="sink_search",
    title="The search for a setting in which sinks grow",
    description=(
        "What was tried before the experiments on sinks settled on two layers of width 32: depth, width, heads, steps, "
        "learning rate, bytes, and sequences without a BOS token."
    ),
    settings={
        "smoke": {"seeds": [42, 123], "variants": {"one layer": with_changes(_TINY, num_layers=1)}},
        "laptop": {"seeds": [42, 123, 1000], "variants": _SEARCH},
    },
    cost={"laptop": "about 13 minutes of CPU on two cores"},
    run=run,
    takes_data=SCALES,
    tables=search_tables,
)
LARGER_SEARCH = dataclasses.replace(
    SEARCH,
    name="sink_search_larger",
    title="The search for a larger setting in which sinks grow",
    description=(
        "What was tried before sink_cures_larger settled on two layers of width 128 and 32 positions: depth, "
        "width, heads, learning rate, weight decay, batch and context."
    ),
    settings={**SEARCH.settings, "laptop": {"seeds": [42, 123, 1000], "variants": _LARGER_SEARCH}},
    cost={"laptop": "about 15 minutes on two cores"},
    tables=functools.partial(search_tables, columns=BATCHED_COLUMNS),
)
_FIVE = settings_of("laptop", ["baseline"], seeds=FIVE_SEEDS)
BY_SCHEME = Experiment(
    name="sink_schemes",
    title="Sinks by initialization",
    description=(
        "The smallest setting of two layers that grows sinks, from six initializations at one learning rate. Stated "
        "before the numbers: the outcome is the largest mean attention of any head to the first position, paired by "
        "seed with gpt2-scaled, p corrected over the five comparisons."
    ),
    settings={
        "smoke": {
            "seeds": [42, 123],
            "variants": {name: with_changes(_TINY, init=name) for name in (SCHEMES[0], "nanochat")},
        },
        "laptop": {"seeds": FIVE_SEEDS, "variants": {name: with_changes(_FIVE, init=name) for name in SCHEMES}},
    },
    cost={"laptop": "a quarter of an hour on two busy cores; resumes by scheme"},
    run=run,
    takes_data=SCALES,
    tables=scheme_tables,
    claims=scheme_claims,
)
EXPERIMENTS = {experiment.name: experiment for experiment in (EXPERIMENT, SEARCH, LARGER_SEARCH, BY_SCHEME)}
