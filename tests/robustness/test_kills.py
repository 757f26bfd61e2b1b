"""Commands killed or interrupted at random moments end as if nothing had happened; disks of every size fill.

What runs here are whole processes, many of them: none of it to ``make test``.
"""

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

from bornbiased_jax.io import MARKER
from bornbiased_jax.record import lasting
from bornbiased_jax.training.checkpoint import find_steps
from tests.robustness.process import TINY, UNTRAINED, start
from tests.tiers import nightly_except

pytestmark = pytest.mark.slow

# A search by hand takes more of them.
MOMENTS = int(os.environ.get("KILL_MOMENTS", 3))


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
    records = json.loads((place / "found.json").read_text())["records"]
    return records, by_name(place / "kept")


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


COMMANDS = {
    "probe": Command(
        lambda place: ["probe", "preference", *UNTRAINED, "--seeds", "0:6", "--num-inputs", "64", "--seq-len", "8",
                       "--quiet", "--resume", str(place / "kept"), "--json", str(place / "found.json")],
        probed,
    ),
    "export": Command(lambda place: ["export", f"seed:1@{TINY}", str(place / "model")], lambda p: by_name(p / "model")),
    "fingerprint": Command(
        lambda place: ["fingerprint", "--outputs", f"seed:1@{TINY}", "--num-inputs", "64", "--seq-len", "8", "--quiet",
                       "--out", str(place / "a.fingerprint")],
        by_name,
    ),
    "reproduce": Command(
        lambda place: ["reproduce", "table3", "figure2", "--scale", "smoke", "--quiet",
                       "--out", str(place / "out")],
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
# More often than each night: the one that writes a folder. A training run is killed by tests/golden, too.
NAMES = nightly_except(COMMANDS, "export")


def begin(command: Command, place: Path, most_bytes: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command in a folder, with a text for those that train."""
    place.mkdir(exist_ok=True)
    text = place / "text.txt"
    if "pretrain" in command.words(place) and not text.exists():
        text.write_text("\n\n".join(f"the bird and the river, number {number}, under the sun" for number in range(200)))
    return start(command.words(place), most_bytes)


def finish(command: Command, place: Path) -> float:
    """Run a command to its end; the seconds that it took."""
    start = time.perf_counter()
    _, error = (process := begin(command, place)).communicate(timeout=600)
    assert process.returncode == 0, error.decode()
    return time.perf_counter() - start


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
            place = tmp_path_factory.mktemp(name)
            seconds = finish(COMMANDS[name], place)
            sizes = {path.stat().st_size for path in place.rglob("*") if path.is_file()} - {0}
            outcomes[name] = Calm(COMMANDS[name].outcome(place), seconds, sorted(sizes))
        return outcomes[name]

    return of


def check_outcome(command: Command, place: Path, expected: Any) -> None:
    """Check that a folder holds what an undisturbed run writes, and nothing of a killed write."""
    assert command.outcome(place) == expected
    assert [str(path) for path in place.rglob("*.part")] == []


@pytest.mark.parametrize("name", NAMES)
def test_kills_leave_no_trace(calm, tmp_path, name):
    expected, seconds, _ = calm(name)
    chance, killed, ended = random.Random(name), 0, 0
    command, place = COMMANDS[name], tmp_path / "0"
    while killed < MOMENTS:
        # Spread over the run, in longer and longer stretches: what is kept makes the next start shorter.
        process = begin(command, place)
        try:
            process.wait(chance.uniform(0, seconds * (killed + 1) / MOMENTS))
        except subprocess.TimeoutExpired:
            process.kill()
        process.communicate()
        assert process.returncode in (0, -signal.SIGKILL)
        if process.returncode:
            killed += 1
            continue
        # It ended before its moment: whole in spite of the kills before. Again from nothing, with earlier moments, for
        # the machine may be less busy than it was for the undisturbed run.
        check_outcome(command, place, expected)
        ended += 1
        seconds *= 0.75
        place = tmp_path / str(ended)
    finish(command, place)
    check_outcome(command, place, expected)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_interrupts_in_the_first_seconds_end_as_130(calm, tmp_path, name):
    expected = calm(name).outcome
    chance = random.Random(name)
    command, place = COMMANDS[name], tmp_path / "place"
    for _ in range(MOMENTS):
        process = begin(command, place)
        try:
            process.wait(chance.uniform(0, 3))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=600)
        lines = error.decode().strip().splitlines()
        assert process.returncode in (0, 130), error.decode()
        assert process.returncode == 0 or "bornbiased: interrupted" in lines[-1], error.decode()
        assert "Traceback" not in error.decode()
    finish(command, place)
    check_outcome(command, place, expected)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_disk_that_fills_leaves_nothing_half_written(calm, tmp_path, name):
    """No file may grow beyond a size: none at all, and just below the middle and the largest of the files written."""
    expected, _, sizes = calm(name)
    command, place = COMMANDS[name], tmp_path / "place"
    failed = 0
    for most in sorted({1, sizes[len(sizes) // 2] - 1, sizes[-1] - 1}):
        process = begin(command, place, most)
        _, error = process.communicate(timeout=600)
        assert process.returncode in (0, 2), error.decode()
        assert "Traceback" not in error.decode()
        failed += process.returncode == 2
    assert failed
    finish(command, place)
    check_outcome(command, place, expected)
