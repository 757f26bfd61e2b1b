"""Make every record that needs a GPU, the most valuable first, for as many minutes as there are.

    python -m experiments.gpu --minutes 25 --out out/gpu

Repeat the command to resume: finished records stay. ``--scale smoke`` runs every step at a tiny size on a CPU;
``--wheels`` prints what to carry to a machine without registries.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bornbiased_jax import io, progress
from bornbiased_jax.experiments.lineage import settings as lineage
from bornbiased_jax.experiments.wheels import wheels
from bornbiased_jax.model.layers import HIGHEST
from bornbiased_jax.record import git_revision

ROOT = Path(__file__).resolve().parent.parent
GRACE = 10  # seconds from SIGTERM to SIGKILL


class Step(NamedTuple):
    """A benchmark, or experiments, in a process of its own."""

    name: str
    # Guessed for an H100, compilation counted: it starts with so many left, and may take three times as many.
    seconds: float
    words: str  # of its command; PRECISION stands for the fastest float32 products that keep a probe's numbers
    smoke: str = "--scale smoke"  # added at scale smoke: the last of equal options counts
    experiments: tuple[str, ...] = ()  # whose records it writes; none: it is a benchmark, and writes OUT/NAME.json


# Sizes in flight at which a GPU is busy: its compiler tries many kernels at the sizes of a program.
SWEEPS = "sweep_vs_torch --pairs 2 --batches 64 --loop-batches 64,256"
SWEEP = "--model llama-tiny --sequences 8 --length 16 --seeds 2 --pairs 1 --batches 4 --loop-batches 4 --chunk 2"
RATE = "training_rate --goal 0.45 --model llama-nano --context 2048 --batch-size 32 --dtype bfloat16"
BY_PRECISION = "--precision PRECISION"
# Of Table 1 what two cores take hours for, the shortest first.
ROWS = tuple(f"table1_{row}_{seed}" for row in ("c_256", "b_1024", "c_1024") for seed in (42, 43))
SECTION5 = "table4b table4c table5 table8 figure11 table10 table11 table12 figure14 figure12 table7"
PAIRS = tuple(f"table4a_llama_1024_{base}_{suspect}" for base, suspect in lineage.PAIRS["llama"])
STEPS = [
    Step("self_test", 40, "self_test", "--draws 20000"),
    Step("parity", 75, "parity --families gpt2,llama,qwen3,gemma3_text,mixtral,gpt_neox", "--families llama"),
    Step("products", 115, "products", "--model llama-tiny --num-inputs 8 --seq-len 8"),
    # Goals: 5 and 1.2 times the speed of the PyTorch loop, 45% of the rate of the training step's own products.
    Step("sweep_tiny", 300, f"{SWEEPS} --seeds 256 --chunk 32", SWEEP),
    Step("sweep_nano", 300, f"{SWEEPS} --seeds 32 --chunk 4 --model llama-nano", SWEEP),
    Step("training_rate", 120, RATE, "--model llama-tiny --context 16 --batch-size 2 --turns 1 --steps 1"),
    Step("seeds_at_once", 120, "seeds_at_once --seeds 8 --steps 16", "--seeds 2 --steps 1 --pairs 1 --context 16"),
    Step("table1", 180, BY_PRECISION, experiments=ROWS),
    Step("figure13", 120, "", experiments=("figure13_nano",)),
    Step("larger", 180, "--scale laptop", experiments=tuple(f"{name}_256" for name in SECTION5.split())),
    Step("by_step", 240, "", experiments=("fingerprints_by_step", "fingerprints_by_step_qwen")),
    Step("table4a", 240, BY_PRECISION, experiments=PAIRS),
    Step("finding2", 240, BY_PRECISION, experiments=("finding2",)),
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
            code = run_process(step, scale, out, min(left, 3 * step.seconds))
            outcome = "made" if is_finished(step, out) else "stopped" if code in (124, -9) else "failed"
        outcomes[step.name] = outcome
        progress.note(f"{step.name}: {outcome}")
    return outcomes


def is_finished(step: Step, out: Path) -> bool:
    """Return whether all of a step's records are there and complete."""
    paths = [out / "reproduce" / "records" / f"{name}.json" for name in step.experiments] or [out / f"{step.name}.json"]
    return all(path.exists() and io.read_json(path).get("status", "complete") == "complete" for path in paths)


def precision(out: Path) -> str:
    """Return the fastest float32 products that keep a probe's counts and cosines, as far as they were measured."""
    records = (folder / "products.json" for folder in (out, ROOT / "experiments" / "results" / "gpu"))
    path = next((path for path in records if path.exists()), None)
    rows = io.read_json(path)["algorithms"] if path else {}
    rates = {name: row["tflops"] for name, row in rows.items() if row.get("keeps")}
    return max(rates, key=rates.__getitem__, default=HIGHEST)


def run_process(step: Step, scale: str, out: Path, seconds: float) -> int:
    """Run a step's command with its output in ``OUT/logs``; return its exit code, 124 or -9 where its time was up."""
    words = f"benchmarks {step.words} --json OUT/{step.name}.json"
    if step.experiments:
        names = " ".join(step.experiments)
        words = f"bornbiased_jax reproduce {names} --out OUT/reproduce --quiet --scale paper {step.words}"
    words = f"{words} {step.smoke if scale == 'smoke' else ''}".replace("PRECISION", precision(out))
    command = ["timeout", f"--kill-after={GRACE}", f"{seconds:.1f}", sys.executable, "-m"]
    command += [word.replace("OUT", str(out.resolve())) for word in words.split()]
    # What one step compiled serves the next; the log says how long each program took to compile.
    environment = {"JAX_COMPILATION_CACHE_DIR": str(out.resolve() / "compiled"), "JAX_LOG_COMPILES": "1", **os.environ}
    if step.experiments:
        # Steps of other calls may run beside it, and nothing is timed.
        environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    environment["JAX_PLATFORMS"] = "cpu" if scale == "smoke" else "cuda,cpu"
    (out / "logs").mkdir(parents=True, exist_ok=True)
    with (out / "logs" / f"{step.name}.txt").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        try:
            return process.wait()
        finally:
            process.terminate()  # which ends its command and workers too


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code, 1 where a step failed."""
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=25.0, help="Of the whole call.")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="Records, logs and runs, also earlier ones.")
    parser.add_argument("--steps", help="Only these, by commas.")
    parser.add_argument("--scale", choices=["gpu", "smoke"], default="gpu")
    parser.add_argument("--wheels", action="store_true", help="Print what a machine without registries needs.")
    options = parser.parse_args(arguments)
    if options.wheels:
        print("\n".join(wheels()))
        return 0
    if git_revision() is None:
        parser.error("no git here: set BORNBIASED_REVISION to the commit, so that records name their code")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    names = [step.name for step in STEPS]
    wanted = names if options.steps is None else options.steps.split(",")
    if unknown := [name for name in wanted if name not in names]:
        parser.error(f"no step {unknown[0]!r}: choose some of {', '.join(names)}")
    steps = [step for step in STEPS if step.name in wanted]
    try:
        return int("failed" in run(steps, options.scale, options.out, options.minutes).values())
    except KeyboardInterrupt:
        print("stopped: the same command makes what is missing, finished records stay", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
