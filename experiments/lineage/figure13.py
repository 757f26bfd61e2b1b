"""Figure 13: are the correlations of unrelated models those of Gaussian noise?"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from bornbiased_jax import progress
from bornbiased_jax.config import preset
from bornbiased_jax.experiments.base import Context, Entry, Experiment, Record, each, variants
from bornbiased_jax.experiments.lineage import settings
from bornbiased_jax.experiments.lineage.calibration import INPUTS
from bornbiased_jax.lineage.untrained_outputs import final_outputs
from bornbiased_jax.probes.inputs import random_inputs
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, percent
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate
from bornbiased_jax.stats.kendall import tau_b

BLOCK = 64
"""Pairs whose taus are cached together."""
_BINS = 81
_REACH = 6.0


def null_std(num_inputs: int) -> float:
    """Return the standard deviation of Kendall's tau of N independent draws."""
    return math.sqrt(2 * (2 * num_inputs + 5) / (9 * num_inputs * (num_inputs - 1)))


def run(context: Context) -> Entry:
    """Compute tau of every pair among the initializations of each group, in units of the null's standard deviation."""
    return {"groups": [_group(context, group) for group in context.settings["groups"]]}


def _identity(group: Entry) -> Entry:
    """Return what the outputs of a group's models depend on besides their seeds."""
    return {name: group[name] for name in ("model", "changes", "inputs", "num_inputs", "seq_len")}


def _outputs(context: Context, group: Entry, seed: int) -> np.ndarray:
    """Return the outputs of one of a group's models, cached: a killed call resumes."""

    def compute(_folder: Path) -> np.ndarray:
        cfg = preset(group["model"], **group["changes"])
        inputs = random_inputs(group["inputs"], group["num_inputs"], group["seq_len"], cfg)
        (outputs_ND,) = final_outputs(cfg, [seed], inputs)
        return outputs_ND

    return np.asarray(context.cached("outputs_of_figure13", {**_identity(group), "seed": seed}, compute))


def _taus(context: Context, group: Entry, outputs: Sequence[np.ndarray]) -> Iterator[np.ndarray]:
    """Yield Kendall's tau of every coordinate, [D], for each pair of models; blocks of pairs are cached."""
    pairs = list(itertools.combinations(range(len(outputs)), 2))
    with progress.bar(len(pairs), f"figure13 {group['inputs']}", "pairs", quiet=context.quiet) as advance:
        for start in range(0, len(pairs), BLOCK):
            block = pairs[start : start + BLOCK]

            # In one thread: four fifths of SciPy's time are Python under one lock, so that two threads take as long.
            def compute(_folder: Path, block: Sequence[tuple[int, int]] = block) -> np.ndarray:
                return np.stack([tau_b(outputs[base], outputs[suspect]) for base, suspect in block])

            yield from np.asarray(context.cached("taus_of_figure13", {**_identity(group), "pairs": block}, compute))
            advance(len(block))


def _group(context: Context, group: Entry) -> Entry:
    seeds = each(range(group["num_births"]), f"outputs, {group['inputs']}", "models", context.quiet)
    outputs = [_outputs(context, group, seed) for seed in seeds]
    unit = null_std(group["num_inputs"])
    edges = np.linspace(-_REACH, _REACH, _BINS)
    # Histogram, number, sum and sum of squares of all taus, and the mean of each pair.
    counts, sums, means = np.zeros(_BINS - 1, int), np.zeros(3), []
    for taus_D in _taus(context, group, outputs):
        scaled_D = taus_D / unit
        counts += np.histogram(scaled_D, edges)[0]
        sums += (len(scaled_D), scaled_D.sum(), np.square(scaled_D).sum())
        means.append(float(scaled_D.mean() * math.sqrt(len(scaled_D))))
    total, mean = sums[0], sums[1] / sums[0]
    is_inner = (edges[:-1] >= -3 - 1e-9) & (edges[1:] <= 3 + 1e-9)
    return {
        "group": group,
        "num_pairs": len(means),
        "edges": edges,
        "density": counts / total / (edges[1] - edges[0]),
        "outside": (total - counts.sum()) / total,
        "mean": mean,
        "std": math.sqrt(sums[2] / total - mean**2),
        "beyond_3": float((total - counts[is_inner].sum()) / total),
        "pair_z_mean": float(np.mean(means)),
        "pair_z_std": float(np.std(means, ddof=1)),
        "pair_z_above": float(np.mean(np.array(means) > stats.norm.isf(0.01))),
    }


def _labels(group: Entry) -> list[Any]:
    init = group["changes"].get("init", "gpt2-scaled")
    return [group["model"], init, INPUTS[group["inputs"]], group["num_inputs"], group["seq_len"]]


def tables(record: Record) -> Sequence[Table]:
    """Tabulate the mean and standard deviation of the taus, and of each pair's mean."""
    rows: list[tuple[Any, ...]] = [
        (
            [*_labels(entry["group"]), entry["num_pairs"]],
            {
                "mean": (fixed(3), entry["mean"]),
                "std": (fixed(3), entry["std"]),
                "beyond ±3": (percent(2), entry["beyond_3"]),
                "pair z": (fixed(2), (entry["pair_z_mean"], entry["pair_z_std"])),
                "pairs with z > 2.33": (percent(1), entry["pair_z_above"]),
            },
            {},
            {"mean": 0.0, "std": 1.0, "beyond ±3": 2 * stats.norm.sf(3), "pairs with z > 2.33": 0.01},
        )
        for entry in record["result"]["groups"]
    ]
    note = (
        "Kendall's tau over N inputs, of each output coordinate of each pair of initializations, divided by the "
        "standard deviation that independent Gaussian outputs would give; mean, std and beyond ±3 are over all of "
        "these. Pair z: a pair's mean tau over its standard error if coordinates were independent, mean ± standard "
        "deviation over pairs; the published null has 0 ± 1. Pairs share initializations, and so are not independent "
        "of one another."
    )
    heads = ["model", "initialization", "inputs", "N", "T", "pairs"]
    return [tabulate("Kendall's tau of unrelated initializations", heads, rows, note)]


def claims(record: Record) -> Sequence[Claim]:
    """Compare center and width with the published null's."""
    return [
        Claim(
            "Unrelated models' taus in units of the Gaussian null's standard deviation: "
            f"{', '.join(map(str, labels[:3]))}, N = {labels[3]:,}, T = {labels[4]}, {entry['num_pairs']:,} pairs",
            (entry["mean"], entry["std"]),
            theory=(0.0, 1.0),
            format=fixed(2),
        )
        for entry, labels in ((entry, _labels(entry["group"])) for entry in record["result"]["groups"])
    ]


def plots(record: Record) -> Sequence[Panel]:
    """Draw the distribution of all taus over the standard normal density."""
    figure, ax = figures.new()
    grid = np.linspace(-_REACH, _REACH, 241)
    ax.plot(grid, stats.norm.pdf(grid), color=figures.MUTED, linestyle=(0, (5, 3)), label="Gaussian null")
    for entry, color in zip(record["result"]["groups"], figures.SERIES, strict=False):
        edges = np.array(entry["edges"])
        labels = _labels(entry["group"])
        name = f"{labels[1]}, {labels[2]}"
        ax.plot((edges[1:] + edges[:-1]) / 2, entry["density"], color=color, linewidth=1.3, label=name)
    ax.set_yscale("log")
    ax.set_ylim(1e-5, 1)
    figures.label(ax, "tau in units of the null's standard deviation", "density")
    figures.legend(ax, is_above=True)
    models = ", ".join(sorted({entry["group"]["model"] for entry in record["result"]["groups"]}))
    caption = (
        f"All coordinates of all pairs of unrelated initializations of {models}, on a logarithmic scale that shows the "
        "tails: the paper finds the distribution close to a Gaussian one centered at zero. A test needs more than a "
        "shape: the null's center and width, and the independence of the coordinates of one pair (the table's pair z). "
        "What lies beyond the axis is in the table."
    )
    return [Panel(figure, caption)]


EXPERIMENT = Experiment(
    name="figure13",
    title="Correlations of unrelated models are not quite those of Gaussian noise",
    paper="Figure 13",
    description=(
        "Kendall's tau of each output coordinate over random inputs, for every pair of independently initialized "
        "models; the published null takes the taus for those of Gaussian noise."
    ),
    settings=settings.FIGURE13,
    cost={"laptop": "about two minutes on two cores", "paper": "not measured: for a GPU"},
    run=run,
    claims=claims,
    tables=tables,
    figures=plots,
)

EXPERIMENTS = variants(
    EXPERIMENT,
    figure13_tiny=dict(
        title="Correlations of unrelated models, in as many pairs as the paper has",
        description=(
            "As figure13, with 72 initializations and their 2,556 pairs for each initialization and kind of input. "
            "Models, N and T are those of figure13's laptop scale."
        ),
        settings=settings.FIGURE13_TINY,
        cost={"paper": "8 minutes on two cores"},
    ),
    figure13_nano=dict(
        title="Correlations of unrelated models of the paper's architecture",
        description="As figure13, with 72 initializations of llama-nano, N = 2,000 and T = 16, on random tokens alone.",
        settings=settings.FIGURE13_NANO,
        cost={"paper": "an hour and a half on two cores that did other work as well; outputs and pairs are kept"},
    ),
)
