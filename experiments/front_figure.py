"""The figure of the README: untrained GPT-2 of 124M parameters, its paper's length, against theory.

Drawn from committed records by ``python -m experiments.docs``, for light and dark pages.
"""

from __future__ import annotations

from pathlib import Path

from bornbiased_jax.experiments import results
from bornbiased_jax.experiments._shared import probing
from bornbiased_jax.report import figures

NAMES = ("table1_a_1024_42", "table1_a_1024_43")
PATH = Path("docs", "images", "contraction.svg")
ALT = "Cosine between last-token states of unrelated inputs after each block: two untrained GPT-2 models and theory."


def svg() -> str:
    """Return the figure as an SVG file that follows the reader's light or dark scheme."""
    groups = [probing.probed_groups(record)[0] for name in NAMES if (record := results.committed(name, "paper"))]
    figure, ax = figures.new(width=6.0, height=2.9)
    probing.draw_theory(ax, groups[0], "theory; band: 99% of seeds")
    for group in groups:
        (cosines,) = probing.values(group, "contraction", "inter_cosine_by_layer")
        seed = group["group"]["seeds"][0]
        color = figures.SERIES[0] if group is groups[0] else figures.SERIES[2]
        figures.line(ax, probing.blocks(group), cosines, name=f"measured, seed {seed}", color=color, markers=True)
    ax.set_ylim(bottom=0)
    figures.count_axis(ax)
    figures.label(ax, "after block", "mean cosine between inputs", "Unrelated inputs become alike with depth")
    figures.legend(ax)
    return figures.standalone_svg(figure, ALT)
