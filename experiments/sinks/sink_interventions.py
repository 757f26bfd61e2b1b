"""Sinks of a trained model, where they come from, and sinks made at any position ("The Structural Origin …")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints import find_smollm2, open_checkpoint
from bornbiased_jax.evaluation.sink_report import cut_sequences
from bornbiased_jax.experiments.base import (
    SCALES,
    Context,
    Entry,
    Experiment,
    Record,
    by_scale,
    source_name,
    where_attempted,
)
from bornbiased_jax.experiments.sinks.sink_sweep import AMPLIFICATION, CONTROL, interventions, random_tokens
from bornbiased_jax.experiments.sinks.subject import ABSENT, NEURON_NOTE, neuron_rows
from bornbiased_jax.model.interventions import Edit, Edits, self_only
from bornbiased_jax.probes.outliers import super_neurons
from bornbiased_jax.probes.sinks import SinkOptions, measure_sinks
from bornbiased_jax.probes.variance import ensemble_mean
from bornbiased_jax.report.numbers import fixed, integer, percent
from bornbiased_jax.report.tables import Claim, Table, tabulate
from bornbiased_jax.text import read_text


def run(context: Context) -> Entry:
    """Measure sinks of SmolLM2-135M under every intervention, or return the reason why not."""
    path = find_smollm2()
    if path is None:
        return {"attempted": False, "reason": ABSENT}
    settings = context.settings
    opened = open_checkpoint(path)
    cfg, params = opened.cfg, opened.params()
    assert opened.tokenizer is not None
    source = context.data or "builtin:prose"
    ids_T = opened.tokenizer.encode(read_text(source)[: settings["characters"]])
    T, N = max(settings["lengths"]), settings["num_sequences"]
    # Sequences: full length, shorter ones to intervene on, random tokens for the mean.
    tokens_NT = cut_sequences(ids_T, T, N)
    short_NT = tokens_NT[: settings["intervened_sequences"], : settings["intervened_length"]]
    random_NT = random_tokens(settings["random_sequences"], short_NT.shape[1], cfg.vocab_size)
    plain = measure_sinks(cfg, params, tokens_NT, SinkOptions(lengths=settings["lengths"]))
    neurons = super_neurons(cfg, params, short_NT)
    mu_LTHK = ensemble_mean(cfg, params, random_NT)
    # Every intervention at every position.
    rows = []
    total = len(settings["positions"]) * (2 + 2 * len(settings["factors"]))
    with progress.bar(total, "interventions", unit="runs", quiet=context.quiet) as advance:
        for position in settings["positions"]:
            for name, factor, edit in _changes(settings, position, short_NT.shape[1], mu_LTHK, cfg.num_layers):
                measured_sinks = measure_sinks(
                    cfg, params, short_NT, SinkOptions(position=position, convention="rows_from_k"), edit=edit
                )
                rows.append(
                    {
                        "position": position,
                        "intervention": name,
                        "factor": factor,
                        "sink_rate": measured_sinks["sink_rate"],
                        "sink_rate_std": measured_sinks["sink_rate_std"],
                        "score_mean": float(measured_sinks["score_LH"].mean()),
                    }
                )
                advance(1)
    return {
        "attempted": True,
        "checkpoint": path.name,
        "digest": opened.digest(),
        "source": source_name(source),
        "sink_rate": {str(length): plain["by_length"][length]["sink_rate"] for length in settings["lengths"]},
        "super_neurons": neurons,
        "interventions": rows,
    }


def _changes(
    settings: Entry, position: int, length: int, mu_LTHK: np.ndarray, num_layers: int
) -> list[tuple[str, float | None, Edit | Edits | None]]:
    """List name, λ and the edit of each intervention at one position."""
    changes: list[tuple[str, float | None, Edit | Edits | None]] = [
        ("none", None, None),
        ("mask", None, self_only(length, [position], num_layers=num_layers)),
    ]
    for factor in settings["factors"]:
        edits = interventions(num_layers, length, factor, mu_LTHK)
        changes += [(kind, factor, edits[kind](position, settings["blocks"])) for kind in (AMPLIFICATION, CONTROL)]
    return changes


@where_attempted
def tables(record: Record) -> Sequence[Table]:
    """Show interventions; super neurons."""
    result = record["result"]
    # A row per intervention and position.
    rows = [
        (
            [row["position"], row["intervention"], "" if row["factor"] is None else f"{row['factor']:g}"],
            {
                "heads that are sinks": (percent(1), (row["sink_rate"], row["sink_rate_std"])),
                "mean score": (fixed(3), row["score_mean"]),
            },
        )
        for row in result["interventions"]
    ]
    settings = record["settings"]
    blocks = ", ".join(map(str, settings["blocks"]))
    interventions = tabulate(
        "Sinks made at position k",
        ["k", "intervention", "λ"],
        rows,
        note=(
            "Fraction of heads whose mean attention to position k, over the queries from k on, exceeds 0.25, on "
            f"{settings['intervened_sequences']} sequences of {settings['intervened_length']} tokens; ± is over "
            "sequences. Mask: token k sees itself alone. Variance amplification: o_k becomes μ + λ(o_k − μ) in block "
            f"{blocks} alone, μ its mean over random-token sequences; control: λ·o_k there. The paper prints no "
            "numbers for these."
        ),
    )
    neurons = tabulate(
        "What writes most at the first token",
        ["block", "neuron"],
        neuron_rows(result["super_neurons"], ("gate", "up")),
        note=(f"{NEURON_NOTE} Gate and up norm: of these columns over the block's median."),
    )
    return [interventions, neurons]


@where_attempted
def claims(record: Record) -> Sequence[Claim]:
    """Claim the rate, and the three interventions at their strongest."""
    result = record["result"]
    length, rate = max(((int(length), rate) for length, rate in result["sink_rate"].items()))
    rows = result["interventions"]

    factor = max(record["settings"]["factors"])

    def mean(name: str) -> float:
        rates = [row["sink_rate"] for row in rows if row["intervention"] == name and row["factor"] in (None, factor)]
        return float(np.mean(rates))

    settings = record["settings"]
    blocks = ", ".join(map(str, settings["blocks"]))
    size = (
        f"mean over k = {', '.join(map(str, settings['positions']))}; {settings['intervened_sequences']} sequences of "
        f"{settings['intervened_length']} tokens"
    )
    return [
        Claim(
            f"Heads of SmolLM2-135M for which the first token is a sink, {settings['num_sequences']} sequences of "
            f"{length} tokens",
            rate,
            format=percent(0),
        ),
        *(
            Claim(f"Heads for which position k is a sink: {words} ({size})", mean(name), format=percent(0))
            for name, words in (
                ("none", "as it is"),
                ("mask", "token k sees itself alone"),
                ("variance amplification", f"variance of o_k amplified in block {blocks}, λ = {factor:g}"),
                ("control λ·o", f"control, o_k scaled by λ in block {blocks}"),
            )
        ),
    ]


@where_attempted
def headline(record: Record) -> str:
    """Say what the strongest super neuron writes, and how many heads each intervention makes sinks of."""
    result, settings = record["result"], record["settings"]
    factor = max(settings["factors"])
    told = ""
    best = next((neuron for neuron in result["super_neurons"] if neuron["super"]), None)
    if best is not None:
        told = (
            f"One neuron of block {best['block']} writes {integer(best['write'])} to channel {best['channel']} at the "
            f"first token, where it fires {integer(best['firing_ratio'])} times as strongly as at the others. "
        )

    def heads(name: str) -> str:
        rates = [
            row["sink_rate"]
            for row in result["interventions"]
            if (row["intervention"], row["factor"]) == (name, factor)
        ]
        return " to ".join(dict.fromkeys(map(percent(0), (min(rates), max(rates)))))

    positions, blocks = (", ".join(map(str, settings[name])) for name in ("positions", "blocks"))
    return told + (
        f"At positions {positions} amplified variance (λ = {factor:g}, block {blocks}) makes sinks of "
        f"{heads(AMPLIFICATION)} of the heads, scaling alone of {heads(CONTROL)}."
    )


EXPERIMENT = Experiment(
    name="sink_interventions",
    title="Attention sinks of a trained model, made and moved",
    paper="“The Structural Origin of Attention Sink”, interventions",
    description=(
        "SmolLM2-135M, a real model, has sinks at its first token. Each intervention may make one at a token k: "
        "letting it attend only to itself, amplifying the variance of its attention output around the mean over "
        "random-token sequences and, as a control, scaling the same output by the same factor."
    ),
    settings=by_scale(
        seeds=[0],
        characters=(20_000, 400_000, 4_000_000),
        lengths=([16], [32, 64, 128], [32, 64, 128, 256, 512]),
        num_sequences=(2, 32, 100),
        intervened_sequences=(2, 8, 32),
        intervened_length=(16, 48, 64),
        random_sequences=(8, 64, 256),
        positions=([4, 8], [8, 16, 32], [4, 8, 16, 32, 48]),
        factors=([10.0], [3.0, 10.0], [2.0, 3.0, 5.0, 10.0, 30.0]),
        blocks=[3],
    ),
    cost={"laptop": "2 minutes on two cores, 1.9 GB", "paper": "an hour on two cores"},
    run=run,
    takes_data=SCALES,
    tables=tables,
    claims=claims,
    headline=headline,
)
