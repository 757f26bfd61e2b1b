import dataclasses
import json
import os
import shlex
import subprocess
import sys
import types
from html import unescape

import numpy as np
import pytest

import bornbiased_jax
from bornbiased_jax import experiments, io
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import runner
from bornbiased_jax.experiments.base import SCALES, Experiment
from bornbiased_jax.experiments.runner import reproduce
from bornbiased_jax.io import MARKER
from bornbiased_jax.record import content_digest
from bornbiased_jax.report import figures
from bornbiased_jax.report.tables import Claim, Panel, Quantity, Row, Table
from bornbiased_jax.text.corpora import corpus


class Catalogue:
    """Fake experiments that count how often they ran."""

    def __init__(self, monkeypatch):
        self.monkeypatch = monkeypatch
        self.ran = []
        monkeypatch.setattr(experiments, "MODULES", {})
        monkeypatch.setattr(experiments, "SELECTIONS", {"demo": (), "all": ()})

    def add(self, name, run=None, **changes):
        def counted(context):
            self.ran.append(name)
            return run(context) if run else {"share": np.float32(0.25), "seeds": np.arange(2)}

        fields = dict(
            name=name,
            title=f"About {name}",
            paper="Table 1",
            description="What it is.",
            settings={scale: {"n": count, "seeds": (1, 2)} for count, scale in enumerate(SCALES)},
            cost={"smoke": "1 s"},
            run=counted,
            takes_data=SCALES,
        )
        module = types.ModuleType(f"fake_{name}")
        module.EXPERIMENT = Experiment(**(fields | changes))
        self.monkeypatch.setitem(sys.modules, module.__name__, module)
        experiments.MODULES[name] = module.__name__
        experiments.SELECTIONS["all"] = tuple(experiments.MODULES)


@pytest.fixture
def catalogue(monkeypatch):
    return Catalogue(monkeypatch)


def record(out, name):
    return json.loads((out / "records" / f"{name}.json").read_text())


def test_a_record_and_a_page_are_written(catalogue, tmp_path):
    def drawing(record):
        figure, ax = figures.new()
        figures.ranked_bars(ax, [record["result"]["share"]])
        return [Panel(figure, "One bar.")]

    catalogue.add(
        "one",
        claims=lambda record: [Claim("the share", record["result"]["share"])],
        tables=lambda record: [
            Table(
                "Shares",
                ("n",),
                (Quantity("share"),),
                [Row((record["settings"]["n"],), {"share": record["result"]["share"]})],
            )
        ],
        figures=drawing,
        headline=lambda record: "A quarter.",
    )
    outcome = reproduce(["one"], "laptop", tmp_path, data="builtin:code", quiet=True)
    assert (outcome.done, outcome.kept, outcome.failed, outcome.exit_code) == (("one",), (), {}, 0)
    content = record(tmp_path, "one")
    assert content["experiment"] == "one" and content["scale"] == "laptop" and content["status"] == "complete"
    assert content["data"] == "builtin:code"
    assert content["settings"] == {"n": 1, "seeds": [1, 2]}
    assert content["result"] == {"share": 0.25, "seeds": [0, 1]}
    assert content["provenance"]["seeds"] == [1, 2]
    assert content["provenance"]["version"] == bornbiased_jax.__version__
    assert content["provenance"]["wall_time_s"] >= 0 and content["provenance"]["peak_memory_bytes"] > 0
    html = outcome.page.read_text()
    assert outcome.page == tmp_path / "index.html"
    for piece in ("A quarter.", "the share", "About one", "One bar.", "Shares", "laptop --data builtin:code"):
        assert piece in html


def test_a_text_that_was_changed_is_another_text(catalogue, tmp_path):
    """Neither its record nor what experiments kept of it stands for the new one; the same bytes are the same text."""
    catalogue.add("one", run=lambda context: {
        "letters": context.cached("letters", context.data, lambda _folder: len(io.user_path(context.data).read_text()))
    })  # fmt: skip
    text, out = tmp_path / "text.txt", tmp_path / "out"
    for content, kept in (("a", ()), ("a", ("one",)), ("abc", ()), ("a", ())):
        text.write_text(content)
        assert reproduce(["one"], "smoke", out, data=str(text), quiet=True).kept == kept
        assert record(out, "one")["result"] == {"letters": len(content)}


def test_a_large_text_is_known_by_its_content(tmp_path):
    """Neither size nor time of change tell two texts apart: copies keep both."""
    text, digests = tmp_path / "text.txt", []
    for letter in (b"a", b"b"):
        with text.open("wb") as stream:
            stream.write(letter)
            stream.truncate(2**26 + 1)
        os.utime(text, (1, 1))
        digests.append(runner.data_digest(str(text)))
    assert digests[0] != digests[1]


def test_a_run_is_known_by_its_content_when_a_part_of_it_is_named(tmp_path):
    before = []
    for letter in "ab":
        io.write_text(tmp_path / "run" / "run.json", letter)
        before.append(runner.data_digest(f"base={tmp_path / 'run'}@seed=42,step=1"))
    assert None not in before and before[0] != before[1]
    assert runner.data_digest("hf:owner/name@main") is None


def test_a_text_reaches_the_experiments_that_read_some(catalogue, tmp_path, capsys):
    """The record of one that reads none names none, and is that of a call without a text."""
    catalogue.add("one", takes_data=("laptop",))
    catalogue.add("two", takes_data=())
    with pytest.raises(InputError, match="^none of one, two reads --data at scale smoke: leave it out$"):
        reproduce(["one", "two"], "smoke", tmp_path / "none", data="builtin:code")
    assert not (tmp_path / "none").exists()
    reproduce(["one", "two"], "laptop", tmp_path / "out", data="builtin:code")
    assert [record(tmp_path / "out", name)["data"] for name in ("one", "two")] == ["builtin:code", None]
    assert "--data is read by one alone" in capsys.readouterr().err
    assert reproduce(["two"], "laptop", tmp_path / "out").kept == ("two",)


@pytest.mark.slow
def test_figures_lie_next_to_the_page_as_svg_and_png(catalogue, tmp_path, capsys):
    heights = [1.0]

    def drawing(record):
        drawn = []
        for height in (*heights, 2.0):
            figure, ax = figures.new()
            figures.ranked_bars(ax, [height])
            drawn.append(Panel(figure, "One bar."))
        return drawn

    catalogue.add("one", figures=drawing)
    catalogue.add("two", figures=drawing)
    page = reproduce(["one"], "smoke", tmp_path, quiet=True).page.read_text()
    names = [f"one-{number}.{kind}" for number in (1, 2) for kind in ("png", "svg")]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == names
    assert all(f'href="figures/{name}"' in page for name in names) and "figures lie next to it" in page
    first = {name: (tmp_path / "figures" / name).read_bytes() for name in names}
    assert first["one-1.png"].startswith(b"\x89PNG") and b"<svg" in first["one-1.svg"]
    assert first["one-1.png"] != first["one-2.png"] and b"<dc:date>" not in first["one-1.svg"]
    # What was drawn stays until its record is made again; what somebody changed stays as it is, and is named.
    heights[0] = 3.0
    (tmp_path / "figures" / "one-2.png").unlink()
    (tmp_path / "figures" / "one-2.svg").write_text("mine")
    reproduce(["two"], "smoke", tmp_path, quiet=True)
    now = {name: (tmp_path / "figures" / name).read_bytes() for name in names}
    assert now == {**first, "one-2.svg": b"mine"} and (tmp_path / "figures" / "two-1.svg").exists()
    assert "one-2.svg was changed since it was drawn" in capsys.readouterr().err
    runner.record_path(tmp_path, "one").unlink()
    reproduce(["one"], "smoke", tmp_path, quiet=True)
    now = {name: (tmp_path / "figures" / name).read_bytes() for name in names}
    assert now["one-1.png"] != first["one-1.png"] and now["one-2.svg"] == b"mine"


def test_a_page_names_the_command_that_made_it_quoted_for_a_shell(catalogue, tmp_path):
    catalogue.add("one")
    out = tmp_path / "two words; $HOME"
    html = unescape(reproduce(["one"], "smoke", out, quiet=True).page.read_text())
    assert shlex.join(["bornbiased", "reproduce", "one", "--scale", "smoke", "--out", str(out)]) in html
    assert f"--out '{out}'" in html


def test_the_context_carries_the_options(catalogue, tmp_path):
    observed = []
    catalogue.add("one", run=lambda context: observed.append(context) or {})
    text = str(tmp_path / "text.txt")
    (tmp_path / "text.txt").write_text("some text")
    out = tmp_path / "out"
    reproduce(["one"], "paper", out, data=text, quiet=True, mesh="seed=2")
    (context,) = observed
    assert (context.scale, context.data, context.quiet, context.mesh) == ("paper", text, True, "seed=2")
    assert context.settings["n"] == 2
    assert context.work == out / "work" / f"data-{runner.data_digest(text)}" / "one"


def test_again_resumes(catalogue, tmp_path):
    catalogue.add("one")
    reproduce(["one"], "smoke", tmp_path, quiet=True)
    before = (tmp_path / "records" / "one.json").read_bytes()
    catalogue.add("two")
    outcome = reproduce(["one", "two"], "smoke", tmp_path, quiet=True)
    assert catalogue.ran == ["one", "two"]
    assert (outcome.done, outcome.kept) == (("two",), ("one",))
    assert (tmp_path / "records" / "one.json").read_bytes() == before


@pytest.mark.parametrize(
    "what", ["scale", "data", "settings", "version", "code", "corrupted", "edited", "not a record", "failed"]
)
def test_a_record_of_another_run_is_not_taken_for_this_one(catalogue, tmp_path, what, monkeypatch):
    catalogue.add("one")
    reproduce(["one"], "smoke", tmp_path, quiet=True)
    path = tmp_path / "records" / "one.json"
    scale, data = "smoke", None
    if what == "scale":
        scale = "laptop"
    elif what == "data":
        data = "builtin:prose"
    elif what == "settings":
        catalogue.add("one", settings={"smoke": {"n": 99}})
    elif what == "version":
        monkeypatch.setattr(runner, "library_versions", lambda: {"jax": "99.0"})
    elif what == "code":
        monkeypatch.setattr(runner, "code_digest", lambda run: "0" * 16)
    elif what == "corrupted":
        path.write_text(path.read_text()[:-40])
    elif what == "edited":
        io.write_json(path, record(tmp_path, "one") | {"result": {"share": 0.5}, "provenance": []})
    elif what == "not a record":
        path.write_text("[]")
    else:
        io.write_json(path, record(tmp_path, "one") | {"status": "failed"})
    outcome = reproduce(["one"], scale, tmp_path, data=data, quiet=True)
    assert outcome.done == ("one",) and catalogue.ran == ["one", "one"]
    assert record(tmp_path, "one")["status"] == "complete"


def test_a_record_of_older_code_is_shown_as_such_and_made_again(catalogue, tmp_path, monkeypatch):
    catalogue.add("one")
    page = reproduce(["one"], "smoke", tmp_path, quiet=True).page
    assert runner.OLDER not in page.read_text()
    monkeypatch.setattr(runner, "code_digest", lambda run: "0" * 16)
    assert runner.write_page(tmp_path) == {}
    assert runner.OLDER in page.read_text()
    assert reproduce(["one"], "smoke", tmp_path, quiet=True).done == ("one",)
    assert runner.OLDER not in page.read_text()
    assert record(tmp_path, "one")["provenance"]["code"] == "0" * 16


def test_the_code_is_known_before_the_run(catalogue, tmp_path, monkeypatch):
    existing = []

    def digest(run):
        existing.append(len(catalogue.ran))
        return "0" * 16

    monkeypatch.setattr(runner, "code_digest", digest)
    catalogue.add("one")
    reproduce(["one"], "smoke", tmp_path, quiet=True)
    assert existing[0] == 0


def test_built_in_text_is_named_with_its_digest(catalogue, tmp_path):
    catalogue.add("one", settings={"smoke": {"groups": [{"inputs": "builtin:code"}]}})
    html = reproduce(["one"], "smoke", tmp_path, quiet=True).page.read_text()
    digest = corpus("code").digest
    assert record(tmp_path, "one")["provenance"]["corpora"] == {"builtin:code": digest}
    assert f"builtin:code {digest[:8]}" in html
    assert runner.corpora_of({"data": None, "text": "builtin:other"}) == {}


def failing(error):
    def run(context):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    [
        (RuntimeError("out of memory"), 1, "RuntimeError: out of memory"),
        (InputError("text.txt is too short: give more"), 2, "text.txt is too short: give more"),
    ],
)
def test_failed_experiment_keeps_others_and_is_reported(catalogue, tmp_path, capsys, error, code, reason):
    catalogue.add("bad", run=failing(error))
    catalogue.add("good")
    outcome = reproduce(["all"], "smoke", tmp_path)
    assert outcome.done == ("good",) and outcome.failed == {"bad": reason} and outcome.exit_code == code
    content = record(tmp_path, "bad")
    assert content["status"] == "failed" and content["error"] == reason and "result" not in content
    assert reason in outcome.page.read_text()
    message = capsys.readouterr().err
    assert f"bad: no result: {reason}" in message
    # Only an error of the program comes with its traceback.
    assert ("Traceback" in message) == (code == 1)
    again = reproduce(["all"], "smoke", tmp_path, quiet=True)
    assert again.kept == ("good",) and set(again.failed) == {"bad"}


def test_an_error_of_the_program_outweighs_one_of_the_input(catalogue, tmp_path):
    catalogue.add("bad", run=failing(RuntimeError("x")))
    catalogue.add("short", run=failing(InputError("y")))
    assert reproduce(["all"], "smoke", tmp_path, quiet=True).exit_code == 1


def test_a_result_that_is_not_json_is_a_failure(catalogue, tmp_path):
    catalogue.add("one", run=lambda context: {"share": float("nan")})
    outcome = reproduce(["one"], "smoke", tmp_path, quiet=True)
    assert "nan" in outcome.failed["one"]


def test_a_record_that_cannot_be_drawn_is_a_failure_but_keeps_the_numbers(catalogue, tmp_path):
    catalogue.add("one", tables=lambda record: record["result"]["missing"])
    catalogue.add("good")
    outcome = reproduce(["all"], "smoke", tmp_path, quiet=True)
    assert outcome.failed == {"one": "KeyError: 'missing'"} and outcome.exit_code == 1
    assert record(tmp_path, "one")["status"] == "complete"
    html = outcome.page.read_text()
    assert "cannot be shown" in html and "About good" in html


def test_ctrl_c_keeps_what_is_finished_and_shows_it(catalogue, tmp_path):
    catalogue.add("one")
    catalogue.add("two", run=failing(KeyboardInterrupt()))
    catalogue.add("three")
    with pytest.raises(KeyboardInterrupt):
        reproduce(["all"], "smoke", tmp_path, quiet=True)
    assert catalogue.ran == ["one", "two"]
    assert record(tmp_path, "one")["status"] == "complete"
    assert not (tmp_path / "records" / "two.json").exists()
    html = (tmp_path / "index.html").read_text()
    assert "About one" in html and "About two" not in html


def test_the_page_shows_all_records_of_the_folder_in_the_order_of_the_catalogue(catalogue, tmp_path):
    for name in ("one", "two"):
        catalogue.add(name)
    reproduce(["two"], "smoke", tmp_path, quiet=True)
    html = reproduce(["one"], "laptop", tmp_path, quiet=True).page.read_text()
    assert 0 < html.index("About one") < html.index("About two")
    assert "scale laptop" in html and "scale smoke" in html


def test_selections_expand_once_and_no_name_means_the_demo(catalogue):
    for name in ("one", "two", "three"):
        catalogue.add(name)
    experiments.SELECTIONS["demo"] = ("three", "one")
    assert runner.select([]) == ["three", "one"]
    assert runner.select(["two", "demo", "two"]) == ["two", "three", "one"]
    assert runner.select(["all"]) == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("names", "scale", "words"),
    [
        (["tabel1"], "smoke", "unknown experiment 'tabel1': did you mean 'table1'"),
        (["zzz"], "smoke", "there are demo, all, table1"),
        (["table1"], "huge", "unknown scale 'huge': choose smoke, laptop, paper"),
        (["table1"], "paper", "table1 has no scale 'paper': choose smoke"),
        (["demo"], "smoke", "no experiment is selected"),
    ],
)
def test_bad_calls_are_refused_before_anything_runs(catalogue, tmp_path, names, scale, words):
    catalogue.add("table1", settings={"smoke": {}})
    with pytest.raises(InputError, match=words):
        reproduce(names, scale, tmp_path / "out", quiet=True)
    assert catalogue.ran == [] and not (tmp_path / "out").exists()


def test_a_set_leaves_out_experiments_without_the_scale(catalogue, tmp_path, capsys):
    catalogue.add("one")
    catalogue.add("two", settings={"smoke": {}})
    catalogue.add("three", settings={"smoke": {}, "laptop": {}})
    assert reproduce(["all"], "paper", tmp_path / "out").done == ("one",)
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "left out" in line] == ["left out, without a scale 'paper': two, three"]
    # One that is named is refused, and so is a set of which nothing is left.
    experiments.SELECTIONS["demo"] = ("two", "three")
    for names, refused in ((["all", "three"], "three"), (["demo"], "two")):
        with pytest.raises(InputError, match=f"{refused} has no scale 'paper': choose smoke"):
            reproduce(names, "paper", tmp_path / "other", quiet=True)
    assert catalogue.ran == ["one"] and not (tmp_path / "other").exists()


def test_an_output_that_cannot_be_written_is_refused_before_anything_runs(catalogue, tmp_path):
    catalogue.add("one")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write"):
        reproduce(["one"], "smoke", tmp_path / "file", quiet=True)
    assert catalogue.ran == []


def test_quiet_is_quiet(catalogue, tmp_path, capsys):
    catalogue.add("one")
    reproduce(["one"], "smoke", tmp_path, quiet=True)
    assert capsys.readouterr() == ("", "")


def test_the_catalogue_names_modules_that_exist_and_agree():
    for name in experiments.MODULES:
        experiment = runner.load(name)
        assert experiment.name == name
        assert set(experiment.settings) <= set(SCALES)
        # What measures a run of the user's, named by --data, has one scale and is in no selection.
        assert "smoke" in experiment.settings or name.endswith("_of_run")
        assert {scale for scale in SCALES if experiment.cost_at(scale)} == set(experiment.settings)
        assert set(experiment.cost) <= set(experiment.settings)
    for names in experiments.SELECTIONS.values():
        assert set(names) <= set(experiments.MODULES)
        assert not [name for name in names if name.endswith("_of_run")]


def test_cost_is_seconds_at_smoke_unless_stated():
    shown = runner.load("figure8")
    assert "smoke" not in shown.cost and shown.cost_at("smoke") == "seconds"
    assert dataclasses.replace(shown, cost={"smoke": "a minute"}).cost_at("smoke") == "a minute"
    only_laptop = dataclasses.replace(shown, settings={"laptop": {}}, cost={"laptop": "an hour"})
    assert [only_laptop.cost_at(scale) for scale in SCALES] == ["", "an hour", ""]


def test_importing_the_catalogue_imports_no_experiment():
    program = "import sys, bornbiased_jax.experiments; print(*(name for name in sys.modules if 'experiments' in name))"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["bornbiased_jax.experiments"]


def test_a_folder_of_other_things_is_refused_and_taken_when_told_to(catalogue, tmp_path):
    catalogue.add("one")
    (tmp_path / "index.html").write_text("my own page")
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(InputError, match=r"holds index.html and 1 more, which .* did not write: .*--overwrite"):
        reproduce(["one"], "smoke", tmp_path, quiet=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.html", "notes"]
    reproduce(["one"], "smoke", tmp_path, quiet=True, overwrite=True)
    assert (tmp_path / "notes").read_text() == "mine" and record(tmp_path, "one")["status"] == "complete"
    page = (tmp_path / "index.html").read_bytes()
    (tmp_path / "index.html").write_bytes(page + b"<!-- mine -->")
    with pytest.raises(InputError, match="index.html was changed since"):
        reproduce(["one"], "smoke", tmp_path, quiet=True)
    assert (tmp_path / "index.html").read_bytes() == page + b"<!-- mine -->"


def test_a_folder_of_an_older_version_is_known_by_its_records(catalogue, tmp_path):
    catalogue.add("one")
    reproduce(["one"], "smoke", tmp_path, quiet=True)
    (tmp_path / MARKER).unlink()
    assert reproduce(["one"], "smoke", tmp_path, quiet=True).kept == ("one",)


def test_a_damaged_record_is_set_aside_and_made_again(catalogue, tmp_path, capsys):
    catalogue.add("one")
    reproduce(["one"], "smoke", tmp_path, quiet=True)
    path = tmp_path / "records" / "one.json"
    torn = path.read_bytes()[:-40]
    path.write_bytes(torn)
    assert reproduce(["one"], "smoke", tmp_path, quiet=True).done == ("one",)
    assert (tmp_path / "records" / "one.json.damaged").read_bytes() == torn
    assert "one.json was corrupted or changed: set aside as one.json.damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [{"provenance": []}, {"result": None}, {"settings": 3}],
)
@pytest.mark.parametrize("name", ["one", "two"])
def test_an_edited_record_ends_no_run_though_its_digest_is_right(catalogue, tmp_path, name, changes):
    """That of the experiment is made again; of another one the page says why it is not shown."""
    catalogue.add("one")
    catalogue.add("two")
    reproduce(["two", "one"], "smoke", tmp_path, quiet=True)
    edited = record(tmp_path, name) | changes
    (tmp_path / "records" / f"{name}.json").write_text(json.dumps(edited | {"digest": content_digest(edited)}))
    outcome = reproduce(["one"], "smoke", tmp_path, quiet=True)
    assert (outcome.exit_code, outcome.done) == (0, ("one",) if name == "one" else ())
    assert runner.headlines(tmp_path, ["two"]) == {}
    assert ("The record two.json cannot be shown" in (tmp_path / "index.html").read_text()) == (name == "two")


def test_a_finished_record_of_another_scale_is_kept(catalogue, tmp_path, capsys):
    catalogue.add("one")
    reproduce(["one"], "laptop", tmp_path, quiet=True)
    finished = (tmp_path / "records" / "one.json").read_bytes()
    assert reproduce(["one"], "smoke", tmp_path).done == ("one",)
    assert (tmp_path / "records" / "one.json.earlier").read_bytes() == finished
    assert "one.json was finished on another scale or data: kept as one.json.earlier" in capsys.readouterr().err
    # One of the same run is replaced, as by newer code.
    catalogue.add("one", run=lambda context: {"other": 1})
    assert reproduce(["one"], "smoke", tmp_path, quiet=True).exit_code == 0
    assert [path.name for path in (tmp_path / "records").glob("*.earlier*")] == ["one.json.earlier"]


@pytest.mark.parametrize("content", ["{torn", "[]", "{}"])
def test_a_foreign_record_is_replaced_where_that_is_asked_for(catalogue, tmp_path, content):
    catalogue.add("one")
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "one.json").write_text(content)
    assert reproduce(["one"], "smoke", tmp_path, quiet=True, overwrite=True).done == ("one",)
    assert record(tmp_path, "one")["status"] == "complete"


def test_the_page_grows_with_the_records(catalogue, tmp_path, capsys):
    """The second experiment finds a page that shows the first."""
    observed = []

    def look(context):
        observed.append((tmp_path / "index.html").read_text())
        return {}

    catalogue.add("first")
    catalogue.add("second", run=look)
    assert reproduce(["first", "second"], "smoke", tmp_path).exit_code == 0
    assert "About first" in observed[0] and "About second" not in observed[0]
    assert "About second" in (tmp_path / "index.html").read_text()
    assert "the page so far:" in capsys.readouterr().err
