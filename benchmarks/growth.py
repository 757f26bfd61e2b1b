"""How the time of a probe grows with seeds, inputs, length, depth and width, beside the operations that it needs.

    python -m benchmarks growth --json benchmarks/results/growth.json

One size of a small model is doubled and doubled again while the others stay; the exponent is the slope of log seconds
over log size, by least squares, of programs that are compiled already. The sizes take turns within a round, so that a
slow minute falls on all of them; the exponent is the median over rounds, beside the exponent of the operations alone.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.recorded import run
from bornbiased_jax.config import ModelConfig, preset
from bornbiased_jax.inputs import random_tokens
from bornbiased_jax.models.operations import needed_operations
from bornbiased_jax.probes.run import probe
from bornbiased_jax.probes.subject import newborn
from bornbiased_jax.report.tables import Quantity, Row, Table

BASE = {"seeds": 2, "inputs": 128, "length": 128, "layers": 4, "width": 128}
FACTORS = (1, 2, 4)
ROUNDS = 5
# A head takes so many dimensions at every width; the MLP is four times as wide as the residual stream.
HEAD, VOCABULARY, BATCH = 32, 2048, 32


def model(sizes: dict[str, int]) -> ModelConfig:
    """The model of these sizes."""
    width = sizes["width"]
    changes = dict(num_layers=sizes["layers"], d_model=width, num_heads=max(1, width // HEAD), d_ff=4 * width)
    return preset("gpt2-tiny", vocab_size=VOCABULARY, max_seq_len=4 * BASE["length"], **changes)


def operations(sizes: dict[str, int]) -> float:
    """What a probe of these sizes needs."""
    return needed_operations(model(sizes), sizes["length"]) * sizes["seeds"] * sizes["inputs"]


def call(sizes: dict[str, int]) -> Callable[[], None]:
    """A probe of these sizes."""
    cfg = model(sizes)
    inputs = random_tokens(sizes["inputs"], sizes["length"], VOCABULARY)
    return lambda: all(probe(newborn(cfg), range(sizes["seeds"]), inputs, batch_size=BATCH)) or None


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The exponent of a power law, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def measure(base: dict[str, int], rounds: int, axes: Sequence[str] = tuple(BASE)) -> dict[str, Any]:
    """Seconds of every size, and the exponents."""
    rows = []
    for axis in axes:
        sizes = [{**base, axis: factor * base[axis]} for factor in FACTORS]
        calls = [call(size) for size in sizes]
        for compiled in calls:
            compiled()
        seconds = []
        for _ in range(rounds):
            seconds.append([_timed(made) for made in calls])
        along = [size[axis] for size in sizes]
        found = [slope(along, row) for row in seconds]
        rows.append(
            {
                "axis": axis,
                "sizes": along,
                "seconds": np.median(seconds, axis=0).tolist(),
                "exponent": float(np.median(found)),
                "exponent_range": [min(found), max(found)],
                "exponent_of_operations": slope(along, [operations(size) for size in sizes]),
            }
        )
    return {"base": base, "rounds": rounds, "rows": rows}


def tables(record: Mapping[str, Any]) -> list[Table]:
    """A row for each size that grew."""
    rows = [
        Row(
            [row["axis"], ", ".join(map(str, row["sizes"]))],
            {
                "seconds": ", ".join(f"{seconds:.2f}" for seconds in row["seconds"]),
                "exponent": f"{row['exponent']:.2f} ({row['exponent_range'][0]:.2f} to {row['exponent_range'][1]:.2f})",
                "of the operations": f"{row['exponent_of_operations']:.2f}",
            },
        )
        for row in record["rows"]
    ]
    base = ", ".join(f"{axis} {size}" for axis, size in record["base"].items())
    note = (
        f"GPT-2's architecture from {base} on, the MLP four times as wide, a head for every {HEAD} dimensions, "
        f"V = {VOCABULARY:,}; compiled already; median and range of {record['rounds']} rounds. Below the exponent of "
        "the operations: larger products run nearer to the machine's rate."
    )
    quantities = [Quantity("seconds"), Quantity("exponent"), Quantity("of the operations")]
    return [Table("How the time of a probe grows", ["what grows", "sizes"], quantities, rows, note)]


def _timed(made: Callable[[], None]) -> float:
    begun = time.perf_counter()
    made()
    return max(time.perf_counter() - begun, math.ulp(1.0))


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--json")
    for axis, size in BASE.items():
        parser.add_argument(f"--{axis}", type=int, default=size, help="Its smallest size.")
    options = parser.parse_args(arguments)
    base = {axis: getattr(options, axis) for axis in BASE}
    return run(lambda: measure(base, options.rounds), options.json)


if __name__ == "__main__":
    main()
