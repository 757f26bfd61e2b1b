"""Every benchmark that needs no argument, each in a process of its own, those first whose numbers matter most.

    python -m benchmarks all --out out/benchmarks --minutes 60
    python -m benchmarks all --out out/benchmarks --collect

The first command may be typed again: what the same revision has measured stays. The second copies the records to
``benchmarks/results``. Both want a clean tree, so that a record's revision is the code that was measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bornbiased_jax import files, progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.record import git_revision

RESULTS = Path(__file__).resolve().parent / "results"
# In order of value: what README.md quotes, then what docs/ do, the longest last.
ORDER = (
    "sweep_vs_torch",
    "training_rate",
    "pretrain_vs_torch",
    "seeds_at_once",
    "kendall",
    "fingerprint",
    "kill_resume",
    "bound",
    "whichseed",
    "weights_7b",
    "ledger",
    "growth",
    "cold_start",
    "parity",
    "storage",
    "streamed",
)


def measured(path: Path, revision: str) -> bool:
    """Whether a record is there that was made by this revision of a clean tree."""
    if not path.exists():
        return False
    git = files.read_json(path)["provenance"]["git"]
    return bool(git["revision"] == revision and not git["dirty"])


def run_all(names: Sequence[str], out: Path, minutes: float, revision: str) -> dict[str, str]:
    """Run each benchmark whose record is not there; no process outlives the limit.

    Returns:
        Of each name: "measured", "there", "failed" or "no time".
    """
    end = time.monotonic() + 60 * minutes
    outcomes = {}
    for name in names:
        path = out / f"{name}.json"
        if measured(path, revision):
            outcomes[name] = "there"
            continue
        begun = time.monotonic()
        code = _run([sys.executable, "-m", "benchmarks", name, "--json", str(path)], end - begun)
        outcomes[name] = "no time" if code is None else "measured" if code == 0 else "failed"
        progress.note(f"{name}: {outcomes[name]}, {time.monotonic() - begun:.0f} s")
    return outcomes


def _run(command: Sequence[str], seconds: float) -> int | None:
    """The exit code of a command; None where its time was up, and it and its children were ended."""
    if seconds <= 0:
        return None
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def collect(out: Path, revision: str, results: Path = RESULTS) -> list[str]:
    """Copy the records of this revision to the committed ones; the names of those copied."""
    names = [name for name in ORDER if measured(out / f"{name}.json", revision)]
    for name in names:
        shutil.copyfile(out / f"{name}.json", results / f"{name}.json")
    return names


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure what is missing, or collect what is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--minutes", type=float, default=120.0, help="Of all together.")
    parser.add_argument("--names", default=",".join(ORDER), help="Separated by commas.")
    parser.add_argument("--collect", action="store_true", help="Copy the records to benchmarks/results.")
    options = parser.parse_args(arguments)
    git = git_revision()
    if git is None or git["dirty"]:
        raise InputError("the tree is not a clean checkout: commit first, so that the records name their code")
    if options.collect:
        return {"collected": collect(options.out, git["revision"])}
    unknown = sorted(set(options.names.split(",")) - set(ORDER))
    if unknown:
        raise InputError(f"unknown benchmarks {', '.join(unknown)}: name some of {', '.join(ORDER)}")
    options.out.mkdir(parents=True, exist_ok=True)
    return run_all(options.names.split(","), options.out, options.minutes, git["revision"])
