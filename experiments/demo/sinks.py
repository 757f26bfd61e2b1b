"""The demo's third pillar: positional variance of attention at initialization, and sinks of a small trained model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record
from bornbiased_jax.experiments.demo import settings
from bornbiased_jax.experiments.sinks import sink_growth
from bornbiased_jax.experiments.sinks.settings import EPSILON
from bornbiased_jax.experiments.theory.figure9 import block, mean_field_theory, std_by_seed, uniform_theory
from bornbiased_jax.probes.inputs import gaussian
from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, integer, significant
from bornbiased_jax.report.tables import Claim, Panel, Table, tabulate


def run(context: Context) -> Entry:
    """Measure the positional variance of an untrained block, then train the small model and measure its sinks."""
    trained = sink_growth.run(dataclasses.replace(context, settings=context.settings["growth"]))
    return {"variance": positional_variance(context), **trained}


def positional_variance(context: Context) -> Entry:
    """Measure the attention output of one block on Gaussian vectors.

    Returns:
        Its standard deviation by position [T]: of every seed, for uniform attention, and by theory.
    """
    settings = context.settings["variance"]
    N, T = settings["num_inputs"], settings["seq_len"]
    cfg = block(settings, {})
    x_NTD = gaussian(N, T, cfg.d_model).batch(0, N) * cfg.embedding_std
    stds = std_by_seed(cfg, settings["seeds"], x_NTD)
    return {"std_by_seed": stds, "uniform": uniform_theory(cfg, T), "mean_field": mean_field_theory(cfg, T)}


def _mean_variance(record: Record) -> np.ndarray:
    return np.mean(np.square(record["result"]["variance"]["std_by_seed"]), axis=0)


def _ratio(record: Record) -> float:
    variance_T = _mean_variance(record)
    return float(variance_T[0] / variance_T[-1])


def _ratio_with_logits(record: Record) -> float:
    """Return the ratio that the theory of the whole block predicts."""
    std_T = np.asarray(record["result"]["variance"]["mean_field"])
    return float(np.square(std_T[0] / std_T[-1]))


def tables(record: Record) -> Sequence[Table]:
    """Show the variance at the first and at later positions, then what training grew."""
    variance_T, theory = _mean_variance(record), record["result"]["variance"]
    uniform_T, mean_field_T = np.square(theory["uniform"]), np.square(theory["mean_field"])
    rows: list[tuple[object, ...]] = []
    position = 1
    while position <= len(variance_T):
        index = position - 1
        measured = {
            "variance over that of position 1": (significant(3), variance_T[index] / variance_T[0]),
            "1/i": (significant(3), None),
        }
        predicted = {
            "variance over that of position 1": mean_field_T[index] / mean_field_T[0],
            "1/i": uniform_T[index] / uniform_T[0],
        }
        rows.append(([position], measured, {}, predicted))
        position *= 2
    variance_table = tabulate(
        "Variance of the attention output at initialization",
        ["position i"],
        rows,
        note=(
            "Theory includes the variance of the attention logits at this width; 1/i is that of uniform attention over "
            "independent values."
        ),
    )
    return [variance_table, *sink_growth.tables({**record, "settings": record["settings"]["growth"]})]


def panels(record: Record) -> Sequence[Panel]:
    """Draw the variance by position, and the strongest head while training."""
    variance_T, theory = _mean_variance(record), record["result"]["variance"]
    positions = np.arange(1, len(variance_T) + 1)
    figure, ax = figures.new()
    figures.line(ax, positions, variance_T / variance_T[0], name="measured", markers=True)
    figures.line(ax, positions, 1 / positions, name="1/i", color=figures.MUTED, dashed=True)
    mean_field_T = np.square(theory["mean_field"])
    figures.line(ax, positions, mean_field_T / mean_field_T[0], name="theory", color=figures.THEORY, dashed=True)
    figures.label(ax, "position i", "variance over that of position 1")
    figures.legend(ax)
    settings = record["settings"]["variance"]
    caption = (
        f"One untrained attention block ({settings['model']}) on {settings['num_inputs']:,} sequences of "
        f"{settings['seq_len']} Gaussian vectors, mean of {len(settings['seeds'])} seeds."
    )
    growth, ax = figures.new()
    ((name, run),) = record["result"]["variants"].items()
    figures.band(ax, run["curve_steps"], np.transpose(run["curve_largest_score"]), name=name, markers=True)
    figures.reference(ax, EPSILON, f"a sink above {EPSILON}", color=figures.MUTED)
    figures.label(ax, "step", "largest score of the first position")
    figures.legend(ax)
    growth_caption = "Score of the first position in the strongest head while training; bands span the seeds."
    return [Panel(figure, caption), Panel(growth, growth_caption)]


def _trained(record: Record) -> tuple[str, list[float]]:
    """Return the name of the trained variant and the largest score of every seed."""
    ((name, run),) = record["result"]["variants"].items()
    return name, [seed["largest_score"] for seed in run["by_seed"]]


def claims(record: Record) -> Sequence[Claim]:
    """Claim the ratio of variances, and the strongest head after training."""
    settings = record["settings"]["variance"]
    return [
        Claim(
            "Variance of the attention output at the first position over that at the last, untrained, "
            f"T = {settings['seq_len']}",
            _ratio(record),
            theory=_ratio_with_logits(record),
            format=fixed(1),
        ),
        *sink_growth.claims(record),
    ]


def headline(record: Record) -> str:
    """State the ratio of variances with theory's, and in how many seeds training grew a sink."""
    settings = record["settings"]["variance"]
    name, scores = _trained(record)
    count = sum(score > EPSILON for score in scores)
    trained = record["settings"]["growth"]["variants"][name]
    return (
        f"Sinks: in an untrained attention block of {settings['model']} the output at the first position has "
        f"{fixed(0)(_ratio(record))} times the variance of the one at position {settings['seq_len']}, where theory "
        f"says {fixed(0)(_ratio_with_logits(record))} ({settings['num_inputs']:,} inputs, {len(settings['seeds'])} "
        f"seeds), and after {integer(trained['schedule']['steps'])} training steps a sink (attention to the first "
        f"token above {EPSILON}) grew in {count} of {len(scores)} seeds of a model of {name} of width "
        f"{trained['changes']['d_model']} on {trained['schedule']['context']} tokens (largest scores "
        f"{', '.join(map(fixed(2), scores))})."
    )


EXPERIMENT = Experiment(
    name="demo_sinks",
    title="The first position stands out at initialization, and sinks grow in training",
    paper="Figure 9",
    description=(
        "Attention at initialization averages the values before it, so that the first position stands out before any "
        "training. Then the smallest setting in which every seed was seen to grow sinks is trained, with a first token "
        "of its own in front of every sequence."
    ),
    settings=settings.SINKS,
    cost={"laptop": "about a minute on two cores"},
    run=run,
    takes_data=SCALES,
    tables=tables,
    figures=panels,
    claims=claims,
    headline=headline,
)
