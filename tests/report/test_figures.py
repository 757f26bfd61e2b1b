import re
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.report import figures

X = np.arange(1, 13)
DRAW = {
    "line": lambda ax: figures.line(ax, X, X / 30, (X / 40, X / 20), name="measured", markers=True),
    "points": lambda ax: figures.points(ax, [12], [0.32], name="paper"),
    "reference": lambda ax: figures.reference(ax, 0.2, "baseline", vertical=True),
    "ranked_bars": lambda ax: figures.ranked_bars(ax, [0.1, 0.3, 0.2], labels=[7, 8, 9], baseline=0.05),
    "predicted": lambda ax: figures.predicted_against_measured(ax, {"a": (X, X + 1), "b": ([0.0], [0.0])}),
    "heatmap": lambda ax: figures.heatmap(ax, np.eye(3) - 1, "abc", "def", "z", diverging=True, digits=1),
}


def drawn(name):
    figure, ax = figures.new()
    DRAW[name](ax)
    figures.label(ax, "x", "y", "title")
    return figure


@pytest.mark.parametrize("name", DRAW)
def test_svg_is_well_formed_follows_the_page_and_names_its_ids(name):
    text = figures.svg(drawn(name), "figure1-2", 'a "figure" & more')
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == 'a "figure" & more' and root.get("role") == "img"
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert ids and all(ident.startswith("figure1-2-") for ident in ids)
    references = re.findall(r"url\(#([^)]+)\)", text) + re.findall(r'xlink:href="#([^"]+)"', text)
    assert set(references) <= set(ids)
    # No color of the page's own is fixed, so that the dark scheme reaches every axis and letter.
    for color in (*figures.SERIES, figures.INK, figures.MUTED, figures.RULE):
        assert color not in text
    assert "currentColor" in text and "var(--muted)" in text


@pytest.mark.parametrize("name", [name for name in DRAW if name != "heatmap"])
def test_no_text_keeps_the_default_black(name):
    text = figures.svg(drawn(name), "f", "")
    styles = re.findall(r"<text[^>]*style=\"([^\"]*)\"", text)
    assert styles and all("currentColor" in style for style in styles)


def test_a_legend_names_what_has_a_name_and_is_absent_otherwise():
    figure, ax = figures.new()
    figures.line(ax, X, X)
    figures.legend(ax)
    assert ax.get_legend() is None
    figures.points(ax, X, X, name="paper")
    figures.legend(ax)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["paper"]


def test_a_legend_above_the_axes_covers_no_curve():
    figure, ax = figures.new()
    for level in np.linspace(0, 1, 12):
        figures.line(ax, X, np.full(len(X), level), name="" if level else "named")
    figures.legend(ax, is_above=True)
    figure.draw_without_rendering()
    assert ax.get_legend().get_window_extent().y0 >= ax.bbox.y1


def test_svg_is_repeatable():
    assert figures.svg(drawn("line"), "f", "alt") == figures.svg(drawn("line"), "f", "alt")


def test_drawing_leaves_matplotlib_as_it_was():
    before = dict(matplotlib.rcParams)
    figures.svg(drawn("ranked_bars"), "f", "")
    assert dict(matplotlib.rcParams) == before


def test_ranked_bars_fall_and_keep_their_labels():
    figure, ax = figures.new()
    figures.ranked_bars(ax, [0.1, 0.3, 0.2], labels=[7, 8, 9])
    assert [bar.get_height() for bar in ax.patches] == [0.3, 0.2, 0.1]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["8", "9", "7"]


def test_diverging_colors_part_at_zero():
    figure, ax = figures.new()
    figures.heatmap(ax, [[-1.0, 3.0]], diverging=True)
    assert ax.images[0].get_clim() == (-3.0, 3.0)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_numbers_of_equal_cells_contrast_with_their_color(value):
    figure, ax = figures.new()
    figures.heatmap(ax, np.full((1, 2), value), diverging=True, digits=1)
    figure.draw_without_rendering()
    brightness = np.dot(ax.images[0].to_rgba([value])[0][:3], (0.299, 0.587, 0.114))
    assert {text.get_color() for text in ax.texts} == {"black" if brightness > 0.55 else "white"}


def test_cells_without_a_number_have_no_part_in_the_colors():
    _, ax = figures.new()
    figures.heatmap(ax, [[np.inf, 1.0], [np.nan, 3.0]], digits=0)
    assert ax.images[0].get_clim() == (1.0, 3.0) and [text.get_text() for text in ax.texts] == ["1", "3"]
    assert ax.images[0].colorbar.extend == "neither"
    _, ax = figures.new()
    figures.heatmap(ax, [[np.nan, np.nan]], digits=0)
    assert np.all(np.isfinite(ax.images[0].get_clim())) and not ax.texts


def test_names_of_files_may_have_control_characters():
    figure, ax = figures.new()
    figures.line(ax, X, X, name=figures.short("runs/\x1b[31m\n\x9c$a"))
    figures.legend(ax)
    ElementTree.fromstring(figures.standalone_svg(figure, "alt"))
    assert ax.get_legend().get_texts()[0].get_text() == r"runs/\x1b[31m\x0a\x9c\$a"


def test_files_are_drawn_by_the_ending_and_others_are_refused():
    figure = drawn("line")
    assert figures.drawn(figure, "a.png").startswith(b"\x89PNG")
    assert figures.drawn(figure, "a.pdf").startswith(b"%PDF")
    assert b"<svg" in figures.drawn(figure, "a.svg")
    with pytest.raises(InputError, match=r"\.png"):
        figures.drawn(figure, "a.gif")


@pytest.mark.slow
def test_an_ident_that_would_break_the_page_is_refused():
    with pytest.raises(ValueError, match="ident"):
        figures.svg(drawn("line"), '1"', "")


def test_points_of_curves_are_told_where_they_are_drawn():
    figure, ax = figures.new()
    heights = np.where(X % 2, 0.1, 0.3) + X / 1000
    figures.line(ax, X, np.where(X > 10, 0.9, heights), name="seed <7>")
    figures.reference(ax, 0.2, "baseline")
    figures.label(ax, "block", "cosine")
    ax.set_ylim(0, 0.5)
    root = ElementTree.fromstring(figures.svg(figure, "f", ""))
    circles = root.findall("{*}circle")
    titles = [circle.find("{*}title").text for circle in circles]
    # Twelve points, of which the last two lie above the axes; a straight line of reference has none.
    assert len(circles) == 10 and titles[2] == "seed <7>, block 3: 0.103"
    # The circle lies on the curve that matplotlib drew: its third vertex, in the same coordinates.
    paths = [path for path in root.findall(".//{*}path") if "stroke: var(--series-1)" in path.get("style", "")]
    path = max((path.get("d") for path in paths), key=len)
    vertex = re.findall(r"[ML] ([-\d.]+) ([-\d.]+)", path)[2]
    assert [float(circles[2].get(name)) for name in ("cx", "cy")] == pytest.approx([float(v) for v in vertex], abs=0.06)


def test_long_curves_are_told_in_part():
    figure, ax = figures.new()
    figures.line(ax, np.arange(5000), np.arange(5000))
    assert 100 < figures.svg(figure, "f", "").count("<circle") <= 240


def test_a_figure_stays_legible_where_the_window_is_narrow():
    figure, ax = figures.new(width=10.0)
    figures.line(ax, X, X)
    style = ElementTree.fromstring(figures.svg(figure, "f", "")).get("style")
    least = float(re.search(r"min-width: ([\d.]+)rem", style)[1])
    # Pixels of the smallest letters at that width: a rem has 16, an inch of the drawing 72.
    assert 8.5 * least * 16 / 720 > 9.9
    assert float(re.search(r"max-width: ([\d.]+)rem", style)[1]) > least


def test_a_single_point_shows_with_its_interval():
    _, ax = figures.new()
    figures.line(ax, [1], [0.5], ([0.4], [0.6]))
    figures.count_axis(ax)
    assert ax.lines[0].get_marker() == "o" and all(tick.is_integer() for tick in ax.get_xticks())
    np.testing.assert_array_equal(ax.collections[0].get_segments()[0], [[1, 0.4], [1, 0.6]])


def test_a_noisy_line_is_drawn_smoothed_over_raw():
    figure, ax = figures.new()
    heights = 3.0 + np.tile([-1.0, 1.0], 50)
    figures.smoothed(ax, np.arange(100), heights, "seed 1")
    raw, smooth = ax.lines
    np.testing.assert_array_equal(raw.get_ydata(), heights)
    # A mean over five points, of fewer at the ends: a constant stays one.
    assert np.abs(smooth.get_ydata()[2:-2] - 3.0).max() <= 0.2 + 1e-9 and smooth.get_label() == "seed 1"
    assert smooth.get_zorder() >= raw.get_zorder() and smooth.get_linewidth() > raw.get_linewidth()
    figures.smoothed(ax, np.arange(9), np.arange(9.0))
    assert len(ax.lines) == 3
