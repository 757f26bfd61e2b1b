"""Kill a pretraining run again and again, and show that it ends as if nothing had happened.

    python -m benchmarks.kill_resume --kills 20

A small run is trained once without interruption. The same run is then started again and again and killed
with SIGKILL at random moments, every other time while a checkpoint is being written, until the kills are used
up; the last start finishes it. Held against the first run are every line's losses, bit by bit, and the digests
of the final weights. Takes a few minutes on two cores. Exit status 0: equal; 1: not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
POLL_SECONDS = 0.001


def child(out: Path, steps: int) -> None:
    """Start the run once, in this process; print its summary."""
    from bornbiased_jax.config import preset
    from bornbiased_jax.training import PretrainConfig, pretrain

    cfg = preset("llama-tiny", num_layers=2, num_heads=2, d_model=32, d_ff=64, vocab_size=256)
    config = PretrainConfig(
        model=cfg, data="builtin:code", tokenizer="bytes", out=str(out), seeds=(42, 123), data_seed=5, steps=steps,
        context=32, batch_size=4, warmup=5, checkpoint_every=7, keep_latest=3, tensorboard=False, quiet=True,
        token_cache=str(out.parent / "tokens"),
    )  # fmt: skip
    print(json.dumps(pretrain(config)))


def start(out: Path, steps: int) -> subprocess.Popen[str]:
    """Start the run in a process of its own."""
    command = [sys.executable, __file__, "--child", str(out), "--steps", str(steps)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
        "JAX_PLATFORMS": "cpu",
    }
    # Compilation is most of a start's time and the same every time.
    environment.setdefault("JAX_COMPILATION_CACHE_DIR", str(out.parent / "compiled"))
    environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def finish(out: Path, steps: int) -> dict[str, Any]:
    """Start the run and let it end; return its summary."""
    process = start(out, steps)
    printed, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the run failed with exit status {process.returncode}")
    return json.loads(printed.splitlines()[-1])


def lines(out: Path) -> int:
    """Count the steps that the run has logged."""
    path = out / "metrics.jsonl"
    try:
        return path.read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def writing(out: Path) -> bool:
    """Return whether a checkpoint is being written at this moment."""
    try:
        return any("tmp" in name for name in os.listdir(out / "checkpoints"))
    except FileNotFoundError:
        return False


def kill_once(out: Path, steps: int, after: int, during_write: bool) -> bool:
    """Start the run and kill it ``after`` further logged steps (and while it writes, if asked to).

    Returns:
        Whether it was killed; False when it ended before.
    """
    process = start(out, steps)
    before = lines(out)
    try:
        while process.poll() is None:
            # A resumed run cuts its log back first, so count from the lowest seen.
            have = lines(out)
            before = min(before, have)
            if have - before >= after and (not during_write or writing(out)):
                process.send_signal(signal.SIGKILL)
                process.wait()
                return True
            time.sleep(POLL_SECONDS)
        return False
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def losses(out: Path) -> list[tuple[int, list[float]]]:
    """Read step and losses of every logged line."""
    logged = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"]) for line in logged]


def compare(folder: Path, kills: int, steps: int, seed: int) -> dict[str, Any]:
    """Run the experiment; return the counts and whether both runs ended alike."""
    calm = finish(folder / "calm", steps)
    chance = random.Random(seed)
    killed = killed_writing = 0
    out = folder / "killed"
    for number in range(kills):
        during_write = number % 2 == 1
        after = chance.randint(0, max(1, 2 * (steps - lines(out)) // (kills - number + 1)))
        if kill_once(out, steps, after, during_write):
            killed += 1
            killed_writing += during_write
    last = finish(out, steps)
    calm_losses, last_losses = losses(folder / "calm"), losses(out)
    return {
        "kills_asked_for": kills,
        "kills": killed,
        "kills_during_a_write": killed_writing,
        "steps": steps,
        "losses_equal": calm_losses == last_losses,
        "lines": len(last_losses),
        "digests_equal": calm["digests"] == last["digests"],
        "digests": last["digests"],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--json", type=Path, help="also write the outcome here")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child is not None:
        child(options.child, options.steps)
        return 0
    from benchmarks.recorded import run

    with tempfile.TemporaryDirectory() as folder:
        result = run(
            lambda: compare(Path(folder), options.kills, options.steps, options.seed),
            options.json,
            seed_of_moments=options.seed,
        )
    return 0 if result["losses_equal"] and result["digests_equal"] else 1


if __name__ == "__main__":
    sys.exit(main())
