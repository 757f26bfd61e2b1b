"""What a curve is and how high it is, told where the pointer rests on it: titles in the SVG, no script."""

from __future__ import annotations

import html

import numpy as np
from matplotlib.figure import Figure

MOST = 240
"""Points of a figure that are told at most; of longer curves every second, third … point is."""
RADIUS = 5
"""Of the place around a point that is told, in points of print."""


def spots(figure: Figure) -> str:
    """Put transparent circles over the points of a figure's curves, titled by the curve's name and both values.

    Straight lines of reference, and what lies outside the axes, have none.

    Args:
        figure: the figure, after it was drawn: its layout must stand.

    Returns:
        Elements of SVG in the figure's own coordinates, 72 to the inch, y from the top.
    """
    curves = [
        (ax, line)
        for ax in figure.axes
        for line in ax.get_lines()
        if line.get_transform() == ax.transData and len(np.asarray(line.get_xydata())) > 2
    ]
    count = sum(len(np.asarray(line.get_xydata())) for _, line in curves)
    # Thin out dense curves evenly.
    step = max(1, -(-count // MOST))
    scale, height = 72 / figure.dpi, 72 * figure.get_size_inches()[1]
    circles = []
    for ax, line in curves:
        data = np.asarray(line.get_xydata(), dtype=float)[::step]
        name = "" if str(line.get_label()).startswith("_") else f"{line.get_label()}, "
        across = f"{ax.get_xlabel()} " if ax.get_xlabel() else ""
        # From data to the figure's coordinates, y from the top.
        places = ax.transData.transform(data)
        for (x, y), (left, up) in zip(data, places, strict=True):
            if not np.all(np.isfinite((x, y, left, up))) or not ax.bbox.padded(1).contains(left, up):
                continue
            words = html.escape(f"{name}{across}{_number(x)}: {_number(y)}".replace("\n", " "))
            circles.append(
                f'<circle cx="{left * scale:.1f}" cy="{height - up * scale:.1f}" r="{RADIUS}" fill="transparent">'
                f"<title>{words}</title></circle>"
            )
    return "".join(circles)


def _number(value: float) -> str:
    return f"{value:.4g}".replace("-", "−")
