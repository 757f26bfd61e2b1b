"""A scratch copy of the project, in which a change of ``docs/extending/`` is applied and tests are run.

python -m tests.docs.scratch [--diffs 'NAME NAME'] [PYTEST OPTIONS]

Each change has a copy of its own, in which the tests of every day are run: minutes each.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# What a test may read. Everything else of a checkout (environment, caches, outputs) stays where it is.
COPIED = ("bornbiased_jax", "theory", "experiments", "benchmarks", "tests", "docs", ".ci", ".github")
COPIED_FILES = (
    "pyproject.toml",
    "constraints.txt",
    "Makefile",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
)
CHANGES = sorted((ROOT / "docs" / "extending").glob("*.diff"))
EVERY_DAY = "not slow and not long"
# The page shows the diffs against the project as it is, and in a copy one of them is applied already.
ABOUT_THE_PAGE = "tests/docs/test_extending.py"
# Ample for the slowest named test next to another one: a test that runs for ever is named, not awaited.
TIMEOUT_S = 600.0


def scratch_copy(target: Path) -> Path:
    """Copy what tests need to ``target``, which must not exist."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in COPIED:
        if (ROOT / name).is_dir():
            # The links of the package lead to the folders of the copy.
            shutil.copytree(ROOT / name, target / name, ignore=ignore, symlinks=True)
    for name in COPIED_FILES:
        shutil.copy2(ROOT / name, target / name)
    return target


def apply(copy: Path, change: Path) -> None:
    """Apply a diff; outside of a repository git applies to the folder it stands in."""
    subprocess.run(["git", "apply", str(change)], cwd=copy, check=True)


def environment_of(copy: Path) -> dict[str, str]:
    """The environment of tests in a copy, which take compiled programs from this checkout's cache."""
    cache = str(ROOT / ".pytest_cache" / "jax")
    return {"JAX_COMPILATION_CACHE_DIR": cache, **os.environ, "PYTHONPATH": str(copy)}


def run_tests(copy: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Run named tests in a scratch copy: pytest's exit code (0: all passed) and the end of what it printed."""
    # A run inside a worker of pytest-xdist is not one of its workers.
    environment = {name: value for name, value in environment_of(copy).items() if not name.startswith("PYTEST_")}
    options = ["-q", "--tb=short", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", "-x"]
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return completed.returncode, (completed.stdout + completed.stderr)[-4000:]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tests of every day with each change by itself, and say with which some failed: 1 if any did."""
    parser = argparse.ArgumentParser("python -m tests.docs.scratch", allow_abbrev=False)
    parser.add_argument("--diffs", default="", help="names of diffs of docs/extending/; all unless given")
    arguments, options = parser.parse_known_args(argv)
    changes = {change.stem: change for change in CHANGES}
    names = arguments.diffs.split() or list(changes)
    if unknown := set(names).difference(changes):
        parser.error(f"no diff is called {', '.join(sorted(unknown))}: name some of {', '.join(changes)}")
    codes: dict[str, int] = {}
    for number, name in enumerate(names, 1):
        print(f"\n[{number} of {len(names)}] {name}.diff", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            copy = scratch_copy(Path(folder) / "project")
            apply(copy, changes[name])
            command = [sys.executable, "-m", "pytest", "-m", EVERY_DAY, "--ignore", ABOUT_THE_PAGE, *options]
            codes[name] = subprocess.run(command, cwd=copy, env=environment_of(copy), check=False).returncode
    # The summary comes last, below what pytest printed of each.
    print("\n" + "\n".join(f"{name}.diff: {'failed' if code else 'passed'}" for name, code in codes.items()))
    return int(any(codes.values()))


if __name__ == "__main__":
    sys.exit(main())
