"""Kill a pretraining run again and again, and show that it ends as if nothing had happened.

    python -m benchmarks kill_resume --kills 20

A small run is trained once without interruption. The same command is then started again and again and killed with
SIGKILL at random moments, every other time while a checkpoint is being written, until the kills are used up; the last
start finishes it. Held against the first run are every line's losses, bit by bit, and the digests of the final weights.
Takes a few minutes on two cores. Exit status 0: equal; 1: not.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recorded import Findings, command
from benchmarks.tables import facts
from bornbiased_jax.training.metrics import read_metrics

POLL_SECONDS = 0.001
MODEL = "num_layers=2,num_heads=2,d_model=32,d_ff=64,vocab_size=256"
RUN = (
    "--model llama-tiny --data builtin:code --tokenizer bytes --seeds 42,123 --data-seed 5 --context 32 --batch-size 4 "
    "--warmup 5 --checkpoint-every 7 --keep-latest 3 --no-tensorboard --quiet --json -"
)


def start(out: Path, steps: int) -> subprocess.Popen[str]:
    """Start the run in a process of its own."""
    words = [*RUN.split(), "--steps", str(steps), "--out", str(out), "--token-cache", str(out.parent / "tokens")]
    words += [word for change in MODEL.split(",") for word in ("--set", change)]
    # Compilation is most of a start's time and the same every time.
    environment = {"JAX_COMPILATION_CACHE_DIR": str(out.parent / "compiled"), **os.environ, "JAX_PLATFORMS": "cpu"}
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    command_line = [sys.executable, "-m", "bornbiased_jax", "pretrain", *words]
    return subprocess.Popen(command_line, env=environment, stdout=subprocess.PIPE, text=True)


def finish(out: Path, steps: int) -> Findings:
    """Start the run and let it end; return its summary."""
    process = start(out, steps)
    printed, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the run failed with exit status {process.returncode}")
    return json.loads(printed)


def lines(out: Path) -> int:
    """Count the steps that the run has logged."""
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def is_writing(out: Path) -> bool:
    """Return whether a checkpoint is being written at this moment."""
    try:
        return any("tmp" in name for name in os.listdir(out / "checkpoints"))
    except FileNotFoundError:
        return False


def kill_once(out: Path, steps: int, after: int, during_write: bool) -> bool:
    """Start the run and kill it ``after`` further logged steps, and while it writes where that is asked for.

    Returns:
        Whether it was killed; False when it ended before.
    """
    process = start(out, steps)
    fewest = lines(out)
    while process.poll() is None:
        # A resumed run cuts its log back first, so count from the lowest seen.
        logged = lines(out)
        fewest = min(fewest, logged)
        if logged - fewest >= after and (not during_write or is_writing(out)):
            process.kill()
            break
        time.sleep(POLL_SECONDS)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def losses(out: Path) -> list[tuple[int, list[float]]]:
    """Read step and losses of every logged line."""
    return [(line["step"], line["loss"]) for line in read_metrics(out)]


def measure(folder: Path, kills: int = 20, steps: int = 400, seed: int = 0) -> Findings:
    """Kill a pretraining run again and again, and compare it with one that was not.

    Args:
        folder: For both runs.
        kills: How often.
        steps: Of the run.
        seed: Of the random moments.
    """
    chance = random.Random(seed)
    during_writes = []
    calm, killed = folder / "calm", folder / "killed"
    expected = finish(calm, steps)
    for number in range(kills):
        during_write = number % 2 == 1
        after = chance.randint(0, max(1, 2 * (steps - lines(killed)) // (kills - number + 1)))
        if kill_once(killed, steps, after, during_write):
            during_writes.append(during_write)
    summary = finish(killed, steps)
    return {
        "kills": len(during_writes),
        "kills_during_a_write": sum(during_writes),
        "steps": steps,
        "losses_equal": losses(calm) == losses(killed),
        "digests_equal": expected["digests"] == summary["digests"],
        "digests": summary["digests"],
    }


tables = functools.partial(
    facts,
    title="A run killed with SIGKILL at random moments and resumed each time",
    rows={
        "kills, of them while a checkpoint was written": "{kills}, {kills_during_a_write}",
        "losses of {steps} steps equal, bit for bit": "{losses_equal}",
        "digests of the weights equal": "{digests_equal}",
    },
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print; exit with 1 where the runs differ."""
    record = command(measure, arguments, lambda seed, **_: {"seed_of_moments": seed})
    if not (record["losses_equal"] and record["digests_equal"]):
        sys.exit(1)
