"""Causes of the sinks of our own trained models: every cut, join and sweep of the real ones, on several seeds.

Stated before any number: the runs and controls are those of :mod:`bornbiased_jax.experiments.sinks.sink_knockout` and
:mod:`bornbiased_jax.experiments.sinks.sink_sweep`, on the baseline of the two settings that grow sinks
(the smallest, and one more than eight times as large), every seed of them; a link holds where it does in every seed.
The first token of every sequence is the BOS token here, so that *another first token* takes away what the model
can recognize, not only a word.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from bornbiased_jax.experiments._shared.training import train_with_snapshots
from bornbiased_jax.experiments.base import SCALES, Context, Entry, Experiment, Record, by_scale
from bornbiased_jax.experiments.sinks import sink_knockout, sink_sweep, sink_training
from bornbiased_jax.experiments.sinks.settings import settings_of
from bornbiased_jax.experiments.sinks.sink_knockout import (
    AS_IT_IS,
    CLEARED,
    CONTROL,
    ELSEWHERE,
    FIRST_TOKEN,
    RESTORED,
    SILENCED,
    change,
)
from bornbiased_jax.report.numbers import fixed, percent
from bornbiased_jax.report.tables import Claim, Table, tabulate
from bornbiased_jax.training.data.windows import prepend_bos
from bornbiased_jax.training.setup import load_data


def run(context: Context) -> Entry:
    """Measure every seed of every variant: what it depends on, and where sinks can be made."""
    variants = {}
    for name, settings in context.settings["variants"].items():
        variants[name] = _of_variant(dataclasses.replace(context, settings=settings), context.settings)
    return {"variants": variants}


def _of_variant(context: Context, outer: Entry) -> list[Entry]:
    settings = context.settings

    def compute(folder: Path) -> list[Entry]:
        config = sink_training.run_config(context, "baseline", folder / "run")
        assert config.steps is not None
        # Train all seeds in memory.
        data = load_data(config)
        bos_id = sink_training.bos_of(settings, config, data)
        windows = data.train.with_bos(bos_id)
        params_by_seed, _ = train_with_snapshots(
            config,
            windows,
            on_snapshot=lambda _step, _weights: None,
            interval=config.steps,
            label="baseline",
            quiet=context.quiet,
        )
        # Running text and random tokens, with the BOS token in front where there is one.
        length = max(settings["lengths"])
        tokens_NT = sink_training.sink_sequences(context, data, length, bos_id)[: outer["num_sequences"]]
        shape = (outer["random_sequences"], tokens_NT.shape[1])
        random_NT = np.random.default_rng(0).integers(0, data.tokenizer.vocab_size, shape, dtype=np.int32)
        if bos_id is not None:
            random_NT = prepend_bos(random_NT, bos_id)
        cfg = config.model
        return [
            {
                "seed": seed,
                "knockout": sink_knockout.knock_out(cfg, params, tokens_NT, outer["knockout"], quiet=context.quiet),
                "sweep": sink_sweep.sweep(cfg, params, tokens_NT, random_NT, outer["sweep"], quiet=context.quiet),
            }
            for seed, params in zip(config.seeds, params_by_seed, strict=True)
        ]

    inner = {key: value for key, value in outer.items() if key != "variants"}
    return context.cached("sink_own/models", [settings, inner, context.data], compute)


def _models(record: Record) -> list[tuple[str, Entry]]:
    variants = record["result"]["variants"]
    return [(f"{name}, seed {model['seed']}", model) for name, models in variants.items() for model in models]


def _rows(model: Entry, kind: str, position: int | None = None) -> list[Entry]:
    rows = [row for row in model["knockout"]["rows"] if row["kind"] == kind]
    return [row for row in rows if position in (None, row["position"])]


def links(model: Entry, position: int) -> dict[str, float]:
    """Compute fractions of heads that are sinks after each cut and join of one model."""
    base, elsewhere = _rows(model, AS_IT_IS, 1)[0], _rows(model, ELSEWHERE)
    silenced = [row["sink_rate"] for row in _rows(model, SILENCED)]
    random = [change(row, base) for row in _rows(model, CONTROL)]
    back = [change(row, base) for row in _rows(model, RESTORED)]
    cleared = next(row for row in _rows(model, CLEARED) if row["what"].endswith("every block"))
    return {
        "as it is": base["sink_rate"],
        "super neurons": float(sum(neuron["super"] for neuron in model["knockout"]["neurons"])),
        "without the neuron or pair": min(silenced),
        "random pair, largest change": max(random),
        "restored, largest change": max(back),
        "sink at k": next(row["sink_rate"] for row in elsewhere if row["position"] == position),
        "first, written at k": next(row["sink_rate"] for row in elsewhere if row["position"] == 1),
        "channel cleared": cleared["sink_rate"],
        "another first token": float(np.mean([row["sink_rate"] for row in _rows(model, FIRST_TOKEN)])),
    }


def tables(record: Record) -> Sequence[Table]:
    """Show cuts and joins of every model; what one block can make."""
    settings = record["settings"]
    position = settings["knockout"]["position"]
    cut = [([name], _cells(links(model, position))) for name, model in _models(record)]
    rows = [
        ([name, kind], sink_sweep.cells(model["sweep"], kind))
        for name, model in _models(record)
        for kind in model["sweep"]["kinds"]
    ]
    note = (
        f"Fractions of heads for which the first position is a sink, {settings['num_sequences']} sequences, ε = "
        "0.25. Without the neuron or pair: the lowest after silencing a named neuron or pair; named are the super "
        "neurons, or where there are none the two that write most. Largest change: of the fraction of a block's "
        f"heads. Sink at k: heads for which position {position} is a sink when the strongest pair's activation is "
        "written there and not at the first position; next to it the first position then. Channel cleared: at the "
        "first position, after every block. Another first token: mean over tokens in place of BOS."
    )
    sweep_note = f"{sink_sweep.NOTE} λ = {settings['sweep']['factor']:g}."
    return [
        tabulate("Cut and restored in models trained here", ["model"], cut, note),
        tabulate("Sinks made from one block of models trained here", ["model", "intervention"], rows, sweep_note),
    ]


def _cells(values: Mapping[str, float]) -> Entry:
    formats = {
        "super neurons": fixed(0),
        "random pair, largest change": fixed(2),
        "restored, largest change": fixed(3),
    }
    return {name: (formats.get(name, percent(0)), value) for name, value in values.items()}


def claims(record: Record) -> Sequence[Claim]:
    """Claim what holds of all models at once."""
    position = record["settings"]["knockout"]["position"]
    fractions_by_model = [links(model, position) for _, model in _models(record)]
    left = max(
        fractions["without the neuron or pair"] / max(fractions["as it is"], 1e-9) for fractions in fractions_by_model
    )
    entries = [
        ("Part of the sinks left without the neurons that matter most, at most, over models", left, percent(0)),
        (
            "Heads that are sinks with another token in place of the BOS, at most",
            max(fractions["another first token"] for fractions in fractions_by_model),
            percent(0),
        ),
        (
            "Largest change of a block's sink rate after restoration, over models",
            max(fractions["restored, largest change"] for fractions in fractions_by_model),
            fixed(3),
        ),
    ]
    return [Claim(words, value, format=form) for words, value, form in entries]


def _variant(base: Entry) -> Entry:
    """Return a variant's training and text alone: what the models are measured by is said once for all."""
    return {key: value for key, value in base.items() if key not in ("cures", "texts", "evaluation")}


_LAPTOP = {
    "2 × 32": _variant(settings_of("laptop", ["baseline"])),
    "2 × 128": _variant(settings_of("larger", ["baseline"])),
}
EXPERIMENT = Experiment(
    name="sink_own",
    title="What the sinks of models trained here depend on, cut and restored",
    paper="“The Structural Origin of Attention Sink”, the chain of causes",
    description=(
        "The baseline of the two settings that grow sinks on two cores, three seeds of each, with the cuts and joins "
        "of sink_knockout, the BOS token replaced, and the interventions of sink_sweep."
    ),
    settings=by_scale(
        ("smoke", "laptop"),
        seeds=([42, 123], [42, 123, 1000]),
        num_sequences=(2, 32),
        random_sequences=(4, 256),
        knockout={
            "seed": 0,
            "position": 8,
            "top": (2, 10),
            "controls": (1, 20),
            "first_tokens": (1, 8),
            "cleared_every": 1,
        },
        sweep={"factor": 10.0, "blocks_every": 1, "positions_every": (7, 1)},
        variants=({"smoke": _variant(settings_of("smoke", ["baseline"], bos_token=True))}, _LAPTOP),
    ),
    cost={"laptop": "see the record"},
    run=run,
    takes_data=SCALES,
    tables=tables,
    claims=claims,
)
