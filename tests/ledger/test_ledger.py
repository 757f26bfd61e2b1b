"""What a ledger keeps is found again, by whoever asks; nothing is lost, nothing counted twice."""

import io
import itertools
import json
import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from bornbiased_jax.cli import engines as cli_engines
from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.folders import MARKER
from bornbiased_jax.ledger import drive, engines, pages
from bornbiased_jax.ledger.engines import WorkersLostError, engine_named, local
from bornbiased_jax.ledger.jobs import Job, compute_chunks, parse_job, perform
from bornbiased_jax.ledger.pages import Chunk, Ledger, Task, task_of
from bornbiased_jax.ledger.status import status
from tests.ledger import toy
from tests.test_files import an_ordinary_user

FUNCTION = "tests.ledger.toy:compute"
CHUNKS = [Chunk(seed, start, start + 10) for start in (0, 10) for seed in (0, 7, 4_000_000_000)]


def page_of(folder, **settings):
    return Ledger(folder).page(task_of(FUNCTION, {"factor": 2, **settings}))


def kept(page):
    """The files of a page's chunks."""
    return {path.name: path.read_bytes() for path in sorted(page.path.glob("*.npz"))}


def computed(page, chunks=CHUNKS, **further):
    """What is computed on the way to the results, and the results."""
    seen = []

    def compute(settings, sources, some):
        for chunk, tree in zip(some, toy.compute(settings, sources, some), strict=True):
            seen.append(chunk)
            yield tree

    return seen, drive.results(page, chunks, compute=compute, **further)


def test_results_come_back_and_only_what_is_missing_is_computed(tmp_path):
    page = page_of(tmp_path)
    seen, found = computed(page, CHUNKS[:2])
    assert sorted(seen) == sorted(CHUNKS[:2])
    seen, found = computed(page, CHUNKS)
    assert sorted(seen) == sorted(CHUNKS[2:]) and list(found) == CHUNKS
    for chunk in CHUNKS:
        inputs_N = np.arange(chunk.start, chunk.stop, dtype=np.float32)
        np.testing.assert_array_equal(found[chunk]["nested"]["inputs"], inputs_N)
        assert found[chunk]["sum"] == 2 * chunk.seed + inputs_N.sum()
    before = kept(page)
    assert computed(page)[0] == []
    other = page_of(tmp_path / "other")
    computed(other, CHUNKS[::-1], block=2)
    assert kept(other) == before and len(before) == len(CHUNKS)


@pytest.mark.parametrize("field", Task._fields)
def test_a_page_is_named_by_all_that_its_numbers_depend_on(field):
    task = task_of(FUNCTION, {"factor": 2})
    value = getattr(task, field)
    other = {**value, "batch_size": "9"} if isinstance(value, dict) else value + "x"
    assert task._replace(**{field: other}).key != task.key
    assert task_of(FUNCTION, {"factor": 2}).key == task.key


@pytest.mark.parametrize("damage", ["torn", "empty", "flipped", "rewritten", "foreign", "of another page"])
def test_a_damaged_chunk_is_named_set_aside_and_computed_again(tmp_path, damage, capsys):
    page = page_of(tmp_path)
    _, before = computed(page)
    path, other = page.path / CHUNKS[0].name, (page.path / CHUNKS[1].name).read_bytes()
    data = path.read_bytes()
    at = data.index(b"leaf1.npy") + 150
    strange = page_of(tmp_path, factor=3)
    computed(strange, CHUNKS[:1])
    with np.load(path) as stored:
        rewritten = io.BytesIO()
        np.savez(rewritten, **{**stored, "leaf0": stored["leaf0"] + 1})
    bad = {
        "rewritten": rewritten.getvalue(),
        "torn": data[: len(data) // 2],
        "empty": b"",
        "flipped": data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :],
        "foreign": other,
        "of another page": (strange.path / path.name).read_bytes(),
    }[damage]
    path.write_bytes(bad)
    seen, found = computed(page)
    assert seen == CHUNKS[:1] and path.read_bytes() == data
    assert f"{path} is damaged" in capsys.readouterr().err
    assert path.with_name(f"{path.name}.damaged").read_bytes() == bad
    np.testing.assert_equal(found, before)


def test_two_drivers_divide_the_work(tmp_path):
    """While one has a chunk under way the other does all the rest: the first finds it done."""
    page, by_other = page_of(tmp_path), []

    def meanwhile(jobs, here):
        for number, job in enumerate(local(jobs, here)):
            if number == 0:
                by_other.extend(computed(page_of(tmp_path))[0])
            yield job

    told = []
    seen, found = computed(page, engine=meanwhile, on_present=told.append)
    assert len(seen) == 1 and sorted(seen + by_other) == sorted(CHUNKS) and set(found) == set(CHUNKS)
    assert sorted(told) == sorted(by_other)


def test_each_chunk_is_told_of_once(tmp_path):
    """As done where ``advance`` hears of it, whoever has done it; as kept where it was there before."""
    page, told, before = page_of(tmp_path), [], []

    def meanwhile(jobs, here):
        computed(page_of(tmp_path))
        yield from local(jobs, here)

    computed(page, CHUNKS[:2])
    seen, _ = computed(page, engine=meanwhile, advance=told.append, on_present=before.append)
    assert seen == [] and sorted(told) == sorted(CHUNKS[2:]) and sorted(before) == sorted(CHUNKS[:2])


def test_drivers_take_orders_of_their_own(tmp_path):
    chunks = [Chunk(seed, 0, 1) for seed in range(50)]
    one, two = (computed(page_of(tmp_path / name), chunks)[0] for name in "ab")
    assert one != two and sorted(one) == sorted(two) == chunks


def test_many_chunks_are_found_by_one_look_at_their_folder(tmp_path, monkeypatch):
    page = page_of(tmp_path)
    chunks = {Chunk(seed, 0, 9) for seed in range(2_000)}
    page.open(chunks)
    for chunk in chunks:
        (page.path / chunk.name).touch()
    looks, real = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or real(path))
    monkeypatch.setattr("builtins.open", lambda *unused, **ignored: pytest.fail("a chunk was opened"))
    assert page.done() == chunks and looks == [page.path]


def test_a_finished_ledger_that_cannot_be_written_is_read():
    # Not tmp_path, whose parents are root's own.
    with tempfile.TemporaryDirectory() as place:
        page = page_of(place)
        _, before = computed(page, CHUNKS[:2])
        for folder in (page.path, Path(place)):
            folder.chmod(0o555)
        # An ordinary user may not see where this project lies: what the tasks say of it is known before.
        again, more = page_of(place), page_of(place)
        try:
            with an_ordinary_user():
                np.testing.assert_equal(computed(again, CHUNKS[:2]), ([], before))
                with pytest.raises(InputError, match="Permission denied"):
                    computed(more, CHUNKS)
        finally:
            Path(place).chmod(0o755)
        assert page.done() == set(CHUNKS[:2])


def test_a_folder_of_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(InputError, match="thesis.tex"):
        Ledger(tmp_path).check()


@pytest.mark.parametrize("field", ["code", "libraries", "device"])
def test_a_worker_of_another_installation_refuses_in_one_sentence(tmp_path, field, monkeypatch):
    page = page_of(tmp_path)
    page.open(CHUNKS)
    text = Job(str(tmp_path), page.task.key, CHUNKS, {}).text()
    other = {"jax": "0.0.1"} if field == "libraries" else "of another kind"
    changed = page.task._replace(**{field: other})
    monkeypatch.setattr("bornbiased_jax.ledger.jobs.task_of", lambda function, settings: changed)
    with pytest.raises(InputError, match=rf"is of other {field} .* than this worker has .*(0\.0\.1|another kind)"):
        perform(text)
    assert not page.done()


def test_a_page_names_functions_of_this_project_alone():
    with pytest.raises(InputError, match="none of this project"):
        pages.resolve("os:system")
    with pytest.raises(InputError, match="not to be had"):
        pages.resolve("bornbiased_jax.files:compute")


def test_a_failure_is_noted_until_the_chunk_is_there(tmp_path):
    page = page_of(tmp_path, fails_at=7)
    page.open(CHUNKS)
    with pytest.raises(ZeroDivisionError):
        computed(page, CHUNKS[:3], block=3)
    assert page.failures()[CHUNKS[1]] == "ZeroDivisionError: this seed is bad"
    job = Job(str(tmp_path), page.task.key, CHUNKS[:3], {})
    compute_chunks(page, job, lambda settings, sources, some: ({"sum": 1.0} for _ in some))
    assert page.failures() == {} and page.done() == set(CHUNKS[:3])
    assert not list(page.path.glob(f"{pages.FAILED}*"))


def test_what_goes_away_while_a_page_is_looked_at_is_passed_over(tmp_path, monkeypatch):
    """A chunk is set aside, or computed after all, between the look at the folder and the look at the file."""
    page = page_of(tmp_path)
    computed(page, CHUNKS[:2])
    page.fail(CHUNKS[2:4], OSError("no room"))
    note = f"{pages.FAILED}{CHUNKS[2].name}.json"
    real = os.scandir

    class Entries(list):
        def __enter__(self):
            return self

        def __exit__(self, *unused):
            pass

    def entries(path):
        with real(path) as found:
            listed = Entries(found)
        for name in (note, CHUNKS[0].name):
            (page.path / name).unlink(missing_ok=True)
        return listed

    monkeypatch.setattr(os, "scandir", entries)
    assert len(page.times()) == 1
    page.fail(CHUNKS[2:3], OSError("no room"))
    assert list(page.failures()) == [CHUNKS[3]]
    monkeypatch.setattr(os, "scandir", real)
    (page.path / f"{pages.FAILED}{CHUNKS[3].name}.json").write_text("{}")
    with pytest.raises(InputError, match="edited or damaged"):
        page.failures()


def test_jobs_cross_as_json(tmp_path):
    job = Job(str(tmp_path), "0" * 16, CHUNKS, {"tokens": "here.npy"})
    assert parse_job(job.text()) == job and json.loads(job.text())["chunks"][0] == [0, 0, 10]


def test_workers_that_die_again_and_again_end_the_drive(tmp_path):
    calls = itertools.count()

    def dying(jobs, here):
        if next(calls) in (0, 3):  # what is done in between is progress
            yield from local(jobs[:1], here)
        raise WorkersLostError("killed")

    with pytest.raises(InputError, match=r"5 attempts gave no result \(killed\)"):
        computed(page_of(tmp_path), engine=dying)
    assert next(calls) == 4 + drive.STUCK and len(page_of(tmp_path).done()) == 2


def test_engines_by_name():
    assert cli_engines.ENGINES == engines.ENGINES and engine_named("local") is local
    for name, workers in (("clouds", None), ("local", 3)):
        with pytest.raises(InputError, match="engine"):
            engine_named(name, workers=workers)


@pytest.mark.parametrize(
    ("name", "further", "word"),
    [
        ("slurm", {}, r"needs submitit: pip install 'bornbiased-jax\[slurm\]'"),
        ("ray", {}, r"needs ray: pip install 'bornbiased-jax\[ray\]'"),
        ("processes", {"submit": {"timeout_min": 1}}, "leave --submit out"),
        ("slurm", {"address": "h:1"}, "leave --ray-address out"),
    ],
)
def test_what_an_engine_lacks_or_does_not_take_is_named(name, further, word, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(InputError, match=word):
        engine_named(name, **further)


@pytest.mark.parametrize(
    "words",
    [
        ["probe", "contraction", "--model", "gpt2-tiny", "--seq-len", "8", "--num-inputs", "9"],
        ["fingerprint", "--outputs", "seed:0", "--out", "a"],
    ],
)
def test_processes_that_compute_together_are_refused_a_ledger(words, tmp_path, monkeypatch, capsys):
    several = ["--coordinator", "localhost:1", "--num-processes", "2", "--process-id", "0"]
    assert run([*words, "--resume", str(tmp_path / "ledger"), *several]) == 2
    assert "leave --resume out, or give --engine processes or start each process on its own" in capsys.readouterr().err
    monkeypatch.setattr(drive.jax, "process_count", lambda: 2)
    drive.check(None, local)
    for folder, engine in ((tmp_path / "ledger", local), (None, engine_named("processes"))):
        with pytest.raises(InputError, match="keep no ledger: leave --resume out"):
            drive.check(folder, engine)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_processes_give_the_same_files_and_survive_a_killed_worker(tmp_path, capsys):
    """The worker that computes seed 7 first is killed by SIGKILL in the middle."""
    calm, page = page_of(tmp_path / "calm"), page_of(tmp_path / "shared", dies_at=7)
    _, expected = computed(calm)
    once = {"once": str(tmp_path / "once")}
    told = []
    found = drive.results(
        page, CHUNKS, engine=engine_named("processes", workers=2), sources=lambda: once, advance=told.append
    )
    np.testing.assert_equal(found, expected)
    assert (tmp_path / "once").exists() and "a worker died" in capsys.readouterr().err
    assert page.done() == set(CHUNKS) and set(told) <= set(CHUNKS) and len(told) == len(set(told))


def test_status_tells_progress_rate_and_failures(tmp_path, capsys):
    page, place = page_of(tmp_path / "deep" / "ledger"), str(tmp_path)
    page.open(CHUNKS)
    computed(page, CHUNKS[:4])
    page.fail(CHUNKS[5:], OSError("no room"))
    now = time.time()
    for seconds, chunk in zip((7200, 120, 60, 0), CHUNKS, strict=False):
        os.utime(page.path / chunk.name, (now - seconds, now - seconds))
    found = status(place)
    assert (found["done"], found["asked"], found["failed"]) == (4, 6, 1)
    (row,) = found["pages"]
    assert row["per_minute"] == pytest.approx(1.0) and row["seconds_left"] == pytest.approx(120.0)
    assert row["same_code"] and row["failures"] == {CHUNKS[5].name: "OSError: no room"}
    assert run(["status", place]) == 0
    said = capsys.readouterr().out
    assert "4 of 6" in said and "no room" in said and "2 min 00 s" in said


def test_status_names_what_it_cannot_read(tmp_path):
    with pytest.raises(InputError, match="no ledger"):
        status(tmp_path)
    page = page_of(tmp_path)
    page.open(CHUNKS)
    path = page.path / pages.TASK_FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "code": "other"}))
    with pytest.raises(InputError, match=r"task\.json does not belong"):
        status(tmp_path)
    assert (tmp_path / MARKER).exists()
