"""Results in Python: the records hold what commands write, say it, show it and draw it."""

import dataclasses
import sys
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from bornbiased_jax import progress, results
from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.verdict import undefined
from bornbiased_jax.prediction import predict
from bornbiased_jax.training import from_schedule, pretrain

CFG = preset("gpt2-tiny", num_layers=2, d_model=32, d_ff=64, num_heads=2, vocab_size=64, init="normal-0.02")
SIZES = dict(seeds=[0, 1, 2], seq_len=8, num_inputs=60)
LLAMA = "llama-tiny,num_layers=2,d_model=32,d_ff=64,num_heads=2,num_kv_heads=2,vocab_size=512,max_seq_len=64"
NEURON = {
    "block": 1,
    "neuron": 3,
    "channel": 5,
    "write": 9.0,
    "channel_share": 0.5,
    "firing_ratio": None,
    "super": True,
}


@pytest.fixture(scope="module", autouse=True)
def quiet():
    progress.set_quiet(True)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A record of each kind, at the smallest size."""
    run = tmp_path_factory.mktemp("runs") / "a"
    text = run.parent / "text.txt"
    text.write_text("A line of words that repeats and goes on.\n" * 60)
    model = preset("llama-tiny", num_layers=1, d_model=16, d_ff=32, num_heads=2, num_kv_heads=2, vocab_size=257)
    sizes = dict(steps=3, batch_size=2, context=8, warmup=1, eval_sequences=2, tokenizer="bytes", tensorboard=False)
    pretrain(from_schedule("tiny", model=model, data=str(text), out=run, seeds=(1, 2), quiet=True, **sizes))
    trained, options = f"{run}@seed=1", dict(num_sequences=2, quiet=True)
    sinks = results.sinks(trained, text, lengths=[8, 16], **options)
    return {
        "preference": results.preference(CFG, theory=True, **SIZES),
        "contraction": results.contraction(CFG, theory=True, **SIZES),
        "lineage": results.lineage(f"seed:1@{LLAMA}", f"seed:2@{LLAMA}"),
        "sinks": results.Sinks({**sinks.report, "super_neurons": [NEURON]}),
        "intervention": results.intervention(trained, text, length=8, silence=["blocks/1/mlp:3"], **options),
        "training": results.training(run),
    }


@pytest.mark.slow
def test_a_single_position_has_no_cosine_within_a_sequence():
    measured = results.contraction(CFG, **{**SIZES, "seq_len": 1, "seeds": [0]})
    (record, *_), undefined_by_block = measured.records, [None] * CFG.num_layers
    assert record["intra_cosine_by_layer"] == record["intra_cosine_std_by_layer"] == undefined_by_block
    by_seed, by_block = measured.tables()
    assert {row[by_seed.columns.index("within a sequence")] for row in by_seed.rows} == {None}
    assert [row[-1] for row in by_block.rows] == undefined_by_block
    assert "intra_cosine" not in measured.arrays and measured.rows()[0]["intra_cosine"] is None
    assert predict(CFG, 1)["intra_cosine_by_layer"] == undefined_by_block


KINDS = ["preference", "contraction", "lineage", "sinks", "intervention", "training"]


class Text(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.rows, self.words, self.open = 0, [], []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        assert tag in ("p", "table", "caption", "thead", "tbody", "tr", "th", "td"), tag
        self.open.append(tag)
        self.rows += tag == "tr" and "tbody" in self.open

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_is_frozen_says_its_words_and_shows_its_tables(made, kind):
    result = made[kind]
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(result, dataclasses.fields(result)[0].name, None)
    shown = Text(result._repr_html_())
    text = " ".join(shown.words)
    for sentence in result.summary():
        assert sentence in text and sentence in repr(result)
    assert shown.rows >= 1 and "{" not in text


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_result_draws_itself_without_pyplot(made, kind):
    # A test before this one may have asked for it.
    requests = "matplotlib.pyplot" in sys.modules
    figure = made[kind].plot()
    assert isinstance(figure, Figure)
    # Saved with a notebook: the same bytes whenever it is run.
    shown = figure._repr_png_()
    assert shown.startswith(b"\x89PNG") and shown == made[kind].plot()._repr_png_() and len(shown) < 60_000
    assert all(ax.get_xlabel() or ax.get_ylabel() for ax in figure.axes)
    assert ("matplotlib.pyplot" in sys.modules) is requests


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_to_pandas_without_pandas_names_the_remedy(made, kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InputError, match="pip install pandas"):
        made[kind].to_pandas()


@pytest.mark.slow
def test_data_frames_hold_the_measured_numbers(made):
    pytest.importorskip("pandas")
    frames = {kind: result.to_pandas() for kind, result in made.items()}
    assert list(frames["preference"]["top1_share"]) == [record["top1_share"] for record in made["preference"].records]
    assert "theory.inside" in frames["preference"].columns
    assert list(frames["contraction"]["block"]) == [1, 2] * 3
    assert len(frames["lineage"]) == len(made["lineage"].table().rows)
    assert dict(frames["sinks"].groupby("length").size()) == {8: 2, 16: 2}
    assert list(frames["intervention"]["after"]) == made["intervention"].report["by_block"]
    assert list(frames["training"]["loss"][:2]) == made["training"].lines[0]["loss"]


@pytest.mark.slow
def test_a_run_is_summarized_without_its_speed(made):
    assert "2 seeds at step 3 of 3" in made["training"].summary()[0]
    assert "matmul" not in repr(made["training"])


@pytest.mark.slow
def test_names_escaped_in_html(made):
    hostile = "<img src=x onerror=alert(1)>&"
    trained = made["training"]
    shown = [
        results.Training({**trained.run, "out": hostile}, trained.lines),
        dataclasses.replace(made["lineage"], base=hostile),
        results.Intervention({**made["intervention"].report, "position": hostile}),
    ]
    for result in shown:
        html = result._repr_html_()
        assert "<img" not in html and "&lt;img" in html and "&amp;" in html


@pytest.mark.slow
def test_theory_stands_next_to_the_measurement(made):
    assert made["preference"].table().columns[-3:] == ["theory, mean", "80% band", "inside"]
    assert "99% interval" in made["contraction"].tables()[1].columns
    drawn = [line.get_label() for line in made["contraction"].plot().axes[0].get_lines()]
    assert drawn == ["measured, T = 8 (band: range over seeds)", "theory, T = 8 (band: 99% of seeds)"]
    assert "inside" not in results.preference(CFG, **SIZES).table().columns
    with pytest.raises(InputError, match="predicts random inputs"):
        results.preference(CFG, theory=True, inputs="text:a.txt", **SIZES)
    with pytest.raises(InputError, match="at least 2"):
        results.preference(CFG, num_inputs=1)


@pytest.mark.slow
def test_curves_are_the_measured_numbers(made):
    lines = made["preference"].plot().axes[0].get_lines()
    for record, line in zip(made["preference"].records, lines, strict=False):
        assert line.get_ydata()[0] == record["top1_share"]
        assert line.get_label() == f"seed {record['seed']}: token {record['top1_id']}"
    lines = made["training"].plot().axes[0].get_lines()
    assert list(lines[0].get_ydata()) == [row["loss"][0] for row in made["training"].lines]
    ax = made["intervention"].plot().axes[0]
    before, after = ax.get_lines()
    ax.figure.draw_without_rendering()
    assert ax.get_legend().get_window_extent().y0 >= ax.bbox.y1
    assert list(after.get_ydata()) == made["intervention"].report["by_block"] and before.get_label() == "as it is"


@pytest.mark.slow
def test_super_neurons_can_be_silenced_as_they_are_named(made):
    assert made["sinks"].super_neurons == ["blocks/1/mlp:3"]
    assert made["sinks"].tables()[-1].rows[0][-1] == "only the first"


def test_one_test_is_a_row_and_its_null_is_drawn():
    probe = {"test": "weights"}
    first = results.lineage(f"seed:1@{LLAMA}", f"seed:2@{LLAMA}", **probe)
    assert [row[0] for row in first.table().rows] == ["weights"]
    assert first.table().title == f"seed:1@{LLAMA} and seed:2@{LLAMA}: unrelated"
    assert isinstance(first.plot(), Figure)


def test_a_verdict_on_no_statistic_cannot_be_drawn():
    silent = undefined("weights", "the widths differ", num_inputs=None, alpha=1e-4)
    result = results.Lineage("a", "b", silent)
    assert result.table().rows[0][-1] is None and repr(result).startswith("undefined: ")
    with pytest.raises(InputError, match="nothing to draw.*he widths differ"):
        result.plot()


def test_run_without_metrics_reported(tmp_path):
    with pytest.raises(InputError):
        results.training(tmp_path)
