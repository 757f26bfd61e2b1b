"""The house style of figures: plain axes, colors that color-blind readers can tell apart, no global state.

Figures are :class:`matplotlib.figure.Figure` objects without pyplot. They are drawn inside
:func:`style` (the runner sees to that for experiments; the functions here see to it for themselves).
:func:`svg` gives one as inline SVG whose colors follow the page's light or dark scheme by CSS variables.
"""

from __future__ import annotations

import contextlib
import html
import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import matplotlib
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import ListedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike

from bornbiased_jax.errors import InputError

# Steps of the colors of a matrix.
_COLORS = 256
# Letters of a name in a figure.
_LONGEST_NAME = 30
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Okabe and Ito's colors, the two palest ones darkened until they show on white.
SERIES = ("#0072b2", "#d55e00", "#009e73", "#b5659b", "#c98a00", "#3d9bd1")
DARK_SERIES = ("#5fb0e5", "#f2935a", "#45c9a2", "#e29ccb", "#e8b84a", "#8fcdf2")
INK, MUTED, RULE = "#1d1f21", "#64686d", "#dcdcd6"
DARK_INKS = ("#e6e6e3", "#a0a4a8", "#3a3d40")

DASHES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
"""Of curves beyond the number of colors."""

LEGIBLE = 5.3
"""Least width of a figure on a page, in rem for each of its inches: letters of 8.5 points are then 10 pixels high."""

MOST_SPOTS = 240
"""Points of a figure that tell their values at most; of longer curves every second, third … point does."""
SPOT_RADIUS = 5
"""Of the place around a point that tells, in points of print."""

MEASURED, THEORY, PAPER, BASELINE = SERIES[0], SERIES[1], INK, SERIES[1]
"""One color for one meaning in every figure."""

STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": MUTED,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.7,
    "axes.prop_cycle": cycler(color=SERIES),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.unicode_minus": True,
    "figure.constrained_layout.use": True,
    "figure.facecolor": "none",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "savefig.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "bornbiased",
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.5,
}

_VARIABLES = {
    **{color: f"var(--series-{index})" for index, color in enumerate(SERIES, 1)},
    INK: "currentColor",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Apply the house style to a block, as a context manager or a decorator; matplotlib's own returns after it."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # A busy machine takes more than a second to place a legend: no news for a reader.
        warnings.filterwarnings("ignore", "Creating legend with loc", UserWarning)
        # Names of files may have letters that the font lacks: boxes in a PNG, and right in an SVG.
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        yield


class Drawing(Figure):
    """A figure that a notebook shows by itself: no pyplot and no backend is asked."""

    def _repr_png_(self) -> bytes:
        return drawn(self, "figure.png", dpi=100)


@style()
def new(
    columns: int = 1, rows: int = 1, width: float = 6.4, height: float = 3.4, ax: Axes | None = None
) -> tuple[Figure, Any]:
    """Make a figure of ``width`` × ``height`` inches and its axes: one, or an array as ``subplots`` gives.

    Axes of somebody else's figure, if given, are returned with that figure, dressed in the house style.
    """
    if ax is not None:
        ax.spines[["top", "right"]].set_visible(False)
        ax.set_axisbelow(True)
        ax.grid(True, axis="y", color=RULE, linewidth=0.6)
        figure: Any = ax.figure  # a figure, or part of one
        return figure, ax
    drawing = Drawing(figsize=(width, height))
    return drawing, drawing.subplots(rows, columns)


@style()
def label(ax: Axes, x: str = "", y: str = "", title: str = "") -> None:
    """Name the axes (with their units) and, where there are several, the panel."""
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    if title:
        ax.set_title(title)


@style()
def legend(ax: Axes, is_above: bool = False) -> None:
    """Place a legend of all named curves where it hides least, or above the axes; none if nothing is named."""
    if ax.get_legend_handles_labels()[0] and is_above:
        ax.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    elif ax.get_legend_handles_labels()[0]:
        ax.legend()


@style()
def line(
    ax: Axes,
    x: ArrayLike,
    y: ArrayLike,
    interval: tuple[ArrayLike, ArrayLike] | None = None,
    name: str = "",
    color: str = MEASURED,
    dashed: bool = False,
    markers: bool = False,
) -> None:
    """Draw a line [n] with an optional band over an interval, such as the range over seeds; of one point a marker."""
    is_point = np.size(x) == 1
    if interval is not None and is_point:
        ax.vlines(x, *interval, color=color, alpha=0.4, linewidth=4)
    elif interval is not None:
        ax.fill_between(x, *interval, color=color, alpha=0.18, linewidth=0)
    ax.plot(
        x,
        y,
        color=color,
        linestyle="--" if dashed else "-",
        marker="o" if markers or is_point else "",
        label=name or None,
    )


@style()
def smoothed(ax: Axes, x: ArrayLike, y: ArrayLike, name: str = "", color: str = MEASURED) -> None:
    """Draw a noisy line [n] thin and pale, and over it its mean in a window of a twentieth of its points."""
    heights = np.asarray(y, dtype=float)
    window = np.ones(max(1, len(heights) // 20))
    if len(window) > 1:
        ax.plot(x, heights, color=color, linewidth=0.7, alpha=0.35)
        heights = np.convolve(heights, window, "same") / np.convolve(np.ones(len(heights)), window, "same")
    line(ax, x, heights, name=name, color=color)


def band(
    ax: Axes,
    x: ArrayLike,
    values_Sx: ArrayLike,
    *,
    name: str = "",
    color: str = MEASURED,
    markers: bool = False,
) -> None:
    """Draw the mean over seeds (the first axis) as :func:`line` does, with a band over their range."""
    values = np.asarray(values_Sx)
    interval = values.min(axis=0), values.max(axis=0)
    line(ax, x, values.mean(axis=0), interval, name, color, markers=markers)


@style()
def points(ax: Axes, x: ArrayLike, y: ArrayLike, name: str = "", color: str = PAPER) -> None:
    """Draw open circles for single numbers, such as the paper's, next to lines."""
    ax.plot(x, y, linestyle="", marker="o", markersize=6, markerfacecolor="none", color=color, label=name or None)


@style()
def reference(ax: Axes, value: float, name: str, color: str = BASELINE, vertical: bool = False) -> None:
    """Draw a dashed straight line across the axes at a value to compare with."""
    draw = ax.axvline if vertical else ax.axhline
    draw(value, color=color, linewidth=1.2, linestyle=(0, (5, 3)), label=name)


def short(name: str) -> str:
    r"""Return a name from a file or a folder as a figure has room for it: of a long one the end, which tells most.

    Dollar signs are escaped, as two would enclose a formula, and so are bytes that are not UTF-8 and control
    characters, which an SVG must not hold.

    >>> short("runs/a$b"), short("/home/me/models/a-model-of-some-length")
    ('runs/a\\$b', '…models/a-model-of-some-length')
    """
    name = _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", name.encode(errors="backslashreplace").decode())
    return (name if len(name) <= _LONGEST_NAME else f"…{name[1 - _LONGEST_NAME :]}").replace("$", r"\$")


def left_out(count: int) -> str:
    """Return what the caption says where there are more curves than colors, one for each; nothing where all are drawn.

    >>> left_out(6), left_out(8)
    ('', ' The first 6 of 8 curves are drawn.')
    """
    return f" The first {len(SERIES)} of {count} curves are drawn." if count > len(SERIES) else ""


def curve_style(index: int) -> tuple[str, Literal["-", "--", ":", "-."]]:
    """Return color and dashes of the curve of this number, from 0: beyond the colors, dashes tell curves apart.

    >>> curve_style(0), curve_style(7)
    (('#0072b2', '-'), ('#d55e00', '--'))
    """
    return SERIES[index % len(SERIES)], DASHES[index // len(SERIES) % len(DASHES)]


def count_axis(ax: Axes) -> None:
    """Set the ticks of the horizontal axis at whole numbers: blocks, ranks."""
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


@style()
def ranked_bars(
    ax: Axes,
    values: ArrayLike,
    labels: Sequence[Any] | None = None,
    baseline: float | None = None,
    baseline_name: str = "uniform baseline",
) -> None:
    """Draw bars in falling order of the values [n], with the level that a model without preferences would have."""
    heights = np.asarray(values, dtype=float)
    order = np.argsort(-heights, kind="stable")
    ranks = np.arange(1, len(heights) + 1)
    ax.grid(False, axis="x")
    ax.bar(ranks, heights[order], width=0.8, color=MEASURED)
    ax.set_xlim(0.4, len(heights) + 0.6)
    # Counts: no ticks between them, and room above for the legend.
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    ax.set_ylim(0, 1.25 * max(float(heights.max(initial=0.0)), baseline or 0.0, 1.0))
    if labels is not None:
        ax.set_xticks(ranks, [str(labels[index]) for index in order])
        if len(heights) > 8:
            ax.tick_params(axis="x", labelsize=7.5, labelrotation=90, length=2)
    if baseline is not None:
        reference(ax, baseline, baseline_name)
        legend(ax)


@style()
def predicted_against_measured(ax: Axes, series: Mapping[str, tuple[ArrayLike, ArrayLike]]) -> None:
    """Plot points (predicted, measured) of each named series, with the line on which they agree."""
    pairs = [(np.asarray(x, dtype=float), np.asarray(y, dtype=float)) for x, y in series.values()]
    low = min(min(x.min(), y.min()) for x, y in pairs)
    high = max(max(x.max(), y.max()) for x, y in pairs)
    room = 0.05 * (high - low) or 0.05
    ends = (low - room, high + room)
    ax.plot(ends, ends, color=MUTED, linewidth=0.9, linestyle=(0, (5, 3)), label="predicted = measured")
    marks = "osD^vP"
    for index, (name, (x, y)) in enumerate(zip(series, pairs, strict=True)):
        ax.plot(
            x,
            y,
            linestyle="",
            marker=marks[index % len(marks)],
            color=SERIES[index % len(SERIES)],
            label=name,
            alpha=0.85,
            rasterized=x.size > 2000,
        )
    ax.set(xlim=ends, ylim=ends, aspect="equal")
    label(ax, "predicted", "measured")
    legend(ax)


class Scale(NamedTuple):
    """The meaning of the colors of a matrix.

    Attributes:
        low, high: the values at their ends.
        gray_below: values nearer to zero say nothing, and are gray.
    """

    low: float
    high: float
    gray_below: float = 0.0


@style()
def heatmap(
    ax: Axes,
    matrix: ArrayLike,
    x_labels: Sequence[Any] | None = None,
    y_labels: Sequence[Any] | None = None,
    name: str = "",
    diverging: bool = False,
    digits: int | None = None,
    scale: Scale | None = None,
) -> None:
    """Draw a matrix [rows, columns] in color.

    Args:
        ax: axes to draw into.
        matrix: [rows, columns].
        x_labels: of the columns.
        y_labels: of the rows.
        name: of what the colors mean.
        digits: decimals of the numbers that are written into the cells; None: no numbers.
        diverging: colors that part at zero, for values with a sign.
        scale: what the colors stand for; the matrix's own values if not given.
    """
    values = np.asarray(matrix, dtype=float)
    # Cells without a number are left blank, and have no part in the colors.
    values = np.where(np.isfinite(values), values, np.nan)
    finite = values[np.isfinite(values)]
    least, largest = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    low, high, gray_below = scale or Scale(least, largest)
    if diverging:
        high = max(abs(low), abs(high))
        low = -high
    # Equal numbers have the color in the middle.
    room = 0.0 if low < high else 0.1 * abs(low) or 0.1
    low, high = low - room, high + room
    # The colors, one for each of as many equal steps.
    colors = matplotlib.colormaps["RdBu_r" if diverging else "cividis"](np.linspace(0, 1, _COLORS))
    middles = low + (high - low) * (np.arange(_COLORS) + 0.5) / _COLORS
    colors[np.abs(middles) < gray_below] = to_rgba("0.8")
    # The cells and their labels.
    image = ax.imshow(
        values,
        cmap=ListedColormap(colors),
        vmin=low,
        vmax=high,
        aspect="auto",
        interpolation="nearest",
    )
    ax.grid(False)
    for axis, labels in ((ax.xaxis, x_labels), (ax.yaxis, y_labels)):
        if labels is not None:
            axis.set_ticks(range(len(labels)), [str(entry) for entry in labels])
    for spine in ax.spines.values():
        spine.set_visible(False)
    ax.tick_params(length=0)
    if digits is not None:
        for (row, column), value in np.ndenumerate(values):
            if not np.isfinite(value):
                continue
            # Black letters on bright cells, white ones on dark cells.
            red, green, blue, _ = image.to_rgba(np.array([value]))[0]
            bright = 0.299 * red + 0.587 * green + 0.114 * blue > 0.55
            # Zero has no sign.
            text = f"{round(float(value), digits) + 0.0:.{digits}f}".replace("-", "−")
            ax.text(column, row, text, ha="center", va="center", size=8, color="black" if bright else "white")
    is_below, is_above = least < low, largest > high
    extend = "both" if is_below and is_above else "min" if is_below else "max" if is_above else "neither"
    bar = ax.figure.colorbar(image, ax=ax, label=name, pad=0.02, extend=extend)
    bar.outline.set_visible(False)


def svg(figure: Figure, ident: str, alt: str) -> str:
    """Return the figure as inline SVG for a page.

    Args:
        figure: the figure.
        ident: letters, digits, hyphens and underscores, unique on the page: it makes the ids inside unique.
        alt: the text for readers who cannot see the figure.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", ident):
        raise ValueError(f"ident {ident!r} is not a letter followed by letters, digits, hyphens and underscores")
    stream = io.StringIO()
    with style():
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # Several figures share a page: give each its own ids.
    text = re.sub(r'\bid="([^"]+)"', rf'id="{ident}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{ident}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{ident}-\1"', text)
    # Colors become variables of the page, light or dark.
    for color, variable in _VARIABLES.items():
        text = text.replace(color, variable)
    width, height = figure.get_size_inches()
    opening = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{html.escape(alt)}" viewBox="0 0 {72 * width:g} {72 * height:g}" '
        # Letters have one size in all figures, as far as the column is wide enough; where they would be smaller than
        # ten pixels the figure scrolls instead.
        f'style="max-width: {6.6 * width:g}rem; min-width: {LEGIBLE * width:g}rem">'
    )
    text = re.sub(r"<svg[^>]*>", lambda _: opening, text, count=1)
    end = text.rindex("</svg>")
    return f"{text[:end]}{_spots(figure)}{text[end:]}"


def _spots(figure: Figure) -> str:
    """Put transparent circles over the points of a figure's curves, titled by the curve's name and both values.

    A title shows where the pointer rests, without a script; values that an axis has names for are told by these.
    Straight lines of reference, and what lies outside the axes, have none. The figure was drawn before: its layout must
    stand.
    """
    curves = [
        (ax, line)
        for ax in figure.axes
        for line in ax.get_lines()
        if line.get_transform() == ax.transData and len(np.asarray(line.get_xydata())) > 2
    ]
    count = sum(len(np.asarray(line.get_xydata())) for _, line in curves)
    # Thin out dense curves evenly.
    step = max(1, -(-count // MOST_SPOTS))
    scale, height = 72 / figure.dpi, 72 * figure.get_size_inches()[1]
    circles = []
    for ax, line in curves:
        data = np.asarray(line.get_xydata(), dtype=float)[::step]
        name = "" if str(line.get_label()).startswith("_") else f"{line.get_label()}, "
        across = f"{ax.get_xlabel()} " if ax.get_xlabel() else ""
        write_x, write_y = _tick_names(ax.xaxis), _tick_names(ax.yaxis)
        # From data to the figure's coordinates, y from the top.
        places = ax.transData.transform(data)
        for (x, y), (left, up) in zip(data, places, strict=True):
            if not np.all(np.isfinite((x, y, left, up))) or not ax.bbox.padded(1).contains(left, up):
                continue
            words = html.escape(f"{name}{across}{write_x(x)}: {write_y(y)}".replace("\n", " "))
            circles.append(
                f'<circle cx="{left * scale:.1f}" cy="{height - up * scale:.1f}" r="{SPOT_RADIUS}" fill="transparent">'
                f"<title>{words}</title></circle>"
            )
    return "".join(circles)


def _tick_names(axis: Axis) -> Callable[[float], str]:
    """Return how an axis writes its values: by the names that its ticks were given, else as numbers."""
    formatter = axis.get_major_formatter()
    if not isinstance(formatter, FuncFormatter):
        return _number
    # Where a value is no tick, such a formatter has no name for it. Dollar signs are escaped for the drawing alone.
    return lambda value: formatter(value).replace(r"\$", "$") or _number(value)


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")


def standalone_svg(figure: Figure, alt: str) -> str:
    """Return the figure as an SVG file whose colors follow the reader's light or dark scheme."""
    scheme = "svg {{ color: {}; --muted: {}; --rule: {}; {} }}"
    light, dark = (
        scheme.format(*inks, " ".join(f"--series-{index}: {color};" for index, color in enumerate(series, 1)))
        for inks, series in (((INK, MUTED, RULE), SERIES), (DARK_INKS, DARK_SERIES))
    )
    colors = f"<style>{light} @media (prefers-color-scheme: dark) {{ {dark} }}</style>"
    # A file has its own size, not that of a page's column.
    text = re.sub(r'(<svg[^>]*?) style="[^"]*"', r"\1", svg(figure, "figure", alt), count=1)
    return re.sub(r"<svg[^>]*>", lambda opening: f"{opening[0]}{colors}", text, count=1) + "\n"


def drawn(figure: Figure, path: Path | str, *, dpi: int = 200) -> bytes:
    """Return the figure as the bytes of a file of this name, on white; the same bytes for the same figure.

    Raises:
        InputError: an ending that is none of PNG, SVG and PDF.
    """
    kind = Path(path).suffix.lstrip(".").lower()
    if kind not in ("png", "svg", "pdf"):
        raise InputError(f"cannot draw {path}: end its name in .png, .svg or .pdf")
    stream = io.BytesIO()
    with style():
        # No date, which would be another one tomorrow.
        undated = {"png": {}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
        figure.savefig(stream, format=kind, facecolor="white", dpi=dpi, metadata=undated)
    return stream.getvalue()
