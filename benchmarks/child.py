"""A command in a process of its own: what it took, on a machine that may be shared with other work."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.recorded import Findings
from bornbiased_jax import io
from bornbiased_jax.errors import InputError

WAITER = Path(__file__).with_name("waiter.py")


def run_child(module: str, arguments: Sequence[str]) -> Findings:
    """Run ``python -m MODULE ARGUMENTS --json FILE``; return what it wrote and used.

    Returns:
        ``result``: what the command wrote; ``wall_s``; ``cpu_s``: its user and system time over all threads, which
        other work on the machine changes little; ``peak_bytes``: its largest resident set; ``load``: how many
        processes wanted a core in the minute before and in the last minute, ours among the latter.

    Raises:
        InputError: the command failed; its last line is told.
    """
    with tempfile.TemporaryDirectory() as folder:
        target, report = Path(folder) / "result.json", Path(folder) / "used.json"
        before, start = os.getloadavg()[0], time.perf_counter()
        with (Path(folder) / "said").open("w+") as log:
            command = [sys.executable, "-m", module, *arguments, "--json", str(target)]
            waiter = [sys.executable, "-I", "-S", str(WAITER), str(report), *command]
            subprocess.run(waiter, stdout=log, stderr=subprocess.STDOUT, check=False)
            wall = time.perf_counter() - start
            log.seek(0)
            lines = log.read().strip().splitlines() or [""]
        used = io.read_json(report) if report.exists() else {"exit": None}
        if used["exit"] != 0:
            raise InputError(f"python -m {module} {' '.join(arguments)} failed: {lines[-1]}")
        return {
            "result": io.read_json(target),
            "wall_s": wall,
            "cpu_s": used["cpu_s"],
            "peak_bytes": used["peak_bytes"],
            "load": [before, os.getloadavg()[0]],
        }
