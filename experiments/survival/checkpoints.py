"""Figures 11 and 14: every checkpoint of a run held against the initializations, by top coordinates and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints.formats.run import find_steps
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record
from bornbiased_jax.experiments.survival import persistence, persistence_tables
from bornbiased_jax.experiments.survival.persistence import ModelLocation
from bornbiased_jax.experiments.survival.settings import PRECISION, larger, settings, shared_cost
from bornbiased_jax.experiments.survival.trained_pairs import brief
from bornbiased_jax.lineage.paper import paper_test, top_mean
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, integer
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate
from bornbiased_jax.stats.kendall import tau_b

TOP = 50 / 768
"""m of Section 5 as a proportion of the width: coordinates with the largest mean output of the initialization."""


def correlations(context: Context) -> Entry:
    """Compute Kendall's tau of the initialization's top coordinates with its own and another seed's checkpoints'.

    Returns:
        ``facts``, ``steps`` [C], ``top``, ``seeds`` (the initialization's, the other's), and by kind of inputs, by
        "own" and "other": ``mean`` and ``std`` [C] over the top coordinates; ``progress`` [C] of both seeds.
    """
    settings = context.settings
    run, (seed, second) = persistence.base_run(context), settings["seeds"][:2]
    steps, moments = find_steps(run), persistence.initial_moments(settings)
    initial = persistence.initialization(run, seed)
    # A standard deviation over coordinates takes two.
    top = max(2, round(TOP * persistence.model_config(settings).d_model))
    taus: dict[str, Any] = {}
    with progress.bar(4 * len(steps), "checkpoints", unit="checkpoints", quiet=context.quiet) as advance:
        # Tau of the top coordinates, own seed and another's.
        for kind in persistence.KINDS:
            initial_ND = persistence.outputs(settings, initial, kind, moments)
            dims = top_mean(initial_ND, top)
            for name, owner in (("own", seed), ("other", second)):
                taus_CM = []
                for step in steps:
                    suspect_ND = persistence.outputs(settings, _at(run, owner, step), kind, moments)
                    taus_CM.append(tau_b(initial_ND[:, dims], suspect_ND[:, dims]))
                    advance(1)
                mean, std = np.mean(taus_CM, axis=1), np.std(taus_CM, axis=1, ddof=1)
                taus.setdefault(kind, {})[name] = {"mean": mean.tolist(), "std": std.tolist()}
    return {
        "facts": persistence.facts_of(run),
        "seeds": [seed, second],
        "steps": steps,
        "top": top,
        "taus": taus,
        "progress": [[persistence.progress_of(_at(run, owner, step)) for step in steps] for owner in (seed, second)],
    }


def every_checkpoint(context: Context) -> Entry:
    """Compare every checkpoint of every seed with its own initialization and with the next seed's.

    Returns:
        ``facts``, ``steps`` [C] (the initialization left out), ``seeds``, ``progress`` [S][C], and "own" and "other":
        by test ("permutation" on tokens, "paper" on shared vectors, "paper_tokens") verdicts [S][C].
    """
    settings = context.settings
    run, seeds = persistence.base_run(context), settings["seeds"]
    steps, moments = find_steps(run)[1:], persistence.initial_moments(settings)
    tests: dict[str, tuple[str, Callable[..., Verdict]]] = {
        "permutation": ("tokens", permutation_test),
        "paper": ("gaussian", paper_test),
        "paper_tokens": ("tokens", paper_test),
    }
    verdicts_by_relation: dict[str, Any] = {}
    total = 2 * len(tests) * len(seeds) * len(steps)
    with progress.bar(total, "checkpoints", unit="verdicts", quiet=context.quiet) as advance:
        # Checkpoints against their own initialization, then against the next seed's.
        for name, shift in (("own", 0), ("other", 1)):
            for test, (kind, run_test) in tests.items():
                by_seed = []
                for index in range(len(seeds)):
                    initial = persistence.initialization(run, seeds[(index + shift) % len(seeds)])
                    initial_ND = persistence.outputs(settings, initial, kind, moments)
                    verdicts = []
                    for step in steps:
                        suspect_ND = persistence.outputs(settings, _at(run, seeds[index], step), kind, moments)
                        verdicts.append(brief(run_test(initial_ND, suspect_ND)))
                        advance(1)
                    by_seed.append(verdicts)
                verdicts_by_relation.setdefault(name, {})[test] = by_seed
    return {
        "facts": persistence.facts_of(run),
        "seeds": seeds,
        "steps": steps,
        "progress": [[persistence.progress_of(_at(run, seed, step)) for step in steps] for seed in seeds],
        **verdicts_by_relation,
    }


def _at(run: Path, seed: int, step: int) -> ModelLocation:
    return {"run": str(run), "seed": seed, "step": step}


INPUTS = {"tokens": "random tokens", "gaussian": "shared vectors"}


def correlation_panels(record: Record) -> Sequence[Panel]:
    """Draw mean ± standard deviation over the top coordinates, on both kinds of inputs."""
    result = record["result"]
    steps = np.asarray(result["steps"])
    figure, axes = figures.new(columns=2, width=6.4, height=3.2)
    for ax, (kind, words) in zip(axes, INPUTS.items(), strict=False):
        for name, seed, color in zip(
            ("own", "other"), result["seeds"], (figures.MEASURED, figures.BASELINE), strict=True
        ):
            taus = result["taus"][kind][name]
            mean, std = np.asarray(taus["mean"]), np.asarray(taus["std"])
            figures.line(
                ax, steps, mean, (mean - std, mean + std), name=f"checkpoints of seed {seed}", color=color, markers=True
            )
        # Linear up to the first step, so that the initialization at 0 has a place.
        ax.set_xscale("symlog", base=2, linthresh=1)
        ax.set_xticks([step for step in steps if step & (step - 1) == 0][::3])
        ax.xaxis.set_major_formatter(lambda value, _position: f"{value:.0f}")
        ax.set_xlim(-0.3, 1.3 * steps[-1])
        figures.label(ax, "step", "Kendall's τ with the initialization", words)
        # Room for the legend above the lines, which begin at 1.
        ax.set_ylim(top=1.35)
        ax.set_yticks(np.linspace(0.0, 1.0, 6))
        figures.legend(ax)
    caption = (
        f"Correlation of the {result['top']} coordinates with the largest mean output at the initialization of seed "
        f"{result['seeds'][0]}, mean and standard deviation over coordinates. {persistence_tables.trained_on(record)}"
    )
    return [Panel(figure, caption)]


def correlation_tables(record: Record) -> Sequence[Table]:
    """Tabulate the same numbers."""
    result = record["result"]
    rows = []
    for index, step in enumerate(result["steps"]):
        own_progress = result["progress"][0][index]
        measured = persistence_tables.training_cells(own_progress)
        for kind, words in INPUTS.items():
            for name, owner in (("own", "same seed"), ("other", "another seed")):
                taus = result["taus"][kind][name]
                measured[f"{owner}, {words}"] = (fixed(3), (taus["mean"][index], taus["std"][index]))
        rows.append(([integer(step)], measured))
    note = (
        "Kendall's τ, over the inputs, of a checkpoint's output with that of the initialization of seed "
        f"{result['seeds'][0]}, coordinate by coordinate: mean ± standard deviation over the {result['top']} "
        "coordinates that have the largest mean output at initialization. Same seed: checkpoints of that seed; "
        f"another seed: of seed {result['seeds'][1]}. The paper draws this and prints no numbers. "
        + persistence_tables.trained_on(record)
    )
    return [tabulate("Correlation with the initialization", ["step"], rows, note)]


def correlation_claims(record: Record) -> Sequence[Claim]:
    """State the correlation at the end."""
    result = record["result"]
    of = f"{result['top']} of {result['facts']['model']['d_model']}"
    return [
        Claim(
            f"τ of the top {of} coordinates with the initialization after {result['steps'][-1]:,} steps, {words}, "
            f"{owner}",
            (result["taus"][kind][name]["mean"][-1], result["taus"][kind][name]["std"][-1]),
            format=fixed(3),
        )
        for kind, words in INPUTS.items()
        for name, owner in (("own", "same seed"), ("other", "another seed"))
    ]


TESTS = {
    "permutation": "permutation, tokens",
    "paper_tokens": "Algorithm 1, tokens",
    "paper": "Algorithm 1, shared vectors",
}


def recognition_panels(record: Record) -> Sequence[Panel]:
    """Draw −log₁₀ p by step, own seed and another's, test by test."""
    result = record["result"]
    figure, axes = figures.new(columns=3, width=9.6, height=3.2)
    for ax, (test, words) in zip(axes.flat, TESTS.items(), strict=False):
        for name, owner, color in (
            ("own", "its own initialization", figures.MEASURED),
            ("other", "another's initialization", figures.BASELINE),
        ):
            # An undefined p is NaN.
            values_SC = -np.array([[row["log10_p"] for row in by_seed] for by_seed in result[name][test]], np.float64)
            low, high = np.nanmin(values_SC, axis=0), np.nanmax(values_SC, axis=0)
            figures.line(
                ax, result["steps"], np.nanmean(values_SC, axis=0), (low, high), name=owner, color=color, markers=True
            )
        figures.reference(ax, -np.log10(persistence_tables.ALPHA), "p = 0.01", color=figures.MUTED)
        ax.set_xscale("log", base=2)
        ax.set_yscale("symlog", linthresh=10)
        ax.set_ylim(0, 2 * ax.get_ylim()[1])
        ax.xaxis.set_major_formatter(lambda value, _position: f"{value:.0f}")
        figures.label(ax, "step", "−log₁₀ p", words)
    # One legend serves all panels; the last one has room.
    figures.legend(axes.flat[-1])
    caption = (
        "p of each checkpoint against its own initialization and against another seed's; lines are means over seeds, "
        "bands their range. The permutation test's p is counted over permutations and, below their reach, a certified "
        f"bound. {persistence_tables.trained_on(record)}"
    )
    return [Panel(figure, caption)]


def counts(record: Record, name: str, test: str, index: int | None = None) -> str:
    """Count the checkpoints that are called the initialization's descendants: "52 of 52"; at one step if given."""
    verdicts = [
        verdict
        for by_seed in record["result"][name][test]
        for verdict in (by_seed if index is None else [by_seed[index]])
    ]
    return f"{sum(verdict['verdict'] == 'same-lineage' for verdict in verdicts)} of {len(verdicts)}"


def recognition_tables(record: Record) -> Sequence[Table]:
    """Tabulate verdicts by step, with the smallest z of the exact test."""
    result = record["result"]
    rows = []
    for index, step in enumerate(result["steps"]):
        progress_rows = [by_seed[index] for by_seed in result["progress"]]
        means = {name: float(np.mean([row[name] for row in progress_rows])) for name in ("moved", "loss")}
        measured = persistence_tables.training_cells({**progress_rows[0], **means})
        measured["smallest z, own"] = (fixed(1), min(by_seed[index]["z"] for by_seed in result["own"]["permutation"]))
        measured["largest z, other"] = (
            fixed(1),
            max(by_seed[index]["z"] for by_seed in result["other"]["permutation"]),
        )
        for test, words in TESTS.items():
            measured[f"own: {words}"] = counts(record, "own", test, index)
            measured[f"other: {words}"] = counts(record, "other", test, index)
        rows.append(([integer(step)], measured))
    note = (
        "Own: how many seeds' checkpoints a test calls descendants of their own initialization, at p < 0.01; other: "
        "of the next seed's initialization, which none is. z: of the permutation test. The paper draws this for own "
        "initializations and prints no numbers. " + persistence_tables.trained_on(record)
    )
    return [tabulate("Checkpoints recognized", ["step"], rows, note)]


def recognition_claims(record: Record) -> Sequence[Claim]:
    """State the counts over all checkpoints of all seeds."""
    return [
        Claim(f"Checkpoints recognized by {owner}, {words}", counts(record, name, test))
        for test, words in TESTS.items()
        for name, owner in (("own", "their own initialization"), ("other", "another seed's initialization"))
    ]


EXPERIMENTS = {
    "figure11": Experiment(
        name="figure11",
        title="The bias at initialization through training",
        paper="Figure 11, Finding 7",
        description=(
            "The outputs at the coordinates that an untrained model favors against those of every checkpoint of its "
            "training, and of another seed's checkpoints as a baseline. With the inputs of Algorithm 1, vectors that "
            "both models share, even the baseline is correlated."
        ),
        settings=settings("llama"),
        cost=shared_cost("table4b"),
        precision=PRECISION,
        run=correlations,
        takes_data=SCALES,
        tables=correlation_tables,
        figures=correlation_panels,
        claims=correlation_claims,
    ),
    "figure14": Experiment(
        name="figure14",
        title="Every checkpoint is recognized",
        paper="Figure 14",
        description=(
            "Every checkpoint of Qwen-style models against its own initialization, as the paper shows it, and against "
            "another seed's."
        ),
        settings=settings("qwen"),
        cost=shared_cost("table10"),
        precision=PRECISION,
        run=every_checkpoint,
        takes_data=SCALES,
        tables=recognition_tables,
        figures=recognition_panels,
        claims=recognition_claims,
    ),
}
EXPERIMENTS |= larger(EXPERIMENTS)
