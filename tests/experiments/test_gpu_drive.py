"""The command that turns a lent GPU into records: order, time, signals, resuming, failures and the archive, with steps
that take no time."""

import json
import os
import signal
import subprocess
import sys
import tarfile
import time

import pytest

from bornbiased_jax import files
from bornbiased_jax.errors import InputError
from experiments.gpu import archive, drive, tried
from experiments.gpu import collect as collecting
from experiments.gpu.step import Step

GIT = {"revision": "a" * 40, "dirty": False}
PROVENANCE = {"git": GIT, "device": {"platform": "gpu"}, "wall_time_s": 1.0}


def step(name, code="", *, result=None, **options):
    """A step that runs a line of Python, and then writes its record where it has a result."""

    def command(place):
        write = "" if result is None else f"open({str(place.record)!r}, 'w').write({json.dumps(json.dumps(result))})"
        prelude = f"from pathlib import Path; work, out = Path({str(place.work)!r}), Path({str(place.reproduce)!r})"
        return ["-S", "-c", f"{prelude}\n{code}\n{write}"]

    return Step(name, name, options.pop("seconds", 0.5), command, **options)


def good(name, **options):
    return step(
        name, "(work / 'tally').open('a').write('x')", result={"rate": 1.5, "provenance": PROVENANCE}, **options
    )


def tally(out, name):
    path = out / "work" / name / "tally"
    return len(path.read_text()) if path.exists() else 0


def went(call):
    return {name: row["status"] for name, row in call.rows.items()}


def packed(path):
    with tarfile.open(path) as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}


@pytest.fixture
def brief(monkeypatch):
    """No seconds are kept at the end, and none are given to those that will not go."""
    monkeypatch.setattr(drive, "RESERVE", 0.0)
    monkeypatch.setattr(drive, "GRACE", 0.3)
    monkeypatch.setattr(drive, "LEAST", {"gpu": 0.5, "smoke": 0.5})
    monkeypatch.setattr(drive, "git_revision", lambda: GIT)


def test_a_step_that_fails_is_recorded_and_the_others_go_on(brief, tmp_path):
    said = "import sys; print('trace'); sys.exit('there is no such kernel')"
    steps = [step("bad", said), step("silent"), good("fine"), good("torch", needs=("no_such_module",))]
    call = drive.run(steps, tmp_path, minutes=1, scale="smoke")
    assert went(call) == {"bad": "failed", "silent": "failed", "fine": "complete", "torch": "skipped"}
    records = {name: files.read_json(tmp_path / "records" / f"{name}.json") for name in went(call)}
    assert records["bad"]["reason"] == "there is no such kernel" and records["bad"]["result"] == {}
    assert records["bad"]["provenance"]["git"] == GIT and records["bad"]["provenance"]["versions"]["jax"]
    assert records["silent"]["reason"].startswith("it ended without a record")
    assert records["torch"]["reason"] == "no_such_module not installed here"
    whole = records["fine"]
    assert whole["result"] == {"rate": 1.5} and whole["provenance"] == PROVENANCE and whole["step_s"] > 0
    assert str(tmp_path) not in json.dumps(records)
    assert (tmp_path / "logs" / "bad.txt").read_text() == "trace\nthere is no such kernel\n"


def test_what_stands_stays_and_the_rest_is_made(brief, tmp_path):
    steps = [step("bad", "raise SystemExit('no')"), good("a"), good("b")]
    drive.run(steps[:2], tmp_path, minutes=1, scale="smoke")
    call = drive.run(steps, tmp_path, minutes=1, scale="smoke")
    assert went(call) == {"a": "there", "b": "complete", "bad": "failed"}
    # What failed before is tried after what was not.
    assert list(call.rows) == ["a", "b", "bad"] and tally(tmp_path, "a") == 1
    assert went(drive.run([steps[1]], tmp_path, minutes=1, scale="smoke", again=True)) == {"a": "complete"}
    # Another scale is another record.
    assert went(drive.run([good("a", seconds=1)], tmp_path, minutes=1, scale="gpu")) == {"a": "complete"}


def test_a_failure_does_not_replace_what_was_measured(brief, tmp_path):
    drive.run([good("a")], tmp_path, minutes=1, scale="smoke")
    call = drive.run([step("a", "raise SystemExit('no')")], tmp_path, minutes=1, scale="smoke", again=True)
    assert went(call) == {"a": "failed"}
    assert files.read_json(tmp_path / "records" / "a.json")["result"] == {"rate": 1.5}


def test_nothing_is_begun_that_does_not_fit_and_nothing_outlives_the_time(brief, tmp_path):
    slow = step("slow", "import time; (work / 'begun').touch(); time.sleep(60)", seconds=0.2)
    begun = time.monotonic()
    call = drive.run([good("long", seconds=100), slow, good("short")], tmp_path, minutes=8 / 60, scale="gpu")
    assert time.monotonic() - begun < 8
    assert went(call) == {"long": "no time", "slow": "cut", "short": "complete"}
    # Cut after four times what it was thought to take, not at the end of the call.
    assert 0.5 <= call.rows["slow"]["seconds"] < 3
    assert "goes on or begins again" in files.read_json(tmp_path / "records" / "slow.json")["reason"]
    assert (tmp_path / "work" / "slow" / "begun").exists()
    assert not (tmp_path / "records" / "long.json").exists()


def test_children_of_a_step_end_with_it(brief, tmp_path):
    # It answers no SIGTERM, and its parent goes before it.
    left = f"trap '' TERM; sleep 2; touch {tmp_path / 'left'}"
    code = f"import subprocess, time; subprocess.Popen(['sh', '-c', {left!r}]); time.sleep(60)"
    ended = drive.run([step("a", code, seconds=0.1)], tmp_path / "out", minutes=1, scale="smoke")
    assert went(ended) == {"a": "cut"} and ended.rows["a"]["seconds"] < 1.9
    time.sleep(2.2)
    assert not (tmp_path / "left").exists()


def test_a_process_that_dies_is_tried_once_more(brief, tmp_path):
    code = (
        "import os; there = (work / 'once').exists(); (work / 'once').touch()\n"
        "None if there else os.kill(os.getpid(), 11)"
    )
    flaky = step("flaky", code, result={"provenance": PROVENANCE})
    dead = step("dead", "import os; (work / 'tally').open('a').write('x'); os.kill(os.getpid(), 11)")
    call = drive.run([flaky, dead], tmp_path, minutes=1, scale="smoke")
    assert went(call) == {"flaky": "complete", "dead": "failed"} and tally(tmp_path, "dead") == 2
    assert files.read_json(tmp_path / "records" / "dead.json")["reason"].startswith("ended by signal 11")


def test_a_record_of_an_earlier_call_is_not_taken_for_this_ones(brief, tmp_path):
    drive.run([good("a")], tmp_path, minutes=1, scale="smoke")
    old = tmp_path / "work" / "a" / "record.json"
    os.utime(old, (0, 0))
    files.write_json(tmp_path / "records" / "a.json", {"status": "failed", "scale": "smoke"})
    assert went(drive.run([step("a")], tmp_path, minutes=1, scale="smoke")) == {"a": "failed"}


def test_what_is_not_finished_goes_on_where_its_folder_is(brief, tmp_path):
    code = "(work / 'run').mkdir(exist_ok=True); (work / 'run' / 'state').open('a').write('x')"
    partly = step("life", code, result={"finished": False, "provenance": PROVENANCE}, rest=True)
    for expected in ("complete", "complete"):
        assert went(drive.run([partly], tmp_path, minutes=1, scale="smoke")) == {"life": expected}
    assert (tmp_path / "work" / "life" / "run" / "state").read_text() == "xx"
    # On another machine there is nothing to go on with: what was measured stays.
    other = tmp_path / "other"
    other.mkdir()
    (other / archive.NAME).write_bytes((tmp_path / archive.NAME).read_bytes())
    assert went(drive.run([partly], other, minutes=1, scale="smoke")) == {"life": "there"}


def test_an_archive_carries_everything_but_work_to_another_machine(brief, tmp_path):
    kept = step(
        "rows",
        "(out / 'records').mkdir(parents=True); (out / 'work').mkdir(); (out / 'work' / 'big').write_text('y')\n"
        "import json\n"
        "for name in ('x', 'y'):\n"
        "    about = dict(wall_time_s=2.0, peak_memory_bytes=3, seeds=[4], device='d', git=None)\n"
        "    record = dict(status='complete', digest=name, provenance=about)\n"
        "    (out / 'records' / f'{name}.json').write_text(json.dumps(record))\n",
        experiments=("x", "y"),
    )
    target = tmp_path / "home" / "home.tar.gz"
    call = drive.run([good("a"), kept], tmp_path / "one", minutes=1, scale="smoke", target=target)
    assert went(call) == {"a": "complete", "rows": "complete"}
    names = set(packed(target))
    assert names == {
        "records/a.json", "records/rows.json", "logs/a.txt", "logs/rows.txt", "summary.json",
        "reproduce/rows/records/x.json", "reproduce/rows/records/y.json",
    }  # fmt: skip
    record = json.loads(packed(target)["records/rows.json"])
    assert record["result"] == {"records": {"x": "x", "y": "y"}}
    assert record["provenance"]["wall_time_s"] == 4.0 and record["provenance"]["seeds"] == [4, 4]
    assert json.loads(packed(target)["summary.json"])["steps"]["rows"]["status"] == "complete"
    other = tmp_path / "two"
    other.mkdir()
    (other / archive.NAME).write_bytes(target.read_bytes())
    call = drive.run([good("a"), kept, good("b")], other, minutes=1, scale="smoke")
    assert went(call) == {"a": "there", "rows": "there", "b": "complete"}
    assert set(packed(other / archive.NAME)) == names | {"records/b.json", "logs/b.txt"}


def test_an_archive_stays_small_enough_to_come_back(brief, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(archive, "LARGEST", 20_000)
    noise = "import os; print(os.urandom(50_000).hex())"
    drive.run([step("loud", noise, result={"provenance": PROVENANCE}), good("a")], tmp_path, minutes=1, scale="smoke")
    names = set(packed(tmp_path / archive.NAME))
    assert {"records/loud.json", "records/a.json", "logs/a.txt", "summary.json"} <= names
    assert "logs/loud.txt" not in names and (tmp_path / archive.NAME).stat().st_size <= 20_000
    assert f"the archive has no room for logs/loud.txt: they lie in {tmp_path}" in capsys.readouterr().err


def test_what_is_no_archive_of_ours_is_refused(tmp_path):
    (tmp_path / "torn.tar.gz").write_bytes(b"\x1f\x8b nothing")
    with pytest.raises(InputError, match="is no archive of an earlier call"):
        archive.unpack(tmp_path / "torn.tar.gz", tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with tarfile.open(tmp_path / "bad.tar", "w") as made:
        made.add(tmp_path / "file", "../file2")
    with pytest.raises(InputError, match=r"holds \.\./file2"):
        archive.unpack(tmp_path / "bad.tar", tmp_path / "out")
    assert not (tmp_path / "file2").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_signal_ends_the_step_and_leaves_an_archive(tmp_path, number):
    code = f"""
import sys
sys.path.insert(0, {str(drive.ROOT)!r})
from pathlib import Path
from experiments.gpu import drive
from experiments.gpu.step import Step
drive.git_revision = lambda: None
write = "import sys; open(sys.argv[1], 'w').write('{{\\"provenance\\": {{}}}}')"
first = Step("first", "", 1, lambda place: ["-S", "-c", write, str(place.record)])
wait = "import time; print('waiting', flush=True); time.sleep(60)"
second = Step("second", "", 1, lambda place: ["-S", "-c", wait])
call = drive.run([first, second, first], Path({str(tmp_path)!r}), minutes=1, scale="smoke")
sys.exit(128 + call.asked_to_stop)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE)
    log = tmp_path / "logs" / "second.part"
    end = time.monotonic() + 60
    while time.monotonic() < end and not (log.exists() and log.read_text()):
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(20) == 128 + number
    process.stderr.close()
    made = packed(tmp_path / archive.NAME)
    assert json.loads(made["records/first.json"])["status"] == "complete"
    second = json.loads(made["records/second.json"])
    assert second["status"] == "cut" and "by a signal" in second["reason"]
    assert b"waiting" in made["logs/second.txt"]


def test_two_calls_do_not_write_in_one_folder(brief, tmp_path):
    with files.locked(tmp_path / ".lock"), pytest.raises(InputError, match="another call writes in"):
        drive.run([good("a")], tmp_path, minutes=1, scale="smoke")


def test_what_killed_a_process_is_passed_over_by_the_next(tmp_path):
    path, asked = tmp_path / "tried.json", []

    def compute(name):
        asked.append(name)
        if name == "dies":
            raise KeyboardInterrupt
        if name == "refused":
            raise ValueError("not on this device\nat all")
        return {"value": name}

    names = ["a", "dies", "refused", "b"]
    with pytest.raises(KeyboardInterrupt):
        tried.each(path, names, compute)
    found = tried.each(path, names, compute)
    assert found == {
        "a": {"value": "a"}, "dies": {"refused": tried.DIED}, "refused": {"refused": "ValueError: not on this device"},
        "b": {"value": "b"},
    }  # fmt: skip
    assert asked == ["a", "dies", "refused", "b"]


def written(tmp_path, **changes):
    record = {"step": "a", "status": "complete", "scale": "gpu", "result": {"rate": 2.0}, "provenance": PROVENANCE}
    files.write_json(tmp_path / "out" / "records" / "a.json", {**record, **changes})
    return tmp_path / "out"


def test_records_are_collected_from_a_folder_and_from_an_archive(tmp_path):
    out = written(tmp_path)
    files.write_json(out / "records" / "b.json", {"step": "b", "status": "failed", "scale": "gpu"})
    experiment = {
        "experiment": "table1_a_64_42", "scale": "paper", "status": "complete", "data": None, "settings": {},
        "result": {}, "provenance": {"git": GIT, "code": "0" * 16},
    }  # fmt: skip
    for step, status in (("table1_a_64", "complete"), ("table1_c_64", "failed")):
        name = f"{step}_42"
        record = {**experiment, "experiment": name, "status": status}
        files.write_json(out / "reproduce" / step / "records" / f"{name}.json", record)
    target = out / archive.NAME
    archive.write(out, target)
    for number, source in enumerate((out, target)):
        folder = tmp_path / f"kept{number}"
        paths = collecting.collect(source, folder)
        assert {str(path.relative_to(folder)) for path in paths} == {"gpu/a.json", "paper/table1_a_64_42.json"}
        assert json.loads((folder / "gpu" / "a.json").read_text())["result"] == {"rate": 2.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"status": "cut"}, "holds no finished record of a GPU"),
        ({"scale": "smoke"}, "holds no finished record of a GPU"),
        ({"provenance": {"git": None}}, "a was made without a commit's name"),
        ({"provenance": {"git": {**GIT, "dirty": True}}}, "a was made by a checkout with uncommitted changes"),
        ({"result": {"file": "/home/me"}}, "holds a path of a machine at result.file"),
    ],
)
def test_what_cannot_be_traced_is_not_collected(tmp_path, changes, words):
    with pytest.raises(InputError, match=words):
        collecting.collect(written(tmp_path, **changes), tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
