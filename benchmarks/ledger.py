"""What a ledger costs: beside chunks of ten seconds, for each chunk, and to look through ten thousand of them.

    python -m benchmarks ledger --json benchmarks/results/ledger.json

A chunk here sleeps, so that nothing but the ledger and its engine is measured, and gives a result of the size of a
probe's. The whole of a sweep is timed, from the call to the last result read back: over the seconds that as many
workers would have slept, less one, that is the overhead, with the start of the worker processes and without it (until
the first chunk began). Many chunks that do not sleep give the cost of one; as many empty files as a
large sweep has chunks, the time of a look at all of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.recorded import run
from bornbiased_jax.ledger import drive
from bornbiased_jax.ledger.engines import Engine, engine_named, local
from bornbiased_jax.ledger.pages import Chunk, Ledger, task_of
from bornbiased_jax.ledger.status import status

FUNCTION = "benchmarks.ledger:compute"
SECONDS, CHUNKS, WORKERS, QUICK, MANY = 10.0, 24, 2, 200, 10_000
NUMBERS = 25_000
GOAL_OVERHEAD, GOAL_SCAN_S = 0.05, 1.0


def compute(settings: Mapping[str, Any], _: Mapping[str, Any], chunks: list[Chunk]) -> Iterator[dict[str, Any]]:
    """Sleep for each chunk, and give as many numbers as a probe does."""
    for chunk in chunks:
        time.sleep(settings["seconds"])
        yield {"numbers": np.full(settings["numbers"], chunk.seed, np.float32)}


def swept(folder: Path, seconds: float, count: int, engine: Engine) -> tuple[float, float]:
    """Seconds of a whole sweep of so many chunks that sleep so long, and of them until the first one began."""
    settings = {"seconds": seconds, "numbers": NUMBERS}
    request = drive.Request(FUNCTION, settings, [Chunk(seed, 0, 1) for seed in range(count)])
    start, began = time.perf_counter(), time.time()
    drive.fulfil(request, folder, engine)
    wall = time.perf_counter() - start
    first = Ledger(folder).pages()[0].times()[0] - seconds
    return wall, max(0.0, first - began)


def scanned(folder: Path, count: int) -> dict[str, float]:
    """Seconds of a driver's look at a page with so many chunks, and of ``bornbiased status``."""
    page = Ledger(folder).page(task_of(FUNCTION, {"seconds": 0.0, "numbers": 1}))
    chunks = [Chunk(seed, 0, 1) for seed in range(count)]
    page.open(chunks)
    for chunk in chunks:
        (page.path / chunk.name).touch()
    start = time.perf_counter()
    found = page.done()
    driver = time.perf_counter() - start
    start = time.perf_counter()
    told = status(folder)
    by_status = time.perf_counter() - start
    assert len(found) == told["done"] == count
    return {"chunks": count, "driver_s": driver, "status_s": by_status}


def measure(seconds: float, count: int, workers: int, quick: int, many: int) -> dict[str, Any]:
    """The overhead of each engine that needs nothing installed, one chunk's cost, and a scan."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        rows = []
        for engine, number in (("local", 1), ("processes", workers)):
            # As many rounds for each, so that one process does not take several times as long.
            chunks = count // workers * number
            chosen = local if engine == "local" else engine_named(engine, workers=number)
            wall, until = swept(place / engine, seconds, chunks, chosen)
            ideal = seconds * chunks / number
            rows.append(
                {
                    "engine": engine,
                    "workers": number,
                    "chunks": chunks,
                    "wall_s": wall,
                    "start_s": until,
                    "overhead": wall / ideal - 1,
                    "overhead_without_start": (wall - until) / ideal - 1,
                }
            )
        return {
            "seconds_of_a_chunk": seconds,
            "engines": rows,
            "seconds_for_a_chunk": swept(place / "quick", 0.0, quick, local)[0] / quick,
            "scan": scanned(place / "many", many),
            "goals": {"overhead": GOAL_OVERHEAD, "scan_s": GOAL_SCAN_S},
        }


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Measure and print; returns the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="Of a chunk.")
    parser.add_argument("--chunks", type=int, default=CHUNKS, help="For all workers together.")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--quick", type=int, default=QUICK, help="Chunks that do not sleep.")
    parser.add_argument("--many", type=int, default=MANY, help="Chunks to look through.")
    parser.add_argument("--json")
    options = parser.parse_args(arguments)
    sizes = (options.seconds, options.chunks, options.workers, options.quick, options.many)
    return run(lambda: measure(*sizes), options.json)


if __name__ == "__main__":
    main()
