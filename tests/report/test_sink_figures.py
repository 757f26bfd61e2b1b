"""The figures about sinks hold the numbers that they were given."""

import re

import numpy as np
import pytest

from bornbiased_jax.report import figures, sink_figures
from bornbiased_jax.results import Sinks


@pytest.fixture(autouse=True)
def styled():
    with figures.style():
        yield


def test_sink_map_marks_the_heads_above_epsilon():
    scores = np.array([[0.1, 0.9, 0.2], [0.3, 0.25, 0.0]])
    figure = sink_figures.sink_map(scores, epsilon=0.25, length=64)
    ax = figure.axes[0]
    np.testing.assert_array_equal(ax.images[0].get_array(), scores)
    # (head, layer) of the two sinks; a score of exactly ε is none.
    assert sorted(zip(*ax.lines[0].get_data(), strict=True)) == [(0, 1), (1, 0)]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "2", "3"]
    assert ax.get_title(loc="left") + ax.get_title() == "Attention to position 1, T = 64, ε = 0.25"
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["sink: above ε = 0.25"]


def test_a_sink_is_told_by_its_head_and_block_counted_from_1():
    scores = np.zeros((30, 25))
    scores[0, 0] = scores[11, 14] = scores[29, 24] = 0.9
    text = figures.svg(sink_figures.sink_map(scores, epsilon=0.5, length=8), "f", "")
    titles = re.findall("<title>(.*?)</title>", text)
    assert titles == [f"sink: above ε = 0.5, head {head}: {block}" for head, block in ((1, 1), (15, 12), (25, 30))]


def test_variance_by_position():
    values = 1 / np.arange(1, 9)
    lines = sink_figures.variance_by_position({"a": values, "b": 2 * values}).axes[0].lines
    assert [line.get_label() for line in lines] == ["a", "b"]
    np.testing.assert_allclose(lines[0].get_ydata(), values)
    np.testing.assert_allclose(lines[1].get_ydata(), 2 * values)
    np.testing.assert_array_equal(lines[0].get_xdata(), np.arange(1, 9))


def test_top_channels_are_the_largest_at_the_first_position():
    first = np.array([3.0, 50.0, 20.0])
    figure = sink_figures.top_channels(first, np.ones(3), block=3, channels=[2, 1, 3])
    ax = figure.axes[0]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["1", "3", "2"]
    assert [bar.get_height() for bar in ax.containers[0]] == [50.0, 20.0, 3.0]
    assert ax.get_title(loc="left") == "after block 3"


def test_sink_rate_by_length_sorts_lengths_and_bands_seeds():
    figure = sink_figures.sink_rate_by_length({"baseline": {"64": [0.5, 0.7], "8": [0.2, 0.2]}, "cure": {"8": 0.1}})
    line, other = figure.axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), [8, 64])
    np.testing.assert_allclose(line.get_ydata(), [0.2, 0.6])
    assert len(figure.axes[0].collections) == 1
    np.testing.assert_allclose(other.get_ydata(), [0.1])
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["8", "64"]


@pytest.mark.slow
def test_figures_of_a_report_take_its_greatest_length():
    rng = np.random.default_rng(0)
    layers = [
        {"block": at + 1, "largest": 1.0 + at, "top_channels": [{"channel": 40 + at, "first": 3.0, "rest": 1.0}]}
        for at in range(3)
    ]
    report = {
        "score_by_layer_head": {"8": rng.random((3, 2)).tolist(), "16": np.eye(3)[:, :2].tolist()},
        "epsilon": 0.5,
        "position": 2,
        "variance": {name: {"pooled": rng.random((3, 16))} for name in ("attention_output", "residual")},
        "outliers": {"layers": layers},
    }
    drawn = {name: panel.figure for name, panel in Sinks(report).figures().items()}
    np.testing.assert_array_equal(drawn["sink-map"].axes[0].images[0].get_array(), np.eye(3)[:, :2])
    ax = drawn["top-channels"].axes[0]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["42"]
    assert ax.get_title(loc="left") == "after block 3"
    lines = drawn["variance-residual"].axes[0].lines
    assert [line.get_label() for line in lines] == ["block 1", "block 2", "block 3"]
    np.testing.assert_array_equal(lines[1].get_ydata(), report["variance"]["residual"]["pooled"][1])


def test_numbers_between_powers_of_ten_are_plain():
    figure = sink_figures.variance_by_position({"a": np.linspace(0.3, 2.0, 9)})
    figure.canvas.draw()
    shown = [tick.get_text() for tick in figure.axes[0].yaxis.get_minorticklabels()]
    assert "0.6" in shown and "2" in shown and not any("e" in text or "×" in text for text in shown)


@pytest.mark.parametrize(
    ("least", "span"), [(1.2e-7, 1.5), (1.2e-7, 6.0), (0.97, 1.04), (1.1, 4.0), (2.1, 5.0), (7.0, 19.0)]
)
def test_a_logarithmic_axis_labels_two_ticks_or_more(least, span):
    figure = sink_figures.variance_by_position({"a": np.geomspace(least, least * span, 9)})
    figure.draw_without_rendering()
    axis, (low, high) = figure.axes[0].yaxis, figure.axes[0].get_ylim()
    ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
    shown = [tick.label1.get_text() for tick in ticks if low <= tick.get_loc() <= high and tick.label1.get_text()]
    assert len(set(shown)) >= 2 and not any("e-" in text for text in shown), shown


def test_variances_of_zero_are_drawn_at_zero():
    ax = sink_figures.variance_by_position({"a": np.zeros(4)}).axes[0]
    assert ax.get_yscale() == "linear" and ax.get_ylim()[0] < 0 < ax.get_ylim()[1]


def test_positions_are_whole_numbers():
    ax = sink_figures.variance_by_position({"a": [2.5]}).axes[0]
    assert all(tick.is_integer() for tick in ax.get_xticks())
