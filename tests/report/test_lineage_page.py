"""A verdict's page shows what the verdict holds."""

import dataclasses
import json
import re
from html import unescape

import numpy as np
import pytest
from matplotlib.figure import Figure

from bornbiased_jax.checkpoints import export_hugging_face
from bornbiased_jax.cli.main import run
from bornbiased_jax.lineage.mixture import BlockCoefficient, Coefficient, Mixture
from bornbiased_jax.lineage.verdict import undefined
from bornbiased_jax.report import figures
from bornbiased_jax.report.lineage_figures import block_map, lineage_graph, module_map, null_figure, z_by_step
from bornbiased_jax.results.scans import mixture_figures
from bornbiased_jax.results.verdicts import Lineage
from tests.lineage.descendants import config, descend, everything

INITIAL = "seed:3@llama-tiny,num_layers=2,num_heads=2,d_model=16,d_ff=32,vocab_size=32"


@pytest.fixture(autouse=True)
def styled():
    with figures.style():
        yield


def test_the_map_has_a_row_a_block_and_a_column_a_matrix():
    by_module = [{"module": "embed", "z": 9.0}, {"module": "blocks/2/mlp/up", "z": 4.0}]
    by_module += [{"module": "blocks/1/attention/query", "z": -1.0}, {"module": "blocks/1/mlp/up", "z": None}]
    ax = module_map(by_module).axes[0]
    np.testing.assert_array_equal(ax.images[0].get_array().filled(np.nan), [[np.nan, -1.0], [4.0, np.nan]])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["1", "2"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["mlp\nup", "attention\nquery"]
    assert sorted(text.get_text() for text in ax.texts) == ["4", "−1"]
    assert module_map(by_module[:1]) is None


def test_colors_of_z_mean_the_same_on_every_page_and_nothing_below_four():
    colors = []
    for largest in (9.0, 300.0):
        z = [largest, 20.0, 3.9, -3.9, 4.5, -20.0]
        by_module = [{"module": f"blocks/{block}/mlp/up", "z": value} for block, value in enumerate(z, 1)]
        (image,) = module_map(by_module).axes[0].images
        colors.append(image.to_rgba(np.array(z))[1:, :3])
    np.testing.assert_array_equal(*colors)
    is_gray = np.ptp(colors[0], axis=1) == 0
    assert is_gray.tolist() == [False, True, True, False, False]
    # Red above, blue below.
    assert colors[0][0][0] > colors[0][0][2] and colors[0][4][0] < colors[0][4][2]


def test_blocks_stand_next_to_their_partners_with_the_evidence_that_decides():
    rows = [
        {"component": "all", "evidence": "heads in token space", "z": 9.0},
        {"component": "blocks/2", "evidence": "neurons in token space", "z": 30.0},
        {"component": "blocks/1", "evidence": "neurons in token space", "z": 5.0},
        {"component": "blocks/3", "evidence": "heads in token space", "z": 6.0},
        {"component": "blocks/4", "evidence": "coordinates", "z": None},
    ]
    ax = block_map(rows, [[1, 1], [2, 3]]).axes[0]
    expected = [[30.0, np.nan], [np.nan, 6.0]]
    np.testing.assert_array_equal(ax.images[0].get_array().filled(np.nan), [[5.0, np.nan], *expected])
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["1 – 1", "2 – 3", "3 – none"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["neurons in token space", "heads in token space"]
    assert block_map(rows[:1], []) is None


def test_the_histogram_shows_counts_and_the_observed_statistic():
    ax = null_figure({"low": -2.0, "high": 2.0, "counts": [1, 5, 4, 0]}, 30.0).axes[0]
    assert [bar.get_height() for bar in ax.patches] == [1, 5, 4, 0]
    assert [bar.get_x() for bar in ax.patches] == [-2, -1, 0, 1]
    assert list(ax.lines[0].get_xdata()) == [30.0, 30.0] and ax.get_xlim()[1] > 30
    ax = null_figure({"low": -2.0, "high": 2.0, "counts": [1, 5, 4, 0]}, -30.0).axes[0]
    assert ax.lines[0].get_label() == "observed, z = −30.0"


@pytest.mark.slow
def test_the_command_draws_one_page_that_stands_alone(tmp_path, capsys):
    page, record = tmp_path / "verdict.html", tmp_path / "verdict.json"
    suspect = INITIAL.replace("seed:3", "seed:4")
    call = ["seedprint", INITIAL, suspect, "--alpha", "0.001", "--page", str(page), "--json", str(record), "--quiet"]
    assert run(call) == 0
    html, verdict = unescape(page.read_text()), json.loads(record.read_text())
    assert sum(verdict["null_histogram"]["counts"]) == 9_999
    assert f'<h2 id="lineage-title">Verdict: {verdict["verdict"]}</h2>' in html
    assert f"bornbiased seedprint {INITIAL} {suspect} --alpha 0.001" in html and "--page" not in html
    assert html.count("<svg") == 3 and "Outside the blocks" in html
    assert "by the evidence that decides" in html
    for row in verdict["tests"]:
        shown = f"none: {row['reason']}" if row["verdict"] == "undefined" else row["permuted"]
        assert row["name"] in html and shown in html
    assert not re.findall(r"(?:src|href)=[\"']https?:", html)
    # Before the work is done, whether it can be kept.
    assert run([*call[:-5], "--page", str(tmp_path / "verdict.html" / "below"), "--quiet"]) == 2


def page_text(path):
    """Words of a page, without its style sheet and the record in it."""
    page = re.sub(r"<style>.*?</style>|<[^>]*>", " ", path.read_text(), flags=re.DOTALL)
    return unescape(page)


COPIES = {"byte for byte": lambda *model: model, "rotated": everything}


@pytest.mark.slow
@pytest.mark.parametrize("copy", COPIES)
def test_a_page_on_equal_models_has_no_probability(tmp_path, copy):
    model = descend(config(num_layers=2, d_model=48, d_ff=64), 42)
    for name, change in (("base", COPIES["byte for byte"]), ("suspect", COPIES[copy])):
        export_hugging_face(*change(*model), tmp_path / name)
    page, facts = tmp_path / "page.html", tmp_path / "page.json"
    pair = [str(tmp_path / name) for name in ("base", "suspect")]
    assert run(["seedprint", *pair, "--page", str(page), "--json", str(facts), "--quiet"]) == 0
    verdict = json.loads(facts.read_text())
    assert verdict["identity"] == ("files" if copy == "byte for byte" else "logits")
    # JSON has what the tests found; the page lists whether they alone would have found it.
    text = page_text(page)
    assert verdict["tests"][0]["log10_p"] is not None and "found by this alone" in text
    assert "a fact about the numbers, in which no chance enters" in text
    assert not re.search(r"log10.?p|\bp.?value\b *\d|\bp = |\bz\b|null_mean", text)
    assert "unrelated" not in text.partition("What is this evidence worth?")[0].partition("The two models")[0]


@pytest.mark.slow
def test_a_page_on_two_names_of_one_initialization_has_no_probability(tmp_path):
    for test in ("permutation", "weights"):
        page = tmp_path / f"{test}.html"
        call = ["seedprint", INITIAL, INITIAL, "--test", test, "--page", str(page), "--quiet"]
        assert run([*call, *(["--num-inputs", "60", "--seq-len", "4"] if test[0] == "p" else [])]) == 0
        text = page_text(page)
        assert "Verdict: " in text
        assert not re.search(r"\bp = |\bz\b", text.partition("What is this evidence worth?")[0]), test


def test_steps_of_equal_numbers_show_no_probability():
    steps = []
    for step, z, identity in ((0, 611.0, "tensors"), (2, 9.0, None), (4, 8.0, None)):
        row = {"component": "model", "verdict": "same-lineage", "z": z, "log10_p": -10 * z}
        components = [{**row, "log10_p_adjusted": -10 * z + 0.5}]
        steps.append({"step": step, **row, "components": components, "identity": identity})
    verdict = undefined("weights", "no reason", num_inputs=None, alpha=0.01)
    result = Lineage("runs/a@seed=1", "suspect", verdict, steps=steps)
    (table,) = result.step_tables()
    assert [row[:3] for row in table.rows] == [
        [0, "same-lineage", "–"],
        [2, "same-lineage", "9 (-89.5)"],
        [4, "same-lineage", "8 (-79.5)"],
    ]
    assert "all 3 p-values" in table.note and "At step 0 the numbers are equal" in table.note
    panel = result.figures()["steps"]
    assert list(panel.figure.axes[0].lines[0].get_xdata()) == [2, 4] and "equal numbers" in panel.caption
    # Files keep what the tests found, as those of a pair do.
    assert result.to_json()["by_step"] == steps
    alone = dataclasses.replace(result, steps=steps[:1])
    assert "steps" not in alone.figures() and alone.draw() is None
    plain = dataclasses.replace(result, steps=steps[1:])
    assert plain.step_tables()[0].note.startswith("p is corrected by Holm's method for all 2 p-values of these steps")
    # More components than a terminal is wide, and than there are colors.
    names = [f"blocks/{block}" for block in range(1, 8)]
    wide = [{**steps[1], "components": [{**steps[1]["components"][0], "component": name} for name in names]}]
    result = dataclasses.replace(result, steps=wide)
    assert [table.columns[2:] for table in result.step_tables()] == [names[:6], names[6:]]
    curves = result.figures()["steps"].figure.axes[0].lines
    assert len({(curve.get_color(), curve.get_linestyle()) for curve in curves}) == 7


def test_names_of_runs_are_no_formulas_and_leave_room():
    runs = ["lr$_{a$", "a/very/long/folder/of/experiments/with/many/parts/run1", "not utf-8: \udcff", "模型"]
    rows = [{"name": run, "run": run, "step": 0} for run in runs]
    graph = lineage_graph({"checkpoints": rows, "graph": {"edges": []}, "findings": []})
    svg = figures.svg(graph, "graph", "")
    assert "lr$_{a$</text>" in svg and "experiments/with/many/parts/run1</text>" not in svg
    assert "not utf-8: \\udcff</text>" in svg and "模型</text>" in svg
    assert "/with/many/parts/run1</text>" in svg and graph.axes[0].bbox.width > 100


def test_a_checkpoint_is_told_by_its_step_and_run():
    rows = [{"name": f"a{step}", "run": "runs/a$b", "step": step} for step in (None, 500, 1000)]
    graph = lineage_graph({"checkpoints": rows, "graph": {"edges": []}, "findings": []})
    titles = re.findall("<title>(.*?)</title>", figures.svg(graph, "graph", ""))
    assert titles == [f"step {step}: runs/a$b" for step in ("no step", "500", "1,000")]


def test_seven_models_of_a_mixture_are_told_apart():
    blocks = tuple(BlockCoefficient(block, 0.1 * block, 0.05) for block in (1, 2))
    models = tuple(Coefficient(f"model{number}", 0.1, 0.05, blocks) for number in range(7))
    drawn = mixture_figures(Mixture("base", models, 0.5, 1.0, 4, (), ()))["mixture"].figure.axes[0]
    curves = [bars.lines[0] for bars in drawn.containers]
    assert len({(curve.get_color(), curve.get_linestyle()) for curve in curves}) == 7


def test_steps_without_z_draw_nothing_beside_curves_of_others():
    ax = Figure().subplots()
    ax.plot([0, 1], [0, 1])
    components = [{"component": "model", "z": None, "log10_p": None}]
    assert z_by_step([{"step": 1, "components": components}], ax) is None
