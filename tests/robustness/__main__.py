"""Mutate files and give options extreme values: ``python -m tests.robustness --minutes 60``.

Faults are printed and added to the corpus, which ``make test`` runs.
"""

import argparse
import itertools
import sys
import time
from collections import Counter
from collections.abc import Sequence

from tests.robustness import flags, readers
from tests.robustness.kinds import KINDS

FLAGS = "flags"
# One fault may recur a thousand times in an hour.
MOST_STORED = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one case of each kind for one seed after the other until the time is over; 1 where there was a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=1_000_000, help="first seed")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, FLAGS])
    settings = parser.parse_args(arguments)
    end = time.monotonic() + 60 * settings.minutes
    num_cases, faults = 0, Counter[str]()
    for seed, kind in ((seed, kind) for seed in itertools.count(settings.first) for kind in settings.kinds):
        if time.monotonic() > end:
            break
        fault = run_case(kind, seed, is_stored=faults[kind] < MOST_STORED)
        num_cases += 1
        if fault is not None:
            faults[kind] += 1
            print(f"{kind}, seed {seed}: {fault}", flush=True)
    print(f"{num_cases:,} cases, seeds {settings.first} to {seed}, faults: {dict(faults) or None}", file=sys.stderr)
    return int(faults.total() > 0)


def run_case(kind: str, seed: int, is_stored: bool) -> str | None:
    """Return the fault of one case, which then joins the corpus if that is wanted."""
    if kind == FLAGS:
        words = flags.line(seed)
        if (fault := flags.fault_of(words)) is not None and is_stored:
            flags.keep(words)
    else:
        data = readers.damaged(kind, seed)
        if (fault := readers.fault_of(kind, data)) is not None and is_stored:
            readers.keep(kind, data)
    return fault


if __name__ == "__main__":
    sys.exit(main())
