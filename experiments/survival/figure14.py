"""Figure 14: every checkpoint is recognised by its birth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, integer
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table
from experiments.base import Experiment, Record
from experiments.survival import persistence_settings, persistence_tables, persistence_tracks
from experiments.survival.figure11 import draw_training

TESTS = {
    "permutation": "permutation, tokens",
    "paper_tokens": "Algorithm 1, tokens",
    "paper": "Algorithm 1, shared vectors",
}


def panels(record: Record) -> Sequence[Panel]:
    """−log₁₀ p by step, own seed and another's, test by test."""
    result = record["result"]
    figure, axes = figures.new(columns=2, rows=2, width=8.4, height=6.0)
    for ax, (test, words) in zip(axes.flat, TESTS.items(), strict=False):
        for name, who, colour in (
            ("own", "its own birth", figures.MEASURED),
            ("other", "another's birth", figures.BASELINE),
        ):
            values_SC = -np.array([[_log10_p(verdict) for verdict in by_seed] for by_seed in result[name][test]])
            low, high = np.nanmin(values_SC, axis=0), np.nanmax(values_SC, axis=0)
            figures.line(
                ax, result["steps"], np.nanmean(values_SC, axis=0), low, high, name=who, colour=colour, markers=True
            )
        figures.reference(ax, -np.log10(persistence_tables.ALPHA), "p = 0.01", colour=figures.MUTED)
        ax.set_xscale("log", base=2)
        ax.set_yscale("symlog", linthresh=10)
        ax.set_ylim(0, 2 * ax.get_ylim()[1])
        ax.xaxis.set_major_formatter(lambda value, position: f"{value:.0f}")
        figures.label(ax, "step", "−log₁₀ p", words)
        figures.legend(ax)
    draw_training(axes.flat[3], record)
    caption = (
        "p of each checkpoint against its own birth and against another seed's; lines are means over seeds, bands "
        "their range. The permutation test's p is that of its z (normal approximation), so that it goes beyond one "
        f"over the number of permutations. {persistence_tables.trained_on(record)}"
    )
    return [Panel(figure, caption)]


def _log10_p(verdict: Mapping[str, Any]) -> float:
    return np.nan if verdict["log10_p"] is None else verdict["log10_p"]


def counts(record: Record, name: str, test: str, index: int | None = None) -> str:
    """How many checkpoints are called the birth's descendants: "52 of 52"; at one step if given."""
    verdicts = [
        verdict
        for by_seed in record["result"][name][test]
        for verdict in (by_seed if index is None else [by_seed[index]])
    ]
    return f"{sum(verdict['verdict'] == 'same-lineage' for verdict in verdicts)} of {len(verdicts)}"


def tables(record: Record) -> Sequence[Table]:
    """Verdicts by step, with the smallest z of the exact test."""
    result = record["result"]
    rows = []
    for index, step in enumerate(result["steps"]):
        done = [by_seed[index] for by_seed in result["progress"]]
        measured: dict[str, Any] = {
            persistence_tables.MOVED: float(np.mean([row["moved"] for row in done])),
            persistence_tables.LOSS: float(np.mean([row["loss"] for row in done])),
            persistence_tables.ENTROPY: done[0]["unigram_entropy"],
            "smallest z, own": min(by_seed[index]["z"] for by_seed in result["own"]["permutation"]),
            "largest z, other": max(by_seed[index]["z"] for by_seed in result["other"]["permutation"]),
        }
        for test, words in TESTS.items():
            measured[f"own: {words}"] = counts(record, "own", test, index)
            measured[f"other: {words}"] = counts(record, "other", test, index)
        rows.append(Row([integer(step)], measured))
    quantities = [
        Quantity(persistence_tables.MOVED, fixed(2)),
        Quantity(persistence_tables.LOSS, fixed(3)),
        Quantity(persistence_tables.ENTROPY, fixed(3)),
        Quantity("smallest z, own", fixed(1)),
        Quantity("largest z, other", fixed(1)),
    ]
    quantities += [Quantity(f"{name}: {words}") for words in TESTS.values() for name in ("own", "other")]
    note = (
        "Seeds whose checkpoint is called a descendant at p < 0.01, of its own birth and of another seed's; z: of the "
        "permutation test. The paper draws this for its own births and prints no numbers. "
        + persistence_tables.trained_on(record)
    )
    return [Table("Checkpoints recognised", ["step"], quantities, rows, note=note)]


def claims(record: Record) -> Sequence[Claim]:
    """All checkpoints of all seeds."""
    return [
        Claim(f"Checkpoints recognised by {who}, {words}", counts(record, name, test))
        for test, words in TESTS.items()
        for name, who in (("own", "their own birth"), ("other", "another seed's birth"))
    ]


EXPERIMENT = Experiment(
    name="figure14",
    title="Every checkpoint is recognised",
    paper="Figure 14",
    description=(
        "Every checkpoint of Qwen-style models, from the first step to the last, against its own birth. The paper "
        "shows these alone; here each is also held against another seed's birth, since a test that recognises "
        "everybody recognises nobody."
    ),
    settings=persistence_settings.settings("qwen"),
    cost=persistence_settings.shared_cost("qwen"),
    precision=persistence_settings.PRECISION,
    run=persistence_tracks.every_checkpoint,
    tables=tables,
    figures=panels,
    claims=claims,
)
