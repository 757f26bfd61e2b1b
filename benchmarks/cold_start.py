"""What the first result of a small probe costs a process that has just begun, stage by stage.

    python -m benchmarks cold_start --json benchmarks/results/cold_start.json

Each round is a process of its own: the interpreter and the command line's imports; what the command imports then (jax
and the library); tracing, lowering and compiling; the rest, which is the probe itself. Beside it ``--help``, which
imports no jax, and the same probe with ``JAX_COMPILATION_CACHE_DIR`` set to a folder where an earlier process has kept
its programs; otherwise none are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.recorded import run
from bornbiased_jax.errors import InputError
from bornbiased_jax.report.numbers import fixed
from bornbiased_jax.report.tables import Quantity, Row, Table

ROUNDS = 5
HELP = ["--help"]
PROBE = "probe preference --model gpt2-tiny --seeds 0:2 --seq-len 16 --num-inputs 64 --quiet".split()
STAGES = ("interpreter", "imports", "tracing", "lowering", "compiling", "rest")
# The names of jax's own durations.
_TRACING, _LOWERING, _COMPILING = (
    f"/jax/core/compile/{name}_duration" for name in ("jaxpr_trace", "jaxpr_to_mlir_module", "backend_compile")
)
PROGRAM = """
import json, os, sys, time
began = float(os.environ["COLD_START_BEGAN"])
from bornbiased_jax.cli.main import run
entered = time.time()
found, imported = {}, entered
words = json.loads(sys.argv[1])
if words != ["--help"]:
    import jax
    import bornbiased_jax.cli.probe, bornbiased_jax.probes.run, bornbiased_jax.words
    imported = time.time()
    def listen(name, seconds, **_):
        found[name] = found.get(name, 0.0) + seconds
    jax.monitoring.register_event_duration_secs_listener(listen)
sys.stdout = open(os.devnull, "w")
code = run(words)
ended = time.time()
sys.stdout = sys.__stdout__
print(json.dumps({"interpreter": entered - began, "imports": imported - entered,
                  "whole": ended - began, "durations": found}))
sys.exit(code)
"""


def once(words: Sequence[str], kept: str | None = None) -> dict[str, float]:
    """Seconds of the stages of one process, and of the whole; ``kept`` is a folder of compiled programs."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("JAX_PERSISTENT_CACHE")}
    env |= {"COLD_START_BEGAN": repr(time.time()), "JAX_ENABLE_COMPILATION_CACHE": str(kept is not None).lower()}
    if kept is not None:
        env |= {"JAX_COMPILATION_CACHE_DIR": kept, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    call = [sys.executable, "-c", PROGRAM, json.dumps(list(words))]
    done = subprocess.run(call, env=env, capture_output=True, text=True)
    if done.returncode != 0:
        raise InputError(f"{' '.join(words)} failed: {done.stderr.strip().splitlines()[-1]}")
    found = json.loads(done.stdout)
    durations = found["durations"]
    stages = {
        "interpreter": found["interpreter"],
        "imports": found["imports"],
        "tracing": durations.get(_TRACING, 0.0),
        "lowering": durations.get(_LOWERING, 0.0),
        "compiling": durations.get(_COMPILING, 0.0),
    }
    return {**stages, "rest": max(0.0, found["whole"] - sum(stages.values())), "whole": found["whole"]}


def measure(rounds: int) -> dict[str, Any]:
    """Medians over processes: ``--help``, a small probe, and the probe where its programs were kept, in turns."""
    seen: dict[str, list[dict[str, float]]] = {"help": [], "probe": [], "again": []}
    with tempfile.TemporaryDirectory() as kept:
        once(PROBE, kept)
        for _ in range(rounds):
            seen["help"].append(once(HELP))
            seen["probe"].append(once(PROBE))
            seen["again"].append(once(PROBE, kept))
    medians = {
        name: {stage: float(np.median([row[stage] for row in rows])) for stage in (*STAGES, "whole")}
        for name, rows in seen.items()
    }
    return {"command": " ".join(PROBE), "rounds": rounds, **medians}


def tables(record: Mapping[str, Any]) -> list[Table]:
    """Stages in rows, processes in columns."""
    names = {"help": "--help", "probe": "a small probe", "again": "the same, programs kept"}
    rows = [Row([stage], {title: record[name][stage] for name, title in names.items()}) for stage in (*STAGES, "whole")]
    note = (
        f"Seconds, medians of {record['rounds']} processes each; `bornbiased {record['command']}`. Kept: with "
        "`JAX_COMPILATION_CACHE_DIR` naming a folder, where jax keeps what it compiled."
    )
    quantities = [Quantity(title, fixed(2)) for title in names.values()]
    return [Table("The first result of a new process", ["stage"], quantities, rows, note)]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    return run(lambda: measure(options.rounds), options.json)


if __name__ == "__main__":
    main()
