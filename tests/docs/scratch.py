"""A scratch copy of the project, in which changes of ``docs/extending/`` are applied and tests are run.

python -m tests.docs.scratch [PYTEST OPTIONS]    # all changes at once, and the tests of every day: minutes
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# What a test may read. Everything else of a checkout (environment, caches, outputs) stays where it is.
COPIED = ("bornbiased_jax", "theory", "experiments", "benchmarks", "tests", "docs", ".ci", ".github")
COPIED_FILES = ("pyproject.toml", "constraints.txt", "Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
CHANGES = sorted((ROOT / "docs" / "extending").glob("*.diff"))
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


def run_tests(copy: Path, tests: Iterable[str], marks: str = "") -> tuple[int, str]:
    """Run named tests in a scratch copy: pytest's exit code (0: all passed) and the end of what it printed."""
    # A run inside a worker of pytest-xdist is not one of its workers.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    options = ["-q", "--tb=short", "-m", marks, "-p", "no:cacheprovider", "-p", "no:xdist", "-x"]
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


def main() -> int:
    """Apply every change to one copy, and run there what ``make test`` runs."""
    with tempfile.TemporaryDirectory() as folder:
        copy = scratch_copy(Path(folder) / "project")
        for change in CHANGES:
            apply(copy, change)
        # A page shows the diffs against the project as it is, and there they are applied already.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-m",
            "not slow and not long",
            "--ignore",
            "tests/docs/test_extending.py",
        ]
        environment = {**os.environ, "PYTHONPATH": str(copy)}
        return subprocess.run([*command, *sys.argv[1:]], cwd=copy, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
