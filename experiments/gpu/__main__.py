"""``python -m experiments.gpu --minutes 9 --out DIR``: everything that needs a GPU, as far as the time goes.

    python -m experiments.gpu --minutes 9 --out out/gpu --archive gpu.tar.gz
    python -m experiments.gpu --wheels [LIST]
    python -m experiments.gpu --collect out/gpu

The first may be typed again, also on another machine with the archive of an earlier call as ``DIR/gpu.tar.gz``: what
stands stays. The second prints what a machine without registries lacks. The third copies finished records to
experiments/results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bornbiased_jax.errors import InputError
from bornbiased_jax.record import REVISION_VARIABLE, git_revision
from experiments.gpu import archive, drive
from experiments.gpu.collect import collect
from experiments.gpu.measured import SCALES
from experiments.gpu.steps import STEPS, Step
from experiments.gpu.wheels import wheels


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; its exit code: 0 also where the time was up, 1 where a step failed, 2 where the call is at fault."""
    begun = time.monotonic()
    options = _parser().parse_args(arguments)
    try:
        if options.wheels is not None:
            print("\n".join(wheels(Path(options.wheels).read_text().splitlines() if options.wheels else ())))
            return 0
        if options.collect is not None:
            for path in collect(options.collect):
                print(path.relative_to(drive.ROOT))
            return 0
        return _run(options, begun)
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace, begun: float) -> int:
    if options.again and not options.only:
        raise InputError("--again makes anew what --only names: name the steps")
    if options.minutes <= 0:
        raise InputError("--minutes is not above 0: give the minutes that the whole call may take")
    if options.revision:
        os.environ[REVISION_VARIABLE] = options.revision
    chosen = _chosen(options.only)
    if options.list:
        for step in chosen:
            print(f"{step.name:<20} {step.seconds:>6.0f} s  {step.title}")
        return 0
    if git_revision() is None:
        raise InputError(
            "this copy of the source has no git: give --revision the 40 digits of its commit, so that records name it"
        )
    if options.scale == "gpu" and (backend := _backend()) != "gpu":
        raise InputError(f"JAX computes on {backend} here, not on a GPU: ask for --scale smoke to try the steps")
    call = drive.run(
        chosen,
        options.out,
        minutes=options.minutes,
        scale=options.scale,
        target=options.archive,
        again=options.again,
        begun=begun,
    )
    print(f"{call.target}: {call.target.stat().st_size:,} bytes")
    for name, row in call.rows.items():
        reason = f"  {row['reason']}" if row["reason"] else ""
        print(f"{name:<20} {row['status']:<9} {row['seconds']:>6.1f} s{reason}"[:200])
    if call.asked_to_stop is not None:
        return 128 + call.asked_to_stop
    return 1 if any(row["status"] == drive.FAILED for row in call.rows.values()) else 0


def _chosen(only: str | None) -> list[Step]:
    if only is None:
        return list(STEPS)
    names = only.split(",")
    known = {step.name: step for step in STEPS}
    if unknown := [name for name in names if name not in known]:
        raise InputError(f"unknown steps {', '.join(unknown)}: name some of {', '.join(known)}")
    return [step for step in STEPS if step.name in names]


def _backend() -> str:
    """What JAX computes on in a process like those of the steps; this one leaves the device alone."""
    code = "import jax; print(jax.default_backend())"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if told.returncode:
        lines = told.stderr.strip().splitlines() or ["it said nothing"]
        raise InputError(f"JAX does not start here: {lines[-1]}")
    return told.stdout.strip()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=9.0, help="Of the whole call.")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="Records, logs and work; an earlier call's.")
    parser.add_argument("--archive", type=Path, help=f"What is to be taken home; OUT/{archive.NAME} unless given.")
    parser.add_argument("--scale", choices=SCALES, default="gpu")
    parser.add_argument("--only", metavar="STEPS", help="Separated by commas; all unless given.")
    parser.add_argument("--again", action="store_true", help="Make the steps of --only anew, also where they stand.")
    parser.add_argument("--revision", metavar="COMMIT", help=f"Of a copy without git, as ${REVISION_VARIABLE} says it.")
    parser.add_argument("--list", action="store_true", help="Print the steps and what each was thought to take.")
    parser.add_argument("--wheels", nargs="?", const="", metavar="LIST", help="Print what such a machine lacks.")
    parser.add_argument("--collect", type=Path, metavar="DIR", help="Copy finished records to experiments/results.")
    return parser


if __name__ == "__main__":
    sys.exit(main())
