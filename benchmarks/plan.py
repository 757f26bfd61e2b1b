"""What ``bornbiased plan`` says of four small commands beside what they take, in memory and time.

    python -m benchmarks plan --json benchmarks/results/plan.json

The plan and the command each run in a process of their own, whose peak memory is taken. The command's work is then
timed in this process, compiled already, between two measurements of the rates that the plan's time rests on.
"""

from __future__ import annotations

import argparse
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.child import run_child
from benchmarks.pretrain_vs_torch import Ours, seconds
from benchmarks.recorded import run
from bornbiased_jax import progress
from bornbiased_jax.checkpoints import open_checkpoint
from bornbiased_jax.checkpoints.reader import open_reader
from bornbiased_jax.cli.plan import parsed
from bornbiased_jax.inputs import random_tokens
from bornbiased_jax.plan import estimate, needs_of
from bornbiased_jax.plan.commands import Planned
from bornbiased_jax.plan.rates import measure
from bornbiased_jax.probes.run import probe
from bornbiased_jax.probes.subject import newborn
from bornbiased_jax.report.tables import Quantity, Row, Table
from bornbiased_jax.seedprint.outputs import last_outputs
from bornbiased_jax.seedprint.weights.compare import weights_test

GOAL = 0.25
SHAPE = "num_layers=6,d_model=512,num_heads=8,d_ff=2048,vocab_size=8192"
# Long enough that what is not counted does not matter.
WIDER = "num_layers=12,d_model=1024,num_heads=16,d_ff=4096,vocab_size=8192"
_SET = " ".join(f"--set {setting}" for setting in SHAPE.split(","))
COMMANDS = {
    "probe": f"probe preference --model gpt2-tiny {_SET} --seeds 0:4 --seq-len 64 --num-inputs 128 --quiet",
    "fingerprint": f"fingerprint seed:0@gpt2-tiny,{SHAPE} --num-inputs 128 --seq-len 64 --quiet --out {{}}/a",
    "weights test": f"seedprint seed:0@gpt2-tiny,{WIDER} seed:1@gpt2-tiny,{WIDER} --test weights --quiet",
    "pretrain": f"pretrain --model gpt2-tiny {_SET} --data builtin:prose --seeds 0,1 --steps 3 --quiet --out {{}}/run",
}


def work_of(planned: Planned) -> Callable[[], Any]:
    """What the command computes, with nothing around it; drawing births included where the command draws them."""
    given = planned.arguments
    if planned.command == "probe preference":
        cfg = planned.cfg
        assert cfg is not None
        inputs = random_tokens(given["num_inputs"], planned.lengths[0], cfg.vocab_size)
        subject = newborn(cfg, fixed_embedding_seed=0)
        return lambda: list(probe(subject, planned.seeds, inputs))
    if planned.command == "fingerprint":

        def outputs() -> Any:
            model = open_checkpoint(given["checkpoint"])
            return last_outputs(
                model.cfg, model.params, random_tokens(given["num_inputs"], given["seq_len"], model.cfg.vocab_size)
            )

        return outputs
    if planned.command == "seedprint":
        return lambda: weights_test(open_reader(given["base"]), open_reader(given["suspect"]))
    config = planned.pretraining
    assert config is not None and config.steps is not None
    side, steps = Ours(config, 1000), config.steps
    shape = (steps, config.batch_size, config.context + 1)
    tokens = np.random.default_rng(0).integers(0, config.model.vocab_size, shape, dtype=np.int32)
    return lambda: seconds(side, list(tokens), steps)


def memory(words: Sequence[str]) -> dict[str, Any]:
    """What the plan says of a command's memory beside its peak, each in a process that holds nothing else."""
    said = run_child("bornbiased_jax", ["plan", *words])["result"]
    child = run_child("bornbiased_jax", list(words))
    return {
        "memory_bytes": said["memory_bytes"],
        "peak_bytes": child["peak_bytes"],
        "memory_ratio": child["peak_bytes"] / said["memory_bytes"],
        "load": child["load"],
    }


def compare(name: str, words: Sequence[str], rounds: int) -> dict[str, Any]:
    """One command: planned, run, and timed between measurements of the plan's rates."""
    progress.note(name)
    planned = parsed(tuple(words), None)
    needs = needs_of(planned)
    before = estimate(needs, measure(needs).rates)
    work = work_of(planned)
    work()  # compiles
    fractions, taken, expected = [], [], [before["seconds"]]
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
        expected.append(estimate(needs, measure(needs).rates)["seconds"])
        fractions.append(2 * taken[-1] / (expected[-2] + expected[-1]))
    return {
        "command": list(words),
        **memory(words),
        "seconds_planned": statistics.median(expected),
        "seconds": statistics.median(taken),
        "time_ratio": statistics.median(fractions),
        "time_ratio_range": [min(fractions), max(fractions)],
        "operations": before["operations"],
    }


def benchmark(names: Sequence[str], rounds: int) -> dict[str, Any]:
    """All commands, one after the other."""
    rows = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            rows[name] = compare(name, COMMANDS[name].format(folder).split(), rounds)
    within = {
        name: {kind: abs(row[f"{kind}_ratio"] - 1) <= GOAL for kind in ("memory", "time")} for name, row in rows.items()
    }
    return {"rows": rows, "rounds": rounds, "goal": GOAL, "within": within}


def _size(command: Sequence[str]) -> str:
    """Blocks and width of the model that a command names."""
    fields = dict(re.findall(r"\b(num_layers|d_model)=(\d+)", " ".join(command)))
    return f"{fields['num_layers']} × {int(fields['d_model']):,}"


def tables(record: Mapping[str, Any]) -> list[Table]:
    """A row for each command."""
    rows = [
        Row(
            [name, _size(row["command"])],
            {
                "memory planned": f"{row['memory_bytes'] / 1e9:.2f} GB",
                "at its peak": f"{row['peak_bytes'] / 1e9:.2f} GB",
                "time planned": f"{row['seconds_planned']:.1f} s",
                "taken": f"{row['seconds']:.1f} s",
                "of what was planned": f"{row['memory_ratio']:.0%}, {row['time_ratio']:.0%}",
            },
        )
        for name, row in record["rows"].items()
    ]
    note = (
        "Time of compiled programs, by rates measured before and after it, the median of "
        f"{record['rounds']} rounds. Wanted: within {record['goal']:.0%}."
    )
    names = ("memory planned", "at its peak", "time planned", "taken", "of what was planned")
    quantities = [Quantity(name) for name in names]
    return [Table("What was planned and what it took", ["command", "blocks × width"], quantities, rows, note)]


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--names", default=",".join(COMMANDS), help="Separated by commas.")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    return run(lambda: benchmark(options.names.split(","), options.rounds), options.json, precision="float32 highest")


if __name__ == "__main__":
    main()
