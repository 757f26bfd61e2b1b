"""A scratch copy of the project, in which a change of ``docs/extending/`` is applied and its tests are run."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# What a test may read. Everything else of a checkout (environment, caches, outputs) stays where it is.
COPIED = ("bornbiased_jax", "theory", "experiments", "benchmarks", "tests", "docs", ".ci", ".github")
COPIED_FILES = ("pyproject.toml", "constraints.txt", "Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
# Ample for the slowest named test beside another one: a test that runs for ever is named, not awaited.
TIMEOUT_S = 600.0


def scratch_copy(target: Path) -> Path:
    """Copy what tests need to ``target``, which must not exist."""
    ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / name, ignore=ignore)
    for name in COPIED_FILES:
        shutil.copy2(ROOT / name, target / name)
    return target


def run_tests(copy: Path, tests: Iterable[str]) -> tuple[int, str]:
    """Run named tests in a scratch copy: pytest's exit code (0: all passed) and the end of what it printed."""
    # A run inside a worker of pytest-xdist is not one of its workers.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ["-q", "--tb=short", "-m", "", "-p", "no:cacheprovider", "-p", "no:xdist", "-x"]
    completed = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=copy,
        env={**environment, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return completed.returncode, (completed.stdout + completed.stderr)[-4000:]
