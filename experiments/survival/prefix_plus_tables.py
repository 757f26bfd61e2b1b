"""Prefix-Tuning+ and prefix tuning: tables, figures and claims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bornbiased_jax.experiments.base import Entry, Record
from bornbiased_jax.report.numbers import fixed, integer, mean_std, percent, significant
from bornbiased_jax.report.tables import Claim, Table, tabulate

NEW, OLD, LORA = "prefix-plus", "prefix", "lora"
NAMES = {NEW: "Prefix-Tuning+", OLD: "prefix tuning", LORA: "LoRA"}


def wins_of(record: Record) -> tuple[int, int]:
    """Count the seeds in which Prefix-Tuning+ ends below prefix tuning, and all seeds."""
    new_losses, old_losses = (record["result"]["methods"][name]["held_out"][-1] for name in (NEW, OLD))
    return sum(a < b for a, b in zip(new_losses, old_losses, strict=True)), len(new_losses)


def ends_of(parts: Entry, name: str) -> Entry:
    """Compute means over seeds and over the first and the last eighth of the positions."""
    by_position = np.mean(parts[name], axis=0)
    part = max(1, len(by_position) // 8)
    return {"first": float(by_position[:part].mean()), "last": float(by_position[-part:].mean())}


def tables(record: Record) -> Sequence[Table]:
    """Tabulate the methods at one budget; what the position and the prefix's length do to either part."""
    result = record["result"]
    losses: list[tuple[Any, ...]] = [(["none", 0, ""], {"held-out loss": (fixed(3), mean_std(result["before"]))})]
    rows = []
    for name, row in result["methods"].items():
        measured = {
            "held-out loss": (fixed(3), mean_std(row["held_out"][-1])),
            "learning rate": (significant(1), row["learning_rate"]),
        }
        losses.append(([NAMES[name], row["parameters"], _size(row["adapter"])], measured))
        if name in (NEW, OLD):
            rows.append(([NAMES[name], _size(row["adapter"])], _parts(row["shares"])))
    rows += [([NAMES[OLD], _keys(row["length"])], _parts(row["shares"])) for row in result["lengths"]]
    return [
        tabulate(
            "Adapters with one budget",
            ["method", "trained parameters", "size"],
            losses,
            note="Nats per byte of a text that the backbone never saw; ± across seeds. Each method's learning rate was "
            "chosen among those of the settings on a seed that is not among these." + _edge(record),
        ),
        tabulate(
            "Prefix and input",
            ["method", "size"],
            rows,
            note="A head's output is the sum of what the input and what the adapter gives: the adapter's part is its "
            "norm over the sum of both norms. First and last: an eighth of the context each. Means over seeds.",
        ),
    ]


def _parts(fractions: Entry) -> Entry:
    adapter, weight = ends_of(fractions, "prefix"), ends_of(fractions, "weight")
    return {
        "adapter's part, first positions": (percent(1), adapter["first"]),
        "last positions": (percent(1), adapter["last"]),
        "weight on the input, first": (percent(1), weight["first"]),
        "last": (percent(1), weight["last"]),
    }


def _edge(record: Record) -> str:
    """Name the methods that might gain from a larger learning rate than was tried."""
    largest = max(record["settings"]["learning_rates"])
    names = [NAMES[name] for name, row in record["result"]["methods"].items() if row["learning_rate"] == largest]
    return f" The best rate of {' and '.join(names)} is the largest that was tried." if names else ""


def _keys(length: int) -> str:
    return f"{length} key" if length == 1 else f"{length} keys"


def _size(adapter: Entry) -> str:
    if adapter["method"] == "prefix":
        return _keys(adapter["prefix_length"])
    return f"rank {adapter['rank']}" if adapter["method"] == "lora" else f"φ = {adapter['feature_map']}"


def claims(record: Record) -> Sequence[Claim]:
    """State who ends lower, and by how much."""
    methods = record["result"]["methods"]
    wins, count = wins_of(record)
    apart = [b - a for a, b in zip(*(methods[name]["held_out"][-1] for name in (NEW, OLD)), strict=True)]
    return [
        Claim(f"Seeds of {count} in which Prefix-Tuning+ ends below prefix tuning", wins, format=integer),
        Claim("By how much, nats per byte of held-out text", mean_std(apart), format=fixed(3)),
        *(
            Claim(f"{NAMES[name]}: adapter's part of a head's output, {end} positions", value, format=percent(1))
            for name in (OLD, NEW)
            for end, value in ends_of(methods[name]["shares"], "prefix").items()
        ),
    ]


def headline(record: Record) -> str:
    """State whether the new method goes below the old one here."""
    wins, count = wins_of(record)
    below = "goes below" if wins == count else "does not always go below" if wins else "does not go below"
    return f"With the same number of trained parameters Prefix-Tuning+ {below} prefix tuning ({wins} of {count} seeds)."
