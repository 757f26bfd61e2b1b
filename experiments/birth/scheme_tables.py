"""Tables and a figure of the matrix of initialization schemes: pairs of rows, tests, and how many seeds decide."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import optimize, stats

from bornbiased_jax.experiments.base import Entry, Record
from bornbiased_jax.report.numbers import fixed, integer, p_value, percent, significant
from bornbiased_jax.report.tables import Cells, Claim, Table, tabulate
from bornbiased_jax.stats.intervals import mean_interval
from bornbiased_jax.stats.multiple import holm

CONTRAST = ("ReLU balanced", "ReLU")
"""The pair that is tested alongside the differences to the reference."""
DIFFERENCE = 0.01
"""Nats that the number of seeds is stated for."""
LEVEL, POWER = 0.05, 0.8
LEAST_BIASED = ("gpt2-scaled-balanced", "gpt2-scaled-mirrored", "embedding std 1", "ReLU balanced")


@dataclasses.dataclass(frozen=True)
class SchemeComparison:
    """Paired differences in held-out loss of one row minus another, in nats.

    Attributes:
        row: the row.
        base: what it is compared with.
        steps: of the differences.
        mean_by_step: over seeds, as the intervals.
        interval_by_step: Student's, 95%.
        std: over seeds, of the last step's differences.
        p_value: of the last step, two-sided, not corrected.
        adjusted_p: by Holm over all comparisons.
    """

    row: str
    base: str
    steps: Sequence[int]
    mean_by_step: Sequence[float]
    interval_by_step: Sequence[tuple[float, float]]
    std: float
    p_value: float
    adjusted_p: float = math.nan

    @property
    def is_decided(self) -> bool:
        """True if the difference is significant after correction."""
        return self.adjusted_p <= LEVEL

    @property
    def seeds_needed(self) -> int:
        """Pairs of seeds that a difference of ``DIFFERENCE`` needs."""
        return seeds_needed(self.std)


@functools.lru_cache(maxsize=256)
def seeds_needed(std: float) -> int:
    """Return the smallest number of pairs whose paired t test of ``DIFFERENCE`` at 5% has a power of 0.8.

    Args:
        std: of a pair's difference.

    Example:
        >>> seeds_needed(0.01), seeds_needed(0.1)
        (10, 787)
    """

    def shortfall(pairs: float) -> float:
        critical = stats.t.ppf(1 - LEVEL / 2, pairs - 1)
        return float(stats.nct.sf(critical, pairs - 1, DIFFERENCE / std * math.sqrt(pairs))) - POWER

    # Two pairs are the fewest; the normal approximation, doubled, is beyond the number searched.
    if std == 0 or shortfall(2) >= 0:
        return 2
    quantiles = stats.norm.ppf(1 - LEVEL / 2) + stats.norm.ppf(POWER)
    return math.ceil(optimize.brentq(shortfall, 2, 10 + 2 * (quantiles * std / DIFFERENCE) ** 2))


def compare(result: Entry) -> list[SchemeComparison]:
    """Compare every row with the reference, and the contrast; p-values are corrected over all of them."""
    rows = {row["name"]: row for row in result["rows"]}
    pairs = [(name, result["reference"]) for name in rows if name != result["reference"]]
    pairs += [CONTRAST] if rows.keys() >= set(CONTRAST) else []
    comparisons = [_compare(rows[row], rows[base]) for row, base in pairs]
    adjusted = holm([comparison.p_value for comparison in comparisons])
    return [
        dataclasses.replace(comparison, adjusted_p=float(p))
        for comparison, p in zip(comparisons, adjusted, strict=True)
    ]


def _compare(row: Entry, base: Entry) -> SchemeComparison:
    differences_SK = _losses(row) - _losses(base)
    last_S = differences_SK[:, -1]
    # Differences that are the same number in every seed have no t; equal ones are no difference.
    std = float(last_S.std(ddof=1))
    p = float(stats.ttest_1samp(last_S, 0.0).pvalue) if std > 0 else float(last_S[0] == 0)
    return SchemeComparison(
        row=row["name"],
        base=base["name"],
        steps=row["steps"],
        mean_by_step=differences_SK.mean(axis=0).tolist(),
        interval_by_step=[mean_interval(values) for values in differences_SK.T],
        std=std,
        p_value=p,
    )


def _losses(row: Entry) -> np.ndarray:
    return np.array([seed["loss"] for seed in row["by_seed"]], np.float64)


def _mean(row: Entry, name: str) -> float | None:
    """Return the mean over seeds of a number that every seed has, or None."""
    values = [seed[name] for seed in row["by_seed"] if seed.get(name) is not None]
    return float(np.mean(values)) if values else None


def inside(result: Entry) -> tuple[int, int]:
    """Count the cells (row, seed) whose cosine lies inside theory's interval, and all cells that have one."""
    cells = [
        low <= seed["cosine"] <= high
        for row in result["rows"]
        if row["predicted"]["cosine_interval"] is not None
        for low, high in [row["predicted"]["cosine_interval"]]
        for seed in row["by_seed"]
    ]
    return sum(cells), len(cells)


def tables(record: Record) -> Sequence[Table]:
    """Show statistics at initialization, gradients by block, losses by step, and differences with their tests."""
    result = record["result"]
    return [_start_table(record), _gradient_table(result), _loss_table(record), _difference_table(result)]


def _start_table(record: Record) -> Table:
    settings = record["settings"]
    most = math.log(settings["changes"]["vocab_size"])
    rows: list[tuple[Any, ...]] = []
    for row in record["result"]["rows"]:
        predicted, entropy = row["predicted"], _mean(row, "entropy")
        measured = {
            "cosine": (significant(3), _mean(row, "cosine")),
            "top-1 fraction": (percent(2), _mean(row, "top1")),
            "entropy below uniform": (fixed(4), None if entropy is None else most - entropy),
        }
        expected = {
            "cosine": predicted["cosine"],
            "top-1 fraction": predicted["top1"],
            "entropy below uniform": most - predicted["entropy"],
        }
        rows.append(([row["name"]], measured, {}, expected))
    note = (
        f"Means of {len(settings['seeds'])} untrained models on {settings['num_inputs']} sequences of "
        f"{settings['schedule']['context']} uniform tokens. Cosine: between the last-token states of different "
        "sequences; top-1 fraction: of sequences that the most predicted token answers; entropy below uniform: by "
        f"how many nats the entropy of the predictions is below {fixed(2)(most)}. A zero head has no top-1 token."
    )
    return tabulate("Before training", ["scheme"], rows, note)


def _gradient_table(result: Entry) -> Table:
    rows: list[tuple[Any, ...]] = []
    for row in result["rows"]:
        norms_L = np.mean([seed["gradient_norm_by_block"] for seed in row["by_seed"]], axis=0)
        measured = {f"block {i}": (significant(3), float(value)) for i, value in enumerate(norms_L, 1)}
        predicted = row["predicted"]["gradient_norm_by_block"] or []
        expected = {f"block {i}": value for i, value in enumerate(predicted, 1)}
        rows.append(([row["name"]], measured, {}, expected))
    note = "Norm of the gradient of the mean loss on uniform tokens, over all parameters of a block, mean over seeds."
    return tabulate("Gradient norm by block before training", ["scheme"], rows, note)


def _loss_table(record: Record) -> Table:
    rows: list[tuple[Any, ...]] = []
    for row in record["result"]["rows"]:
        means = _losses(row).mean(axis=0)
        losses = {f"step {step}": (fixed(3), float(loss)) for step, loss in zip(row["steps"], means, strict=True)}
        traces = {"z": (fixed(1), _mean(row, "z")), "z, other seed": (fixed(1), _mean(row, "z_other"))}
        rows.append(([row["name"]], losses | traces))
    note = (
        f"Held-out loss in nats per token, mean over {len(record['settings']['seeds'])} seeds. z: of the last step's "
        "weights against the own initialization, and against another seed's as a control, mean over the first "
        f"{record['settings']['traced']} seeds."
    )
    return tabulate("Loss by step, and the initialization in the trained weights", ["scheme"], rows, note)


def _difference_table(result: Entry) -> Table:
    rows: list[tuple[Any, ...]] = []
    for comparison in compare(result):
        cells: Cells = {
            f"step {step}": (fixed(3), mean)
            for step, mean in list(zip(comparison.steps, comparison.mean_by_step, strict=True))[1:]
        }
        low, high = comparison.interval_by_step[-1]
        cells["95% interval, last step"] = f"{fixed(3)(low)} to {fixed(3)(high)}"
        cells["p (Holm)"] = (p_value(2), comparison.adjusted_p)
        cells[f"seeds for {DIFFERENCE} nats"] = (integer, float(comparison.seeds_needed))
        rows.append(([f"{comparison.row} − {comparison.base}"], cells))
    note = (
        "Held-out loss of the first scheme less that of the second, paired by seed, in nats; below zero the first is "
        "better. p: paired t test of the last step, corrected over all lines. Seeds: as many as find a true "
        f"difference of {DIFFERENCE} nats with probability {POWER}."
    )
    return tabulate("Difference in held-out loss", ["pair"], rows, note)


def claims(record: Record) -> Sequence[Claim]:
    """Claim how far theory holds, which schemes differ, and what the least biased ones gain."""
    result = record["result"]
    hits, cells = inside(result)
    comparisons = compare(result)
    claims_by_statistic = [
        Claim(
            f"Cosines between sequences inside theory's 99% interval ({cells} cells of scheme and seed)",
            hits / cells,
            format=percent(1),
        ),
        Claim(
            f"Comparisons of schemes, of {len(comparisons)}, whose final loss differs (Holm, 5%)",
            float(sum(comparison.is_decided for comparison in comparisons)),
            format=integer,
        ),
    ]
    claims_by_statistic += [
        Claim(
            f"Final loss of {comparison.row} minus {comparison.base}, nats "
            f"({'p' if comparison.is_decided else 'undecided, p'} = {comparison.adjusted_p:.2g} after Holm)",
            comparison.mean_by_step[-1],
            format=fixed(3),
        )
        for comparison in comparisons
        if comparison.row in LEAST_BIASED
    ]
    traces = [seed["z"] for row in result["rows"] for seed in row["by_seed"] if seed["z"] is not None]
    return [
        *claims_by_statistic,
        Claim(f"Smallest z of an initialization in its trained weights, {len(traces)} models", min(traces)),
    ]


def headline(record: Record) -> str:
    """Say how many schemes differ from the reference in their loss, and in which direction."""
    comparisons = [row for row in compare(record["result"]) if row.base == record["result"]["reference"]]
    better = [row.row for row in comparisons if row.is_decided and row.mean_by_step[-1] < 0]
    worse = [row.row for row in comparisons if row.is_decided and row.mean_by_step[-1] > 0]
    return (
        f"After {comparisons[0].steps[-1]} steps {len(better)} of {len(comparisons)} initializations train better than "
        f"{record['result']['reference']}, {len(worse)} worse, and {len(comparisons) - len(better) - len(worse)} are "
        f"undecided with {len(record['settings']['seeds'])} seeds."
    )
