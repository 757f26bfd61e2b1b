"""Workers and drivers of one ledger killed at random moments: nothing is lost, nothing counted twice."""

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from bornbiased_jax.chunk_store import Chunk
from tests.robustness.process import UNTRAINED, start

pytestmark = pytest.mark.slow

# A search by hand takes more of them.
KILLS = int(os.environ.get("KILLS", 6))
SEEDS = 32 * KILLS
CALL = ["probe", "preference", *UNTRAINED, "--quiet"]
CALL += ["--seeds", f"0:{SEEDS}", "--num-inputs", "512", "--seq-len", "32", "--batch-size", "16", "--range", "128"]


def begin(place: Path, number: int, *further: str) -> subprocess.Popen[bytes]:
    return start([*CALL, "--resume", str(place), "--json", f"{place}{number}.json", *further])


def end(process: subprocess.Popen[bytes]) -> int:
    """Wait for a driver; its exit code. What it says of an error that was none of ours is shown."""
    _, error = process.communicate(timeout=600)
    print(error.decode())
    return process.returncode


def workers(process: subprocess.Popen[bytes]) -> list[int]:
    """The worker processes that a driver started (Linux)."""
    processes = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process.pid and b"spawn_main" in (folder / "cmdline").read_bytes():
                processes.append(int(folder.name))
        except OSError:
            continue
    return processes


def alive(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def records(place: Path, number: int):
    return json.loads(Path(f"{place}{number}.json").read_text())["records"]


def files(place: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in place.rglob("*.npz")}


@pytest.fixture
def drivers():
    """Those at work; none outlives its test."""
    at_work: list[subprocess.Popen[bytes]] = []
    yield at_work
    for driver in at_work:
        driver.kill()
        driver.communicate()


@pytest.mark.nightly
def test_killed_workers_and_drivers_lose_nothing(tmp_path, drivers):
    """Two drivers with two worker processes each; in turn a driver and one of its workers is killed."""
    calm, place = tmp_path / "calm", tmp_path / "place"
    assert end(begin(calm, 0)) == 0
    chance, workers_killed, drivers_killed, started = random.Random(0), 0, 0, 0
    engine = ("--engine", "processes", "--workers", "2")
    orphans: set[int] = set()
    there = 0
    while workers_killed + drivers_killed < KILLS and len(files(place)) < len(files(calm)):
        while len(drivers) < 2:
            started += 1
            drivers.append(begin(place, started, *engine))
        time.sleep(chance.uniform(0, 1))
        # A driver gives up where nothing is done between several deaths of its workers: on a busy machine a worker
        # may take longer to start than it lived before.
        if len(files(place)) == there:
            continue
        there = len(files(place))
        victim = chance.choice(drivers)
        below = workers(victim)
        if workers_killed <= drivers_killed and below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(below), signal.SIGKILL)
                workers_killed += 1
        elif victim.poll() is None:
            orphans |= set(below)
            victim.kill()
            drivers_killed += 1
        for driver in [driver for driver in drivers if driver.poll() is not None]:
            drivers.remove(driver)
            assert end(driver) in (0, -signal.SIGKILL)
    for driver in drivers:
        assert end(driver) in (0, -signal.SIGKILL)
    # All of them, before the last chunk was there.
    assert workers_killed + drivers_killed == KILLS and min(workers_killed, drivers_killed) >= KILLS // 4
    assert end(begin(place, started + 1, *engine)) == 0
    assert records(place, started + 1) == records(calm, 0)
    assert files(place) == files(calm) and len(files(place)) == 4 * SEEDS
    assert all(Chunk.named(name) for name in files(place))
    # A worker whose driver was killed goes too; a second or two for the system to tell it.
    deadline = time.monotonic() + 30
    while any(alive(number) for number in orphans) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not [number for number in orphans if alive(number)]
