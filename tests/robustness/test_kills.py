"""Commands killed or interrupted at random moments end as if nothing had happened; disks of every size fill.

What runs here are whole processes, many of them: none of it to ``make test``.
"""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bornbiased_jax.chunk_store import Chunk
from bornbiased_jax.io import MARKER
from bornbiased_jax.record import lasting
from bornbiased_jax.training.checkpoint import find_steps
from tests.robustness.process import TINY, UNTRAINED, start

pytestmark = pytest.mark.slow

# A search by hand takes more of them.
MOMENTS = int(os.environ.get("KILL_MOMENTS", 3))
WORKERS = ["--engine", "processes", "--workers", "2"]


class Command(NamedTuple):
    """A command that writes ``place``, and what of that must be the same however it came about."""

    words: Callable[[Path], list[str]]
    outcome: Callable[[Path], Any]


def by_name(folder: Path) -> dict[str, bytes]:
    """Every file but the marker, whose lines tell of attempts as well."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MARKER
    }


def probed(place: Path) -> Any:
    return json.loads((place / "found.json").read_text())["records"], by_name(place / "kept")


def reproduced(place: Path) -> Any:
    records = {path.name: lasting(json.loads(path.read_text())) for path in (place / "out" / "records").glob("*.json")}
    return records, (place / "out" / "index.html").exists()


def trained(place: Path) -> Any:
    run = place / "run"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((place / "summary.json").read_text())
    message = {name: summary[name] for name in ("digests", "loss", "validation_loss", "step", "finished")}
    # A run knows where it lies and what it read: the same run elsewhere has other paths.
    record = json.loads((run / "run.json").read_text().replace(str(place), "place"))
    return lasting(record), [lasting(line) for line in lines], find_steps(run), message


def probe(place: Path, *sizes: str, json_file: str = "found.json") -> list[str]:
    call = ["probe", "preference", *UNTRAINED, *sizes, "--seq-len", "8", "--quiet", "--resume", str(place / "kept")]
    return [*call, "--json", str(place / json_file)]


COMMANDS = {
    "probe": Command(lambda place: probe(place, "--seeds", "0:6", "--num-inputs", "64"), probed),
    "workers": Command(lambda place: [*probe(place, "--seeds", "0:6", "--num-inputs", "64"), *WORKERS], probed),
    "export": Command(lambda place: ["export", f"seed:1@{TINY}", str(place / "model")], lambda p: by_name(p / "model")),
    "fingerprint": Command(
        lambda place: ["fingerprint", "--outputs", f"seed:1@{TINY}", "--num-inputs", "64", "--seq-len", "8", "--quiet",
                       "--out", str(place / "a.fingerprint")],
        by_name,
    ),
    "reproduce": Command(
        lambda place: ["reproduce", "table3", "figure2", "--scale", "smoke", "--quiet", "--out", str(place / "out")],
        reproduced,
    ),
    "pretrain": Command(
        lambda place: ["pretrain", *UNTRAINED, "--quiet", "--data", str(place / "text.txt"), "--tokenizer", "bytes",
                       "--steps", "30", "--seeds", "1,2", "--context", "16", "--batch-size", "4", "--warmup", "2",
                       "--no-tensorboard", "--checkpoint-every", "4", "--keep-latest", "2", "--eval-sequences", "4",
                       "--token-cache", str(place / "tokens"), "--out", str(place / "run"),
                       "--json", str(place / "summary.json")],
        trained,
    ),
}  # fmt: skip


def begin(command: Command, place: Path, most_bytes: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command in a folder, with a text for those that train."""
    place.mkdir(exist_ok=True)
    lines = (f"the bird and the river, number {number}, under the sun" for number in range(200))
    if "pretrain" in command.words(place):
        (place / "text.txt").write_text("\n\n".join(lines))
    return start(command.words(place), most_bytes)


def end(process: subprocess.Popen[bytes]) -> str:
    """Wait for a process; what it says of an error, which is a sentence."""
    error = process.communicate(timeout=600)[1].decode()
    assert "Traceback" not in error
    return error


class Calm(NamedTuple):
    """The undisturbed result of a command, its time, and the sizes of the files that it writes."""

    outcome: Any
    seconds: float
    sizes: list[int]


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """Each command undisturbed; run when asked for."""
    outcomes: dict[str, Calm] = {}

    def of(name: str) -> Calm:
        if name not in outcomes:
            place, begun = tmp_path_factory.mktemp(name), time.perf_counter()
            finish(COMMANDS[name], place)
            seconds = time.perf_counter() - begun
            sizes = {path.stat().st_size for path in place.rglob("*") if path.is_file()} - {0}
            outcomes[name] = Calm(COMMANDS[name].outcome(place), seconds, sorted(sizes))
        return outcomes[name]

    return of


def finish(command: Command, place: Path, expected: Any = None) -> None:
    """Run a command to its end: the folder holds what an undisturbed run writes, and nothing of a killed write."""
    error = end(process := begin(command, place))
    assert process.returncode == 0, error
    assert expected is None or command.outcome(place) == expected
    assert [str(path) for path in place.rglob("*.part")] == []


# More often than each night: the one that writes a folder. A training run is killed by tests/golden, too.
SIGNALS = [
    pytest.param(name, number, marks=() if (name, number) == ("export", signal.SIGKILL) else pytest.mark.nightly)
    for number in (signal.SIGKILL, signal.SIGINT)
    for name in COMMANDS
]


@pytest.mark.parametrize(("name", "number"), SIGNALS)
def test_signals_at_random_moments_leave_no_trace(calm, tmp_path, name, number):
    """Killed all over the run, interrupted in its first three seconds."""
    command, place, (expected, seconds, _) = COMMANDS[name], tmp_path / "0", calm(name)
    longest = seconds if number == signal.SIGKILL else 3
    chance, signaled, ended = random.Random(name), 0, 0
    while signaled < MOMENTS:
        # In longer and longer stretches: what is kept makes the next start shorter.
        process = begin(command, place)
        try:
            process.wait(chance.uniform(0, longest * (signaled + 1) / MOMENTS))
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        error = end(process)
        if process.returncode == 0:
            # It ended before its moment: whole in spite of the signals before. Again from nothing, with earlier
            # moments, for the machine may be less busy than it was for the undisturbed run.
            finish(command, place, expected)
            ended, longest = ended + 1, 0.75 * longest
            place = tmp_path / str(ended)
            continue
        signaled += 1
        assert process.returncode == {signal.SIGKILL: -signal.SIGKILL, signal.SIGINT: 130}[number], error
        assert number == signal.SIGKILL or "bornbiased: interrupted" in error.strip().splitlines()[-1]
    finish(command, place, expected)


@pytest.mark.nightly
@pytest.mark.parametrize("name", COMMANDS)
def test_a_disk_that_fills_leaves_nothing_half_written(calm, tmp_path, name):
    """No file may grow beyond a size: none at all, and just below the middle and the largest of the files written."""
    expected, _, sizes = calm(name)
    command, place, codes = COMMANDS[name], tmp_path / "place", set()
    for most in sorted({1, sizes[len(sizes) // 2] - 1, sizes[-1] - 1}):
        error = end(process := begin(command, place, most))
        codes.add(process.returncode)
        assert process.returncode == 0 or "File too large" in error.splitlines()[-1]
    assert 2 in codes <= {0, 2}
    finish(command, place, expected)


def workers_of(process: subprocess.Popen[bytes]) -> set[int]:
    """The worker processes that a driver started (Linux)."""
    with contextlib.suppress(OSError):
        lists = [path.read_text() for path in Path(f"/proc/{process.pid}/task").glob("*/children")]
        numbers = [number for text in lists for number in text.split()]
        return {int(number) for number in numbers if b"spawn_main" in Path(f"/proc/{number}/cmdline").read_bytes()}
    return set()


def is_alive(number: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.nightly
def test_killed_workers_and_drivers_of_one_store_lose_nothing(tmp_path):
    """Two drivers with two worker processes each; in turn a driver and one of its workers is killed."""
    sizes = ["--seeds", f"0:{64 * MOMENTS}", "--num-inputs", "512", "--batch-size", "16", "--range", "128"]
    chance, orphans, killed, drivers = random.Random(0), set[int](), [0, 0], list[subprocess.Popen[bytes]]()
    calm = Command(lambda place: probe(place, *sizes), probed)
    finish(calm, tmp_path / "calm")
    expected, store, num_chunks = calm.outcome(tmp_path / "calm"), tmp_path / "place" / "kept", 0
    workers = Command(lambda place: [*probe(place, *sizes), *WORKERS], probed)
    with contextlib.ExitStack() as stack:
        while sum(killed) < 2 * MOMENTS:
            while len(drivers) < 2:
                drivers.append(begin(workers, tmp_path / "place"))
                stack.callback(drivers[-1].kill)
            time.sleep(chance.uniform(0, 1))
            # A driver gives up where nothing is done between several deaths of its workers: on a busy machine a
            # worker may take longer to start than it lived before.
            if len(list(store.rglob("*.npz"))) == num_chunks:
                continue
            num_chunks = len(list(store.rglob("*.npz")))
            victim = chance.choice(drivers)
            below = workers_of(victim)
            assert victim.poll() is None, "all of them before the last chunk is there"
            if below and killed[0] <= killed[1]:
                os.kill(chance.choice(sorted(below)), signal.SIGKILL)
                killed[0] += 1
            else:
                orphans |= below
                victim.kill()
                end(victim)
                drivers.remove(victim)
                killed[1] += 1
        for driver in drivers:
            assert end(driver) is not None and driver.returncode == 0
    finish(workers, tmp_path / "place", expected)
    assert all(Chunk.named(path.name) for path in store.rglob("*.npz"))
    # A worker whose driver was killed goes too; a second or two for the system to tell it.
    deadline = time.monotonic() + 30
    while any(map(is_alive, orphans)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not [number for number in orphans if is_alive(number)]
