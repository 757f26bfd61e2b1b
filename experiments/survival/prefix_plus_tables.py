"""Prefix-Tuning+ beside prefix tuning: tables, figures and claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import fixed, integer, percent, significant
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table
from experiments.base import Record

NEW, OLD, LORA = "prefix-plus", "prefix", "lora"
NAMES = {NEW: "Prefix-Tuning+", OLD: "prefix tuning", LORA: "LoRA"}
COLOURS = {NEW: figures.MEASURED, OLD: figures.PAPER, LORA: figures.THEORY}


def wins_of(record: Record) -> tuple[int, int]:
    """Seeds in which Prefix-Tuning+ ends below prefix tuning, of how many."""
    ours, theirs = (record["result"]["methods"][name]["held_out"][-1] for name in (NEW, OLD))
    return sum(a < b for a, b in zip(ours, theirs, strict=True)), len(ours)


def _mean_std(values: Sequence[float]) -> tuple[float, float] | float:
    found = np.asarray(values, float)
    return (float(found.mean()), float(found.std(ddof=1))) if len(found) > 1 else float(found[0])


def ends_of(parts: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Means over seeds and over the first and the last eighth of the positions."""
    by_position = np.mean(parts[name], axis=0)
    part = max(1, len(by_position) // 8)
    return {"first": float(by_position[:part].mean()), "last": float(by_position[-part:].mean())}


def tables(record: Record) -> Sequence[Table]:
    """The methods at one budget; what the position and the prefix's length do to either part."""
    result = record["result"]
    losses = [Row(["none", 0, ""], {"held-out loss": _mean_std(result["before"])}, configuration="ours")]
    for name, row in result["methods"].items():
        measured = {"held-out loss": _mean_std(row["held_out"][-1]), "learning rate": row["learning_rate"]}
        losses.append(Row([NAMES[name], row["parameters"], _size(row["adapter"])], measured, configuration="ours"))
    rows = []
    for name in (NEW, OLD):
        found = result["methods"][name]["shares"]
        adapter, weight = ends_of(found, "prefix"), ends_of(found, "weight")
        columns = {
            "adapter's part, first positions": adapter["first"],
            "last positions": adapter["last"],
            "weight on the input, first": weight["first"],
            "last": weight["last"],
        }
        rows.append(Row([NAMES[name], _size(result["methods"][name]["adapter"])], columns, configuration="ours"))
    for row in result["lengths"]:
        adapter, weight = ends_of(row["shares"], "prefix"), ends_of(row["shares"], "weight")
        columns = {
            "adapter's part, first positions": adapter["first"],
            "last positions": adapter["last"],
            "weight on the input, first": weight["first"],
            "last": weight["last"],
        }
        rows.append(Row([NAMES[OLD], _keys(row["length"])], columns, configuration="ours"))
    names = ["adapter's part, first positions", "last positions", "weight on the input, first", "last"]
    return [
        Table(
            "Adapters with one budget",
            ["method", "trained parameters", "size"],
            [Quantity("held-out loss", fixed(3)), Quantity("learning rate", significant(1))],
            losses,
            note="Nats per byte of a text that the backbone never saw; ± across seeds. Each method's learning rate was "
            "chosen among those of the settings on a seed that is not among these." + _edge(record),
        ),
        Table(
            "Prefix and input",
            ["method", "size"],
            [Quantity(name, percent(1)) for name in names],
            rows,
            note="A head's output is the sum of what the input and what the adapter gives: the adapter's part is its "
            "norm over the sum of both norms. First and last: an eighth of the context each. Means over seeds.",
        ),
    ]


def _edge(record: Record) -> str:
    """Which methods might gain from a larger learning rate than was tried."""
    largest = max(record["settings"]["learning_rates"])
    names = [NAMES[name] for name, row in record["result"]["methods"].items() if row["learning_rate"] == largest]
    return f" The best rate of {' and '.join(names)} is the largest that was tried." if names else ""


def _keys(length: int) -> str:
    return f"{length} key" if length == 1 else f"{length} keys"


def _size(adapter: Mapping[str, Any]) -> str:
    if adapter["method"] == "prefix":
        return _keys(adapter["prefix_length"])
    return f"rank {adapter['rank']}" if adapter["method"] == "lora" else f"φ = {adapter['feature_map']}"


def panels(record: Record) -> Sequence[Panel]:
    """Loss against steps, and the trade-off."""
    result = record["result"]
    figure, ax = figures.new()
    for name, row in result["methods"].items():
        losses_PS = np.asarray(row["held_out"])
        mean, low, high = losses_PS.mean(axis=1), losses_PS.min(axis=1), losses_PS.max(axis=1)
        figures.line(ax, row["steps"], mean, low, high, name=NAMES[name], colour=COLOURS[name])
    figures.label(ax, "updates", "held-out loss (nats per byte)")
    figures.legend(ax)
    second, (left, right) = figures.new(columns=2, width=8.4)
    for name in (NEW, OLD):
        parts_ST = np.asarray(result["methods"][name]["shares"]["prefix"])
        positions = np.arange(1, parts_ST.shape[1] + 1)
        ends = parts_ST.min(axis=0), parts_ST.max(axis=0)
        figures.line(left, positions, parts_ST.mean(axis=0), *ends, name=NAMES[name], colour=COLOURS[name])
    figures.label(left, "position in the input", "adapter's part of a head's output")
    figures.legend(left)
    lengths = [row["length"] for row in result["lengths"]]
    weights_LS = np.asarray([np.mean(row["shares"]["weight"], axis=1) for row in result["lengths"]])
    ends = weights_LS.min(axis=1), weights_LS.max(axis=1)
    figures.line(right, lengths, weights_LS.mean(axis=1), *ends, name=NAMES[OLD], colour=COLOURS[OLD], markers=True)
    kept = float(np.mean(result["methods"][NEW]["shares"]["weight"]))
    figures.line(right, lengths, [kept] * len(lengths), name=NAMES[NEW], colour=COLOURS[NEW])
    right.set_xscale("log", base=2)
    figures.label(right, "keys in the prefix", "attention weight on the input")
    figures.legend(right)
    return [
        Panel(figure, "Held-out loss while adapters of one budget are trained; bands span the seeds."),
        Panel(
            second,
            "Left: how much an adapter counts after an input of so many positions. Right: the attention weight that a "
            "prefix of so many keys leaves to the input, on average; Prefix-Tuning+ takes none. Bands span the seeds.",
        ),
    ]


def claims(record: Record) -> Sequence[Claim]:
    """Who ends lower, and by how much."""
    methods = record["result"]["methods"]
    wins, count = wins_of(record)
    apart = [b - a for a, b in zip(*(methods[name]["held_out"][-1] for name in (NEW, OLD)), strict=True)]
    return [
        Claim(f"Seeds of {count} in which Prefix-Tuning+ ends below prefix tuning", wins, format=integer),
        Claim("By how much, nats per byte of held-out text", _mean_std(apart), format=fixed(3)),
        *(
            Claim(f"{NAMES[name]}: adapter's part of a head's output, {end} positions", value, format=percent(1))
            for name in (OLD, NEW)
            for end, value in ends_of(methods[name]["shares"], "prefix").items()
        ),
    ]


def headline(record: Record) -> str:
    """Whether the new method goes below the old one here."""
    wins, count = wins_of(record)
    below = "goes below" if wins == count else "does not always go below" if wins else "does not go below"
    return f"With the same number of trained parameters Prefix-Tuning+ {below} prefix tuning ({wins} of {count} seeds)."
