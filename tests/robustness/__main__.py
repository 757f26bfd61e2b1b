"""Damage files, or type extreme options, for as long as it is asked for: ``python -m tests.robustness --minutes 60``.

What goes wrong is printed and kept in the corpus, which `make test` runs; ``--out`` writes a record of what was done.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import recorded
from tests.robustness import flags, readers
from tests.robustness.guard import MEMORY, SECONDS, Outcome
from tests.robustness.kinds import KINDS

FLAGS = "flags"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until the time is over; 1 where something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=1_000_000, help="first seed")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, FLAGS])
    parser.add_argument("--faults", type=int, default=8, help="kept of one kind at most")
    parser.add_argument("--out", help="a record: cases and outcomes by kind")
    asked = parser.parse_args(arguments)
    record = recorded.run(lambda: fuzz(asked.kinds, asked.first, asked.minutes, asked.faults), asked.out)
    return int(any(row["faults"] for row in record["kinds"].values()))


def fuzz(kinds: Sequence[str], first: int, minutes: float, most_kept: int) -> dict[str, Any]:
    """One case of each kind for one seed after the other, until the minutes are over.

    Returns:
        {"kinds": {kind: {"cases", "refused", "faults", "seconds", "most_seconds"}}, "first", "last", "minutes",
        "goals"}; done is what was neither refused nor a fault.
    """
    rows: dict[str, dict[str, Any]] = {
        kind: {"cases": 0, "refused": 0, "faults": [], "seconds": 0.0, "most_seconds": 0.0} for kind in kinds
    }
    begun = told = time.monotonic()
    for seed, kind in ((seed, kind) for seed in itertools.count(first) for kind in rows):
        start = time.monotonic()
        if start - begun > 60 * minutes:
            break
        if start - told > 60:
            told = start
            cases, faults = (sum(count) for count in zip(*map(_counts, rows.values()), strict=True))
            said = f"{(start - begun) / 60:.0f} of {minutes:g} minutes: {cases:,} cases, {faults} faults"
            print(said, file=sys.stderr, flush=True)
        case, outcome = _case(kind, seed)
        took, row = time.monotonic() - start, rows[kind]
        row["cases"] += 1
        row["refused"] += outcome.refused and outcome.fault is None
        row["seconds"] += took
        row["most_seconds"] = max(row["most_seconds"], took)
        if outcome.fault is None:
            continue
        row["faults"].append(f"seed {seed}: {outcome.fault}")
        if len(row["faults"]) <= most_kept:
            place = flags.keep(case) if isinstance(case, list) else readers.keep(kind, case)
            print(f"{kind}, seed {seed}: {outcome.fault}\n  {place}", flush=True)
    goals = {"seconds": SECONDS, "bytes": MEMORY}
    return {"kinds": rows, "first": first, "last": seed, "minutes": minutes, "goals": goals}


def _counts(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["cases"], len(row["faults"])


def _case(kind: str, seed: int) -> tuple[list[str] | bytes, Outcome]:
    if kind == FLAGS:
        words = flags.line(seed)
        return words, flags.outcome_of(words)
    data = readers.damaged(kind, seed)
    return data, readers.outcome_of(kind, data)


if __name__ == "__main__":
    sys.exit(main())
