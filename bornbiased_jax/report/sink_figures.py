"""Figures about attention sinks; each takes arrays and returns a matplotlib Figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator, ScalarFormatter
from numpy.typing import ArrayLike

from bornbiased_jax.report import figures
from bornbiased_jax.report.numbers import significant


def sink_map(score_LH: ArrayLike, *, epsilon: float, length: int, position: int = 1, ax: Axes | None = None) -> Figure:
    """Draw the score α of one position, from 1, in every block and head [L, H]; sinks, those above ε, carry a dot.

    It was measured on sequences of this length, and is drawn into axes if given.
    """
    scores = np.asarray(score_LH, dtype=float)
    L, H = scores.shape
    figure, ax = figures.new(width=max(3.6, 0.32 * H + 1.8), height=max(2.6, 0.17 * L + 1.2), ax=ax)
    figures.heatmap(ax, scores, name=f"score of position {position}", scale=figures.Scale(0.0, 1.0))
    rows, columns = np.nonzero(scores > epsilon)
    ax.plot(
        columns,
        rows,
        linestyle="",
        marker=".",
        markersize=4,
        color=figures.SERIES[1],
        label=f"sink: above ε = {epsilon:g}" + ("" if len(rows) else " (none)"),
    )
    # Heads and blocks count from 1, those without a label of their own too.
    for axis, count in ((ax.xaxis, H), (ax.yaxis, L)):
        axis.set_ticks(_ticks(count))
        axis.set_major_formatter(FuncFormatter(lambda index, _position: f"{index + 1:.0f}"))
    figures.label(ax, "head", "block", f"Attention to position {position}, T = {length}, ε = {epsilon:g}")
    # Below the name of the axis, half an inch down.
    place = (0.5, -0.5 * figure.dpi / ax.bbox.height)
    ax.legend(loc="upper center", bbox_to_anchor=place, frameon=False, fontsize="small")
    return figure


def variance_by_position(series: Mapping[str, ArrayLike]) -> Figure:
    """Plot the variance at positions 1…T of each named series [T]."""
    figure, ax = figures.new()
    for index, (name, values) in enumerate(series.items()):
        y = np.asarray(values, dtype=float)
        color = figures.SERIES[index % len(figures.SERIES)]
        figures.line(ax, np.arange(1, len(y) + 1), y, name=name, color=color, markers=len(y) <= 40)
    log_axis(ax)
    figures.count_axis(ax)
    figures.label(ax, "position", "variance")
    if len(series) > 1:
        ax.legend(frameon=False)
    return figure


def top_channels(first_D: ArrayLike, rest_D: ArrayLike, *, block: int, channels: Sequence[int]) -> Figure:
    """Draw some channels by mean |h| at the first position [D], next to the mean at the others [D].

    ``block``, counted from 1, is the one they follow; ``channels`` are their numbers.
    """
    first, rest = np.asarray(first_D, dtype=float), np.asarray(rest_D, dtype=float)
    order = np.argsort(-first)
    names = np.asarray(channels)[order]
    figure, ax = figures.new()
    x = np.arange(len(order))
    ax.bar(x - 0.2, first[order], width=0.4, color=figures.SERIES[1], label="first position")
    ax.bar(x + 0.2, rest[order], width=0.4, color=figures.SERIES[0], label="other positions")
    ax.set_xticks(x, [str(channel) for channel in names], rotation=60 if len(order) > 8 else 0)
    log_axis(ax)
    figures.label(ax, "channel", "mean |h|", f"after block {block}")
    ax.legend(frameon=False)
    return figure


def sink_rate_by_length(rates: Mapping[str, Mapping[Any, float | Sequence[float]]]) -> Figure:
    """Draw Figure 12: sink rate against sequence length, one line a model.

    Each value is a rate, or the rates of several seeds, whose range is drawn as a band.
    """
    figure, ax = figures.new()
    for index, (name, by_length) in enumerate(rates.items()):
        lengths = sorted(by_length, key=int)
        values = [np.atleast_1d(np.asarray(by_length[length], dtype=float)) for length in lengths]
        several = any(len(value) > 1 for value in values)
        figures.line(
            ax,
            [int(length) for length in lengths],
            [value.mean() for value in values],
            ([value.min() for value in values], [value.max() for value in values]) if several else None,
            name=name,
            color=figures.SERIES[index % len(figures.SERIES)],
            markers=True,
        )
    ax.set_xscale("log", base=2)
    all_lengths = sorted({int(length) for by_length in rates.values() for length in by_length})
    ax.set_xticks(all_lengths, [str(length) for length in all_lengths])
    ax.set_ylim(-0.03, 1.03)
    figures.label(ax, "sequence length", "sink rate")
    ax.legend(frameon=False)
    return figure


def log_axis(ax: Axes) -> None:
    """Make the y axis logarithmic if anything drawn is positive; label enough ticks, however little it spans."""
    if not np.isfinite(ax.dataLim.minposy):
        return
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    if high < 5 * low:
        # Powers of ten and their multiples are too far apart.
        ax.yaxis.set_major_locator(MaxNLocator(nbins=6))
        ax.yaxis.set_major_formatter(ScalarFormatter(useOffset=False, useMathText=True))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.yaxis.set_minor_formatter(FuncFormatter(_between_powers) if high < 20 * low else NullFormatter())


def _between_powers(value: float, _position: int) -> str:
    leading = round(value / 10 ** math.floor(math.log10(value)))
    return significant(1)(value) if leading in (2, 3, 4, 6) else ""


def _ticks(count: int) -> list[int]:
    """Return at most about ten indices, the first included."""
    return list(range(0, count, max(1, -(-count // 10))))
