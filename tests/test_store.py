"""What a store keeps is found again, by whoever asks; nothing is lost, nothing counted twice."""

import errno
import io
import itertools
import json
import os
import re
import socket
import sys
import tempfile
import time
import tracemalloc
import types
from concurrent.futures import Future
from pathlib import Path

import jax
import numpy as np
import pytest

from bornbiased_jax import chunk_store, executors, store
from bornbiased_jax.chunk_store import Chunk, Store, Task, task_of
from bornbiased_jax.cli.main import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.executors import BrokenExecutor, engine_named, local
from bornbiased_jax.io import MARKER
from bornbiased_jax.progress import Bar
from bornbiased_jax.store import Request, compute_chunks, compute_in_worker, fulfill, status
from tests import toy_task
from tests.fixtures.engines import PicklingExecutor
from tests.test_io import an_ordinary_user

FUNCTION = "tests.toy_task:compute"
CHUNKS = [Chunk(seed, start, start + 10) for start in (0, 10) for seed in (0, 7, 4_000_000_000)]


def task_store(folder, **settings):
    return Store(folder).task(task_of(FUNCTION, {"factor": 2, **settings}))


def kept(tasks):
    """The files of a task's chunks."""
    return {path.name: path.read_bytes() for path in sorted(tasks.path.glob("*.npz"))}


def computed(tasks, chunks=CHUNKS, *, engine=local, block=1, advance=None):
    """Chunks that are computed on the way to the results, and the results."""
    observed = []

    def compute(settings, sources, some):
        for chunk, tree in zip(some, toy_task.compute(settings, sources, some), strict=True):
            observed.append(chunk)
            yield tree

    request = Request(FUNCTION, tasks.task.settings, chunks, compute, block)
    return observed, dict(zip(chunks, fulfill(request, tasks.store.path, engine, advance), strict=True))


class Counter(Bar):
    """Inputs computed and inputs kept."""

    def __init__(self):
        self.computed = self.stored = 0
        super().__init__(self._count)

    def _count(self, n, is_kept):
        self.computed, self.stored = self.computed + n * (not is_kept), self.stored + n * is_kept


def hook(monkeypatch, before):
    """Call a function of the number of blocks before each block that this process computes."""
    numbers, compute = itertools.count(), store.compute_chunks

    def hooked(*arguments):
        before(next(numbers))
        compute(*arguments)

    monkeypatch.setattr(store, "compute_chunks", hooked)


def test_results_come_back_and_only_what_is_missing_is_computed(tmp_path):
    tasks = task_store(tmp_path)
    observed, values = computed(tasks, CHUNKS[:2])
    assert sorted(observed) == sorted(CHUNKS[:2])
    observed, values = computed(tasks, CHUNKS)
    assert sorted(observed) == sorted(CHUNKS[2:]) and list(values) == CHUNKS
    for chunk in CHUNKS:
        inputs_N = np.arange(chunk.start, chunk.stop, dtype=np.float32)
        np.testing.assert_array_equal(values[chunk]["nested"]["inputs"], inputs_N)
        assert values[chunk]["sum"] == 2 * chunk.seed + inputs_N.sum()
    before = kept(tasks)
    assert computed(tasks)[0] == []
    other = task_store(tmp_path / "other")
    computed(other, CHUNKS[::-1], block=2)
    assert kept(other) == before and len(before) == len(CHUNKS)


@pytest.mark.parametrize("field", Task._fields)
def test_a_page_is_named_by_all_that_its_numbers_depend_on(field):
    task = task_of(FUNCTION, {"factor": 2})
    value = getattr(task, field)
    other = {**value, "batch_size": "9"} if isinstance(value, dict) else value + "x"
    assert task._replace(**{field: other}).key != task.key
    assert task_of(FUNCTION, {"factor": 2}).key == task.key


def test_chunks_of_float64_are_others(tmp_path):
    """JAX's flags move digits: a record of one setting never holds chunks of another."""
    observed, _ = computed(task_store(tmp_path))
    with jax.enable_x64(True):
        again, _ = computed(task_store(tmp_path))
        assert task_of(FUNCTION, {}).device == "cpu, jax_enable_x64=True"
    assert len(observed) == len(again) == len(CHUNKS) and computed(task_store(tmp_path))[0] == []
    assert task_of(FUNCTION, {}).device == "cpu"


@pytest.mark.parametrize("damage", ["torn", "empty", "flipped", "rewritten", "foreign", "of another page"])
def test_a_damaged_chunk_is_named_set_aside_and_computed_again(tmp_path, damage, capsys):
    tasks = task_store(tmp_path)
    _, before = computed(tasks)
    path, other = tasks.path / CHUNKS[0].name, (tasks.path / CHUNKS[1].name).read_bytes()
    data = path.read_bytes()
    at = data.index(b"leaf1.npy") + 150
    strange = task_store(tmp_path, factor=3)
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
    observed, values = computed(tasks)
    assert observed == CHUNKS[:1] and path.read_bytes() == data
    assert f"{path} is corrupted" in capsys.readouterr().err
    assert path.with_name(f"{path.name}.damaged").read_bytes() == bad
    np.testing.assert_equal(values, before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"{'descr'", b"z'descr'"),
        (b"'<i8'", b"',i8'"),
        # An array of 80 petabytes: a MemoryError ended every call.
        (b"(5000,), }" + 16 * b" ", b"(10000000000000000,), }".ljust(26)),
    ],
)
def test_chunk_with_corrupted_array_header_computed_again(tmp_path, before, after):
    """NumPy parses a header before the archive's checksum: this was a TokenError or a SyntaxError."""
    tasks, chunk = task_store(tmp_path), CHUNKS[0]
    tasks.write(chunk, {"a": np.arange(5000)})
    path = tasks.path / chunk.name
    about, header, rest = path.read_bytes().partition(b"leaf0.npy")
    path.write_bytes(about + header + rest.replace(before, after, 1))
    assert tasks.read(chunk) is None and path.with_name(f"{path.name}.damaged").exists()


def test_chunk_of_compressed_arrays_is_none_of_ours(tmp_path):
    """A small file could take all memory."""
    tasks, chunk = task_store(tmp_path), CHUNKS[0]
    tasks.write(chunk, {"a": np.zeros(5000)})
    path = tasks.path / chunk.name
    with np.load(path) as stored:
        arrays = {**stored}
    np.savez_compressed(path, **arrays)
    assert tasks.read(chunk) is None and path.with_name(f"{path.name}.damaged").exists()


def test_chunk_that_may_not_be_read_is_not_called_corrupted():
    """Of another user's files it was set aside and computed again, as if it were damaged."""
    # Not tmp_path, whose parents are root's own.
    with tempfile.TemporaryDirectory() as place:
        tasks = task_store(place)
        computed(tasks, CHUNKS[:1])
        path = tasks.path / CHUNKS[0].name
        path.chmod(0o000)
        for folder in (tasks.path, Path(place)):
            folder.chmod(0o777)
        with an_ordinary_user(), pytest.raises(InputError, match=r"npz cannot be read: Permission denied; .*another"):
            tasks.read(CHUNKS[0])
        assert path.exists() and not list(tasks.path.glob("*.damaged"))


def test_open_files_beyond_the_limit_damage_no_chunk(tmp_path, monkeypatch):
    tasks = task_store(tmp_path)
    computed(tasks, CHUNKS[:1])

    def refuse(*unused, **ignored):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        with pytest.raises(InputError, match="cannot be read: Too many open files"):
            tasks.read(CHUNKS[0])
    assert tasks.read(CHUNKS[0]) is not None


def test_file_named_almost_like_a_chunk_is_none(tmp_path):
    tasks = task_store(tmp_path)
    tasks.open(CHUNKS)
    for name in ("seed07-inputs0-10.npz", "seed٧-inputs0-10.npz"):
        (tasks.path / name).write_text("")
    assert tasks.chunks() == set()
    assert sorted(computed(tasks)[0]) == sorted(CHUNKS)


def test_results_are_read_one_at_a_time(tmp_path):
    """Sums over ranges are D² numbers a layer: those of all seeds do not fit in memory together."""
    tasks = task_store(tmp_path)
    chunks = [Chunk(seed, 0, 200_000) for seed in range(40)]
    request = Request(FUNCTION, tasks.task.settings, chunks)
    tracemalloc.start()
    try:
        sums = [float(result["sum"]) for result in fulfill(request, tmp_path)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(sums) == 40
    # An array has 0.8 MB, all of them 32 MB; while one is written or read there are a few copies of it.
    assert peak < 16e6


def test_chunk_damaged_before_its_turn_is_computed_again(tmp_path):
    tasks = task_store(tmp_path)
    results = fulfill(Request(FUNCTION, tasks.task.settings, CHUNKS), tmp_path)
    expected = [next(results)["sum"]]
    (tasks.path / CHUNKS[1].name).write_bytes(b"")
    (tasks.path / CHUNKS[2].name).unlink()
    expected += [result["sum"] for result in results]
    assert expected == [result["sum"] for result in fulfill(Request(FUNCTION, {"factor": 2}, CHUNKS), tmp_path)]
    assert (tasks.path / f"{CHUNKS[1].name}.damaged").exists()


def test_two_processes_divide_the_work(tmp_path, monkeypatch):
    """While one has a chunk under way the other does all the rest: the first finds it done."""
    tasks, by_other, counter = task_store(tmp_path), [], Counter()

    def meanwhile(number):
        if number == 1:
            by_other.extend(computed(task_store(tmp_path))[0])

    hook(monkeypatch, meanwhile)
    observed, values = computed(tasks, advance=counter)
    assert len(observed) == 1 and sorted(observed + by_other) == sorted(CHUNKS) and set(values) == set(CHUNKS)
    assert counter.stored == 10 * len(by_other)


def test_each_chunk_is_reported_once(tmp_path, monkeypatch):
    """As kept where it was there before, and as computed where it came since, whoever computed it."""
    tasks, counter, by_other = task_store(tmp_path), Counter(), []
    computed(tasks, CHUNKS[:2])

    def meanwhile(number):
        if number == 0:
            by_other.extend(computed(task_store(tmp_path))[0])

    request = Request(FUNCTION, tasks.task.settings, CHUNKS)
    hook(monkeypatch, meanwhile)
    fulfill(request, tmp_path, local, counter)
    assert sorted(by_other) == sorted(CHUNKS[2:]) and (counter.computed, counter.stored) == (40, 20)


def test_processes_take_orders_of_their_own(tmp_path):
    chunks = [Chunk(seed, 0, 1) for seed in range(50)]
    first, two = (computed(task_store(tmp_path / name), chunks)[0] for name in "ab")
    assert first != two and sorted(first) == sorted(two) == chunks


def test_many_chunks_are_found_by_one_look_at_their_folder(tmp_path, monkeypatch):
    tasks = task_store(tmp_path)
    chunks = {Chunk(seed, 0, 9) for seed in range(2_000)}
    tasks.open(chunks)
    for chunk in chunks:
        (tasks.path / chunk.name).touch()
    looks, real = [], os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: looks.append(path) or real(path))
    monkeypatch.setattr("builtins.open", lambda *unused, **ignored: pytest.fail("a chunk was opened"))
    assert tasks.chunks() == chunks and looks == [tasks.path]


def test_a_finished_store_that_cannot_be_written_is_read():
    # Not tmp_path, whose parents are root's own.
    with tempfile.TemporaryDirectory() as place:
        tasks = task_store(place)
        _, before = computed(tasks, CHUNKS[:2])
        for folder in (tasks.path, Path(place)):
            folder.chmod(0o555)
        # An ordinary user may not see where this project lies: what the tasks say of it is known before.
        again, more = task_store(place), task_store(place)
        try:
            with an_ordinary_user():
                np.testing.assert_equal(computed(again, CHUNKS[:2]), ([], before))
                with pytest.raises(InputError, match="Permission denied"):
                    computed(more, CHUNKS)
        finally:
            Path(place).chmod(0o755)
        assert tasks.chunks() == set(CHUNKS[:2])


@pytest.mark.parametrize("field", ["code", "libraries", "device"])
def test_a_worker_of_another_installation_refuses_in_one_sentence(tmp_path, field, monkeypatch):
    tasks = task_store(tmp_path)
    tasks.open(CHUNKS)
    other = {"jax": "0.0.1"} if field == "libraries" else "of another kind"
    changed = tasks.task._replace(**{field: other})
    monkeypatch.setattr("bornbiased_jax.store.task_of", lambda function, settings: changed)
    sentence = compute_in_worker(str(tmp_path), tasks.task.key, CHUNKS, {})
    assert re.search(rf"is of other {field} .* than this worker has .*(0\.0\.1|another kind)", sentence)
    assert not tasks.chunks()


def test_a_page_names_functions_of_this_project_alone():
    with pytest.raises(InputError, match="none of this project"):
        chunk_store.resolve("os:system")
    with pytest.raises(InputError, match="cannot be imported"):
        chunk_store.resolve("bornbiased_jax.io:compute")


def test_a_failure_is_noted_until_the_chunk_is_there(tmp_path):
    tasks = task_store(tmp_path, fails_at=7)
    tasks.open(CHUNKS)
    with pytest.raises(ZeroDivisionError):
        computed(tasks, CHUNKS[:3], block=3)
    assert tasks.failures()[CHUNKS[1]] == "ZeroDivisionError: this seed is bad"
    compute_chunks(tasks, CHUNKS[:3], {}, lambda settings, sources, some: ({"sum": 1.0} for _ in some))
    assert tasks.failures() == {} and tasks.chunks() == set(CHUNKS[:3])
    assert not list(tasks.path.glob(f"{chunk_store.FAILED}*"))


def test_chunks_removed_during_listing_are_skipped(tmp_path, monkeypatch):
    """A chunk is set aside, or computed after all, between the look at the folder and the look at the file."""
    tasks = task_store(tmp_path)
    computed(tasks, CHUNKS[:2])
    tasks.fail(CHUNKS[2:4], OSError("no room"))
    note = f"{chunk_store.FAILED}{CHUNKS[2].name}.json"
    real = os.scandir

    class Entries(list):
        def __enter__(self):
            return self

        def __exit__(self, *unused):
            pass

    def entries(path):
        with real(path) as listing:
            listed = Entries(listing)
        for name in (note, CHUNKS[0].name):
            (tasks.path / name).unlink(missing_ok=True)
        return listed

    monkeypatch.setattr(os, "scandir", entries)
    assert len(tasks.times()) == 1
    tasks.fail(CHUNKS[2:3], OSError("no room"))
    assert list(tasks.failures()) == [CHUNKS[3]]
    monkeypatch.setattr(os, "scandir", real)
    (tasks.path / f"{chunk_store.FAILED}{CHUNKS[3].name}.json").write_text("{}")
    with pytest.raises(InputError, match="edited or corrupted"):
        tasks.failures()


class DyingExecutor(PicklingExecutor):
    """Breaks after so many jobs."""

    def __init__(self, num_jobs):
        self._left = num_jobs

    def submit(self, fn, /, *args, **kwargs):
        if not self._left:
            raise BrokenExecutor("killed")
        self._left -= 1
        return super().submit(fn, *args, **kwargs)


def test_workers_that_die_again_and_again_end_the_call(tmp_path):
    calls = itertools.count()

    def dying(folder, num_jobs):
        return DyingExecutor(int(next(calls) in (0, 3)))  # what is done in between is progress

    with pytest.raises(InputError, match=r"5 attempts gave no result \(killed\)"):
        computed(task_store(tmp_path), engine=dying)
    assert next(calls) == 4 + store.MAX_FAILED_ROUNDS and len(task_store(tmp_path).chunks()) == 2


def test_engines_by_name():
    assert engine_named("local") is local
    for name, workers in (("clouds", None), ("local", 3), ("processes", 0), ("processes", -1)):
        with pytest.raises(InputError, match="engine|workers=.* is not an integer from 1"):
            engine_named(name, workers=workers)


def test_workers_take_memory_of_a_shared_gpu_as_they_need_it(monkeypatch):
    monkeypatch.setenv(executors.PREALLOCATE, "before")
    monkeypatch.delenv(executors.PREALLOCATE)
    engine_named("local")
    assert executors.PREALLOCATE not in os.environ
    engine_named("processes")
    assert os.environ[executors.PREALLOCATE] == "false"
    monkeypatch.setenv(executors.PREALLOCATE, "true")
    engine_named("processes")
    assert os.environ[executors.PREALLOCATE] == "true"


@pytest.mark.parametrize(
    ("name", "further", "word"),
    [
        ("slurm", {}, r"needs submitit: pip install 'bornbiased-jax\[slurm\]'"),
        ("ray", {}, r"needs ray: pip install 'bornbiased-jax\[ray\]'"),
        ("processes", {"submit": {"timeout_min": 1}}, "leave --submit out"),
        ("slurm", {"address": "h:1"}, "leave --ray-address out"),
        ("ray", {"address": "h:1", "workers": 64}, "a running Ray cluster has processors of its own"),
    ],
)
def test_missing_engine_or_option_named(name, further, word, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda module: None)
    with pytest.raises(InputError, match=word):
        engine_named(name, **further)


def test_array_refused_by_slurm_reported(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    said = "sbatch: error: invalid partition specified"
    for name, lines in (("srun", "exit 0"), ("sbatch", f"echo '{said}' >&2\nexit 1")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{lines}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    executor = engine_named("slurm", workers=1)(tmp_path / "store", 1)
    with executor, pytest.raises(InputError, match=f"Slurm does not take the tasks: {said}$"):
        executor.submit(print)


def test_ray_starts_here_or_names_the_address(monkeypatch):
    addresses = []

    def init(address, **options):
        addresses.append(address)
        if address != "local":
            raise ValueError(f"Invalid address format: {address}")

    fake = types.SimpleNamespace(init=init, is_initialized=lambda: False, remote=lambda **options: None)
    monkeypatch.setitem(sys.modules, "ray", fake)
    # A cluster that the environment names is not asked: it would refuse a number of processors.
    executors.RayExecutor(2, None)
    assert addresses == ["local"]
    with pytest.raises(InputError, match="no Ray cluster answers at here: start one there"):
        executors.RayExecutor(2, "here")
    # Ray is not asked at all where nobody listens: it would try for minutes.
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match="no Ray cluster answers"):
            executors.RayExecutor(2, f"ray://{address}")
    for closed in (address, f"ray://{address}", "127.0.0.1:99999"):
        with pytest.raises(InputError, match=f"no Ray cluster answers at {closed}: start one there"):
            executors.RayExecutor(2, closed)
    assert addresses == ["local", "here", f"ray://{address}"]


def test_errors_of_ray_itself_break_the_executor():
    class RayError(Exception): ...

    class RayTaskError(RayError): ...

    class OutOfMemoryError(RayError): ...

    class WorkerCrashedError(RayError): ...

    kinds = (RayError, RayTaskError, OutOfMemoryError, WorkerCrashedError)
    exceptions = types.SimpleNamespace(**{kind.__name__: kind for kind in kinds})
    for error, expected in ((OutOfMemoryError(), BrokenExecutor), (RayTaskError(), RayTaskError)):
        ended = Future()
        ended.set_exception(error)
        task = types.SimpleNamespace(future=lambda ended=ended: ended)
        executor = object.__new__(executors.RayExecutor)
        executor._ray, executor._tasks = types.SimpleNamespace(exceptions=exceptions), []
        executor._remote = lambda fn, task=task: types.SimpleNamespace(remote=lambda: task)
        with pytest.raises(expected):
            executor.submit(print).result(timeout=1)


@pytest.mark.parametrize(
    "words",
    [
        ["probe", "contraction", "--model", "gpt2-tiny", "--seq-len", "8", "--num-inputs", "9"],
        ["fingerprint", "--outputs", "seed:0", "--out", "a"],
    ],
)
def test_processes_that_compute_together_are_refused_a_store(words, tmp_path, monkeypatch, capsys):
    several = ["--coordinator", "localhost:1", "--num-processes", "2", "--process-id", "0"]
    assert run([*words, "--resume", str(tmp_path / "ledger"), *several]) == 2
    assert "leave --resume out, or give --engine processes or start each process on its own" in capsys.readouterr().err
    monkeypatch.setattr(store.jax, "process_count", lambda: 2)
    store.check(None, local)
    for folder, engine in ((tmp_path / "ledger", local), (None, engine_named("processes"))):
        with pytest.raises(InputError, match="keep no store: leave --resume out"):
            store.check(folder, engine)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_processes_give_the_same_files_and_survive_a_killed_worker(tmp_path, capsys):
    """The worker that computes seed 7 first is killed by SIGKILL in the middle."""
    calm, tasks = task_store(tmp_path / "calm"), task_store(tmp_path / "shared", dies_at=7)
    _, expected = computed(calm)
    request = Request(FUNCTION, tasks.task.settings, CHUNKS, sources={"once": str(tmp_path / "once")})
    counter = Counter()
    values = fulfill(request, tasks.store.path, engine_named("processes", workers=2), counter)
    np.testing.assert_equal(dict(zip(CHUNKS, values, strict=True)), expected)
    assert (tmp_path / "once").exists() and "a worker died" in capsys.readouterr().err
    assert tasks.chunks() == set(CHUNKS) and counter.computed <= 60


def test_status_tells_progress_rate_and_failures(tmp_path, capsys):
    tasks, place = task_store(tmp_path / "deep" / "ledger"), str(tmp_path)
    tasks.open(CHUNKS)
    computed(tasks, CHUNKS[:4])
    tasks.fail(CHUNKS[5:], OSError("no room"))
    now = time.time()
    for seconds, chunk in zip((7200, 120, 60, 0), CHUNKS, strict=False):
        os.utime(tasks.path / chunk.name, (now - seconds, now - seconds))
    progress = status(place)
    assert (progress["done"], progress["asked"], progress["failed"]) == (4, 6, 1)
    (row,) = progress["pages"]
    assert row["per_minute"] == pytest.approx(1.0) and row["seconds_left"] == pytest.approx(120.0)
    assert row["same_code"] and row["failures"] == {CHUNKS[5].name: "OSError: no room"}
    assert run(["status", place]) == 0
    printed = capsys.readouterr().out
    assert "4 of 6" in printed and "no room" in printed and "2 min 00 s" in printed
    # Two blocks of two chunks, then one: files of a block are written in one go.
    for times, rate in (((60.05, 60, 0.05, 0), 2.0), ((0.15, 0.1, 0.05, 0), None)):
        for seconds, chunk in zip(times, CHUNKS, strict=False):
            os.utime(tasks.path / chunk.name, (now - seconds, now - seconds))
        assert status(place)["pages"][0]["per_minute"] == (rate and pytest.approx(rate, rel=1e-3))


def test_more_chunks_than_a_record_may_name_are_not_requested(tmp_path, monkeypatch):
    """The store that took them would call its own record corrupted."""
    monkeypatch.setattr(chunk_store, "MOST_REQUESTED", len(CHUNKS) - 1)
    with pytest.raises(InputError, match="6 chunks are more than 5: request fewer seeds, or larger ranges"):
        task_store(tmp_path / "store").open(CHUNKS)
    assert not (tmp_path / "store").exists()


def test_status_names_what_it_cannot_read(tmp_path):
    with pytest.raises(InputError, match="no store"):
        status(tmp_path)
    tasks = task_store(tmp_path)
    tasks.open(CHUNKS)
    path = tasks.path / chunk_store.TASK_FILE
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "code": "other"}))
    with pytest.raises(InputError, match=r"task\.json does not belong"):
        status(tmp_path)
    path.write_text(json.dumps(content))
    product = {"seeds": list(range(4000)), "ranges": [[start, start + 1] for start in range(4000)]}
    (tasks.path / "asked-0.json").write_text(json.dumps(product))
    with pytest.raises(InputError, match=r"asked-0\.json names more chunks than any call"):
        status(tmp_path)
    assert (tmp_path / MARKER).exists()
