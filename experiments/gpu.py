"""Make every record that needs a GPU, the most valuable first, for as many minutes as there are.

    python -m experiments.gpu --minutes 25 --out out/gpu

Repeat the command to go on: finished records stay. ``--scale smoke`` runs every step at a tiny size on a CPU;
``--wheels`` prints what to carry to a machine without registries.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from bornbiased_jax import io, progress
from bornbiased_jax.experiments.birth import table1
from bornbiased_jax.experiments.lineage import table4a
from bornbiased_jax.record import git_revision

ROOT = Path(__file__).resolve().parent.parent
GRACE = 45  # seconds from SIGTERM to SIGKILL: a checkpoint of four models is gigabytes
PYTHON = {"python_version": "3.12", "python_full_version": "3.12.0"}
CUDA = ("jax-cuda13-plugin", "jax-cuda13-pjrt")


class Step(NamedTuple):
    """A command that writes one record, in a process of its own."""

    name: str
    seconds: float  # guessed for an H100: it starts only with so many left, and may take four times as many or 300
    command: str  # after ``python -m``; OUT stands for the output folder
    smoke: str  # added at scale smoke: the last of equal options counts


REPRODUCE = "bornbiased_jax reproduce {} --out OUT/reproduce --quiet --scale paper"
EXPERIMENTS = {
    **dict.fromkeys(table1.ROWS, 180),
    "finding2": 300,  # about a thousand in all: each seed is kept
    **{f"table4a_llama_1024_{base}_{suspect}": 240 for base, suspect in table4a.PAIRS["llama"]},
}
PRETRAIN = (
    "bornbiased_jax pretrain --model {0}-nano --data builtin:prose --seeds 42,123,1000,2000 --schedule paper "
    "--steps 400 --warmup 40 --batch-size 16 --accumulation 1 --tokenizer bpe:4096 --out OUT/{0} --json OUT/{0}.json"
)
SMALL_RUN = "--model {}-tiny --seeds 42,123 --context 16 --batch-size 2 --tokenizer bytes --steps 2 --warmup 1"
RATE = "training_rate --goal 0.45 --model llama-nano --context 2048 --batch-size 32 --dtype bfloat16"
SMALL_SWEEP = "--model llama-tiny --sequences 8 --length 16 --seeds 2 --pairs 1 --batches 4"
BENCHMARKS = [
    ("self_test", 60, "self_test", "--draws 20000"),
    ("parity", 120, "parity", "--families llama"),
    ("products", 90, "products", "--model llama-tiny --num-inputs 8 --seq-len 8"),
    # Goals: 5 and 1.2 times the speed of the PyTorch loop, 45% of the rate of the training step's own products.
    ("sweep_tiny", 120, "sweep_vs_torch --seeds 256 --pairs 3 --batches 32,64,128,256", SMALL_SWEEP),
    ("sweep_nano", 150, "sweep_vs_torch --seeds 32 --pairs 2 --batches 32,64,128 --model llama-nano", SMALL_SWEEP),
    ("training_rate", 90, RATE, "--model llama-tiny --context 16 --batch-size 2 --turns 1 --steps 1"),
    ("seeds_at_once", 90, "seeds_at_once --seeds 8 --steps 16", "--seeds 2 --steps 1 --pairs 1 --context 16"),
]
STEPS = [
    *(Step(name, guess, f"benchmarks {words} --json OUT/{name}.json", tiny) for name, guess, words, tiny in BENCHMARKS),
    *(Step(name, guess, REPRODUCE.format(name), "--scale smoke") for name, guess in EXPERIMENTS.items()),
    *(Step(family, 240, PRETRAIN.format(family), SMALL_RUN.format(family)) for family in ("llama", "qwen")),
]


def run(steps: list[Step], scale: str, out: Path, minutes: float) -> dict[str, str]:
    """Run what is not finished and fits; return each step's outcome: there, made, stopped, failed or no time."""
    end = time.monotonic() + 60 * minutes - GRACE
    outcomes = {}
    for step in steps:
        left = end - time.monotonic()
        if is_finished(step, out):
            outcome = "there"
        elif left < (step.seconds if scale == "gpu" else 1):
            outcome = "no time"
        else:
            code = run_process(step, scale, out, min(left, max(300, 4 * step.seconds)))
            outcome = "made" if is_finished(step, out) else "stopped" if code in (124, -9) else "failed"
        outcomes[step.name] = outcome
        progress.note(f"{step.name}: {outcome}")
    return outcomes


def is_finished(step: Step, out: Path) -> bool:
    """Return whether a step's record is there, complete, and of a run that reached its end."""
    paths = [out / f"{step.name}.json", out / "reproduce" / "records" / f"{step.name}.json"]
    records = [io.read_json(path) for path in paths if path.exists()]
    return any(row.get("status", "complete") == "complete" and row.get("finished", True) for row in records)


def run_process(step: Step, scale: str, out: Path, seconds: float) -> int:
    """Run a step's command with its output in ``OUT/logs``; return its exit code, 124 or -9 where its time was up."""
    words = f"{step.command} {step.smoke if scale == 'smoke' else ''}".split()
    command = ["timeout", f"--kill-after={GRACE}", f"{seconds:.1f}", sys.executable, "-m"]
    command += [word.replace("OUT", str(out.resolve())) for word in words]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu" if scale == "smoke" else "cuda,cpu"}
    (out / "logs").mkdir(parents=True, exist_ok=True)
    with (out / "logs" / f"{step.name}.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            return process.wait()
        finally:
            process.terminate()  # which ends its command and workers too


def wheels() -> list[str]:
    """List pinned distributions that the steps need on Linux with Python 3.12, but for CUDA's libraries and PyTorch."""
    rows = [Requirement(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    pins = {str(canonicalize_name(r.name)): r.specifier for r in rows if r.marker is None or r.marker.evaluate(PYTHON)}
    requires = {canonicalize_name(each.name): each.requires or () for each in metadata.distributions()}
    waiting = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"] + ["transformers"]
    needed: dict[str, set[str]] = {}
    for row in map(Requirement, waiting):  # it grows while it is read
        extras = {"", *row.extras} - needed.setdefault(canonicalize_name(row.name), set())
        needed[canonicalize_name(row.name)] |= extras
        for text in requires.get(canonicalize_name(row.name), ()):
            marker = Requirement(text).marker
            if any(marker is None or marker.evaluate({**PYTHON, "extra": extra}) for extra in extras):
                waiting.append(text)
    return [f"{name}{pins[name]}" for name in sorted(needed)] + [f"{name}{pins['jax']}" for name in CUDA]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code, 1 where a step failed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=25.0, help="Of the whole call.")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="Records, logs and runs, also earlier ones.")
    parser.add_argument("--scale", choices=["gpu", "smoke"], default="gpu")
    parser.add_argument("--wheels", action="store_true", help="Print what a machine without registries needs.")
    options = parser.parse_args(arguments)
    if options.wheels:
        print("\n".join(wheels()))
        return 0
    if git_revision() is None:
        parser.error("no git here: set BORNBIASED_REVISION to the commit, so that records name their code")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return int("failed" in run(STEPS, options.scale, options.out, options.minutes).values())


if __name__ == "__main__":
    sys.exit(main())
