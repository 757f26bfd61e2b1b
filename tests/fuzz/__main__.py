"""Damage files, or type extreme options, for as long as it is asked for: ``python -m tests.fuzz --minutes 60``.

What goes wrong is printed and kept in the corpus, which `make test` runs.
"""

import argparse
import itertools
import sys
import time

from tests.fuzz import flags, readers
from tests.fuzz.kinds import KINDS


def main() -> int:
    """Run until the time is over; 1 where something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=1_000_000, help="first seed")
    parser.add_argument("--kinds", nargs="*", default=[*KINDS, "flags"])
    parser.add_argument("--faults", type=int, default=8, help="kept of one kind at most")
    asked = parser.parse_args()
    end = time.monotonic() + 60 * asked.minutes
    cases, found = 0, dict.fromkeys(asked.kinds, 0)
    for seed in itertools.count(asked.first):
        for name in asked.kinds:
            if time.monotonic() > end:
                print(f"{cases:,} cases, {sum(found.values())} faults")
                return int(any(found.values()))
            cases += 1
            if name == "flags":
                line = flags.line(seed)
                fault, case = flags.fault_of(line), line
            else:
                data = readers.damaged(name, seed)
                fault, case = readers.fault_of(name, data), data
            if fault is None:
                continue
            found[name] += 1
            if found[name] <= asked.faults:
                place = flags.keep(case) if isinstance(case, list) else readers.keep(name, case)
                print(f"{name}, seed {seed}: {fault}\n  {place}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
