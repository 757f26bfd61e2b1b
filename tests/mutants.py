"""Plant sampled faults in statistics, scores and theory; list those that their narrow tests overlook.

    python -m tests.mutants                           # the sample that tests/mutants.md is about
    python -m tests.mutants --seed 7 --sample 40      # another sample
    python -m tests.mutants --known tests/mutants.md  # exit 1 where a survivor is not in the list

A module's tests are its file of tests and the examples in its docstrings. Faults are those of cosmic-ray's operators
(comparisons, operators, numbers, branches, ...), each planted in a scratch copy, one at a time. A survivor is named by
its file, the line that it replaces and the line in its place, so that the list outlives edits elsewhere in the file.
"""

import argparse
import os
import random
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cosmic_ray.commands.init import _all_work_items
from cosmic_ray.mutating import mutate_and_test
from cosmic_ray.work_item import TestOutcome, WorkItem, WorkResult

from tests.docs.scratch import scratch_copy

# Module -> the tests that are about it.
TESTS = {
    "bornbiased_jax/stats/bound.py": "tests/stats/test_bound.py",
    "bornbiased_jax/stats/certified.py": "tests/stats/test_bound.py tests/stats/test_permutations.py",
    "bornbiased_jax/stats/intervals.py": "tests/stats/test_intervals.py",
    "bornbiased_jax/stats/kendall.py": "tests/stats/test_kendall.py",
    "bornbiased_jax/stats/multiple.py": "tests/stats/test_multiple.py",
    "bornbiased_jax/stats/permutations.py": "tests/stats/test_permutations.py tests/stats/test_bound.py",
    "bornbiased_jax/stats/ranks.py": "tests/stats/test_ranks.py",
    "bornbiased_jax/stats/tails.py": "tests/stats/test_tails.py",
    "bornbiased_jax/stats/terms.py": "tests/stats/test_terms.py",
    "bornbiased_jax/parameters.py": "tests/test_parameters.py",
    "bornbiased_jax/lineage/evidence.py": "tests/lineage/test_evidence.py",
    "bornbiased_jax/lineage/scores.py": "tests/lineage/test_evidence.py",
    "theory/closed_forms.py": "theory/test_kernels.py theory/test_schemes.py",
    "theory/kernels.py": "theory/test_kernels.py",
    "theory/mlp.py": "theory/test_mlp_theory.py",
}
# A fault that makes a loop endless is noticed by this.
TIMEOUT_S = 120.0


def sampled(module: str, count: int, seed: int) -> list[WorkItem]:
    """Draw faults of a module's code; annotations, which nothing evaluates, are left alone."""
    items = [item for item in _all_work_items([Path(module)], {}) if "BitOr" not in item.mutations[0].operator_name]
    # The order of cosmic-ray's operators is that of their installation.
    items.sort(key=lambda item: (item.mutations[0].operator_name, item.mutations[0].occurrence))
    return random.Random(f"{seed} {module}").sample(items, min(count, len(items)))


def replaced(result: WorkResult) -> str:
    """Return the line that a fault replaces and the line in its place, both without their indentation."""
    lines = [line for line in (result.diff or "").splitlines() if not line.startswith(("---", "+++"))]
    before, after = (" ".join(line[1:].strip() for line in lines if line[:1] == sign) for sign in "-+")
    return f"`{before}` -> `{after}`"


def survivors(count: int, seed: int) -> Iterator[str]:
    """Yield every sampled fault with which a module's tests pass."""
    for module, tests in TESTS.items():
        options = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not long"]
        command = [sys.executable, "-m", "pytest", *options, "--doctest-modules", module, *tests.split()]
        # Tests that fail without a fault would call every fault noticed.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        items, survived = sampled(module, count, seed), 0
        for item in items:
            result = mutate_and_test(item.mutations, shlex.join(command), TIMEOUT_S)
            if result.test_outcome == TestOutcome.SURVIVED:
                survived += 1
                yield f"{module}: {replaced(result)}"
        print(f"{module}: {len(items) - survived} of {len(items)} noticed", file=sys.stderr, flush=True)


def main() -> int:
    """Run the command line; exit 1 where a survivor is not in the list of ``--known``."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--sample", type=int, default=12, help="Faults of each module.")
    parser.add_argument("--seed", type=int, default=0, help="Which faults are drawn.")
    parser.add_argument("--known", type=Path, help="A list of survivors; others are an error.")
    options = parser.parse_args()
    existing = options.known.read_text() if options.known else ""
    unknown = 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(scratch_copy(Path(folder) / "project"))
        # Tests import the copy, and not the checkout that is installed.
        os.environ["PYTHONPATH"] = os.getcwd()
        for survivor in survivors(options.sample, options.seed):
            print(survivor, flush=True)
            unknown += survivor not in existing
    return int(bool(options.known and unknown))


if __name__ == "__main__":
    sys.exit(main())
