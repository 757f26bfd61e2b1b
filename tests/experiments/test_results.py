import json
import re

import pytest
from click.testing import CliRunner

from bornbiased_jax.cli import reproduce
from bornbiased_jax.cli.main import cli
from bornbiased_jax.errors import InputError
from bornbiased_jax.experiments import results, runner
from bornbiased_jax.experiments.results.__main__ import main
from bornbiased_jax.record import content_digest

GIT = {"revision": "a" * 40, "dirty": False}


def record(**changes):
    content = {
        "experiment": "table1",
        "scale": "smoke",
        "settings": {},
        "data": None,
        "status": "complete",
        "result": {"rows": [{"share": 0.25, "top1_id": 7, "wall_s": 1.0}], "name": "x"},
        "provenance": {"git": GIT, "code": "0" * 16, "versions": {}},
    }
    return {**content, **changes}


def write(tmp_path, *records):
    for record in records:
        path = runner.record_path(tmp_path / "out", record["experiment"])
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record))
    return tmp_path / "out"


def test_finished_records_are_collected_by_scale(tmp_path):
    finished = record(scale="laptop")
    failed, smoke = record(experiment="figure1", scale="laptop", status="failed"), record(experiment="figure6")
    out = write(tmp_path, finished, failed, smoke, record(experiment="table2", scale="paper"))
    paths = results.collect(out, tmp_path / "kept")
    assert [str(path.relative_to(tmp_path / "kept")) for path in paths] == ["laptop/table1.json", "paper/table2.json"]
    assert json.loads(paths[0].read_text()) == finished


FOREIGN = [
    "[1, 2]",
    "{",
    "{}",
    json.dumps({"name": "somebody's"}),
    json.dumps(record(scale="huge")),
    json.dumps(record(scale=["laptop"])),
    json.dumps(record(scale="laptop", experiment="../../table1")),
    json.dumps(record(scale="laptop", experiment="table2")),
    json.dumps(record(scale="laptop", provenance=[])),
    json.dumps(record(scale="laptop", provenance={"git": {"revision": 3}, "code": "0"})),
    json.dumps(record(scale="laptop", data={"a": 1})),
    json.dumps(record(scale="laptop", result=None)),
    json.dumps({name: entry for name, entry in record(scale="laptop").items() if name != "settings"}),
]


@pytest.mark.parametrize("text", FOREIGN)
@pytest.mark.parametrize("action", [results.collect, results.verify])
def test_foreign_json_among_records_is_refused_by_its_name(tmp_path, text, action):
    out, folder = write(tmp_path, record(experiment="figure1", scale="laptop")), commit(tmp_path, record())
    (out / "records" / "table1.json").write_text(text)
    with pytest.raises(InputError, match=re.escape(str(out / "records" / "table1.json"))):
        action(out, folder=folder)
    assert not (folder / "laptop").exists()


def test_a_damaged_committed_record_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "FOLDER", commit(tmp_path, record(scale="laptop")))
    (tmp_path / "committed" / "laptop" / "table1.json").write_text("{}")
    assert main([]) == 2 and str(tmp_path / "committed") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"provenance": {"git": {**GIT, "dirty": True}, "code": "0"}},
            "table1 was made by a checkout with uncommitted",
        ),
        ({"provenance": {"git": None, "code": "0"}}, "table1 was made outside a git checkout"),
        ({"provenance": {"git": GIT}}, "does not say which code made it"),
        ({"result": {"file": "/home/me/model.gguf"}}, "a path of this machine at result.file"),
        ({"digest": "0" * 64}, "table1 was changed since it was made"),
        ({"status": "failed"}, "holds no finished record"),
        ({"scale": "smoke"}, "no finished record of scale laptop or paper"),
    ],
)
def test_untraceable_records_not_collected(tmp_path, changes, words):
    out = write(tmp_path, record(experiment="figure1", status="failed"), record(**{"scale": "laptop"} | changes))
    with pytest.raises(InputError, match=words):
        results.collect(out, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_data_is_named_without_its_folder(tmp_path):
    made = record(scale="laptop", data="base=/home/me/a.txt;code=builtin:code;/data/b.bin")
    out = write(tmp_path, made | {"digest": content_digest(made)})
    (path,) = results.collect(out, tmp_path / "kept")
    kept = json.loads(path.read_text())
    assert kept["data"] == "base=a.txt;code=builtin:code;b.bin" and kept["digest"] == content_digest(kept)


@pytest.mark.parametrize(
    ("result", "places"),
    [
        ({"rows": [{"share": 0.2501, "top1_id": 7, "wall_s": 9.0}], "name": "x"}, []),
        ({"rows": [{"share": 0.2510, "top1_id": 7, "wall_s": 1.0}], "name": "x"}, ["result.rows.0.share"]),
        ({"rows": [{"share": 0.25, "top1_id": 8}], "name": "y"}, ["result.rows.0.top1_id", "result.name"]),
        ({"rows": [], "name": "x"}, ["result.rows.0.share", "result.rows.0.top1_id"]),
    ],
)  # fmt: skip
def test_differences_are_those_beyond_the_tolerance_and_not_of_the_machine(result, places):
    assert [place for place, _, _ in results.differences(record(), record(result=result))] == places


def test_compare_runs_again_and_prints_what_moved(tmp_path, monkeypatch):
    ran = []

    def again(names, scale, out, data, quiet, mesh, overwrite, computing):
        ran.append((names, scale, str(out)))
        for name in names:
            path = runner.record_path(out, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record(experiment=name, result={"rows": [{"share": 0.5}]})))
        return runner.Outcome(tmp_path / "index.html", tuple(names), (), {}, False)

    monkeypatch.setattr(runner, "reproduce", again)
    monkeypatch.setattr(runner, "headlines", lambda *unused: {})
    monkeypatch.setattr(results, "FOLDER", tmp_path / "committed")
    (tmp_path / "committed" / "smoke").mkdir(parents=True)
    (tmp_path / "committed" / "smoke" / "table1.json").write_text(
        json.dumps(record(result={"rows": [{"share": 0.25}]}))
    )
    arguments = [
        "reproduce",
        "table1",
        "table2",
        "--scale",
        "smoke",
        "--compare",
        "--quiet",
        "--out",
        str(tmp_path / "out"),
    ]
    done = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert done.exception is None, done.output
    assert ran == [(("table1", "table2"), "smoke", str(tmp_path / "out" / "compare"))]
    assert "table1: 1 values moved" in done.output and "result.rows.0.share: 0.25 -> 0.5" in done.output
    assert "table2: no committed record" in done.output


def test_a_record_of_another_text_is_compared_with_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", commit(tmp_path, record(data="a.txt")))
    path = runner.record_path(tmp_path / "out", "table1")
    path.parent.mkdir(parents=True)
    for data, moved in (("/home/me/a.txt", []), ("builtin:code", None)):
        path.write_text(json.dumps(record(data=data)))
        assert reproduce._moved(["table1"], "smoke", str(tmp_path / "out")) == {"table1": moved}


def commit(tmp_path, *records):
    """Committed records, in a folder by scale."""
    for each in records:
        path = tmp_path / "committed" / each["scale"] / f"{each['experiment']}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(each))
    return tmp_path / "committed"


def made_by(letter, **changes):
    return record(provenance={"git": {"revision": letter * 40, "dirty": False}, "code": letter * 16}, **changes)


def test_a_rerun_at_its_scale_verifies_a_record_and_leaves_all_else(tmp_path):
    folder = commit(tmp_path, made_by("a"), made_by("a", scale="laptop"))
    moved = {"rows": [{"share": 0.2, "top1_id": 7, "wall_s": 9.0}], "name": "x"}
    paths = results.verify(write(tmp_path, made_by("b", result=moved)), folder=folder)
    assert paths == [folder / "smoke" / "table1.json"]
    content = json.loads(paths[0].read_text())
    verified = content.pop("verified")
    assert content == made_by("a") and content_digest(made_by("a")) == content_digest(content | {"verified": verified})
    assert (verified["commit"], verified["scale"]) == ("b" * 40, "smoke")
    assert verified["largest_difference"] == pytest.approx(0.2)
    assert "--scale smoke" in verified["command"] and "verified at bbbbbbbbbb" in runner.verified_by(
        content | {"verified": verified}
    )
    assert json.loads((folder / "laptop" / "table1.json").read_text()) == made_by("a", scale="laptop")


def test_a_rerun_at_another_scale_is_compared_with_the_code_that_made_the_record(tmp_path):
    laptop = made_by("a", scale="laptop", result={"rows": []})
    folder, rerun = commit(tmp_path, laptop), write(tmp_path, made_by("b"))
    with pytest.raises(InputError, match="no rerun of a committed record"):
        results.verify(rerun, folder=folder)
    for letter in "ca":
        (tmp_path / letter).mkdir()
        former = write(tmp_path / letter, made_by(letter))
        if letter == "c":
            with pytest.raises(InputError, match="no rerun of a committed record"):
                results.verify(rerun, former, folder)
    (path,) = results.verify(rerun, former, folder)
    content = json.loads(path.read_text())
    assert content.pop("verified")["largest_difference"] == 0.0 and content == laptop


def test_a_rerun_of_another_text_or_precision_verifies_nothing(tmp_path):
    folder, made = commit(tmp_path, made_by("a")), made_by("b")
    products = made | {"provenance": made["provenance"] | {"precision": "float32 bf16x3"}}
    for rerun in (made | {"data": "builtin:code"}, products):
        with pytest.raises(InputError, match="no rerun of a committed record"):
            results.verify(write(tmp_path, rerun), folder=folder)


def test_a_rerun_that_differs_in_more_than_numbers_verifies_nothing(tmp_path):
    folder = commit(tmp_path, made_by("a"))
    before = (folder / "smoke" / "table1.json").read_bytes()
    other = {"rows": [{"share": 0.25, "top1_id": 7}], "name": "y"}
    with pytest.raises(InputError, match=r"differ at result\.name"):
        results.verify(write(tmp_path, made_by("b", result=other)), folder=folder)
    assert (folder / "smoke" / "table1.json").read_bytes() == before


def test_the_list_tells_current_records_from_older_ones(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    experiment = runner.load("table1")
    result = {"git": GIT, "code": runner.code_digest(experiment.run), "versions": runner.library_versions()}
    (tmp_path / "smoke").mkdir()
    (tmp_path / "smoke" / "table1.json").write_text(json.dumps(record(provenance=result)))
    (tmp_path / "smoke" / "table2.json").write_text(json.dumps(record(experiment="table2")))
    assert main([]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("smoke/table1: aaaaaaaaaa") and first.endswith("current")
    assert second.endswith("made by older code or other libraries")


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    assert main(["collect", str(tmp_path)]) == 2 and main(["other"]) == 2
    assert "holds no finished record" in capsys.readouterr().err


def test_committed_records_can_be_traced():
    for name, scale in results.names():
        content = results.committed(name, scale)
        result = content["provenance"]
        assert content["experiment"] == name and content["scale"] == scale and content["status"] == "complete"
        assert not result["git"]["dirty"] and len(result["code"]) == 16 and result["platform"]["cpu"]
        assert not any(isinstance(value, str) and value.startswith("/") for _, value in results.leaves(content))
