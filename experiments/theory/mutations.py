"""The tests of the theory, tested: one constant at a time is moved by 5% in a scratch copy, and a test must fall.

Run by hand, for hours: ``python -m experiments.theory.mutations --out mutations.json [--module mlp] [--limit 3]``. A
mutation is a number that is an operand of +, −, ·, / or a power, anywhere in the modules of ``TESTS``. The JSON
is written after every mutation; a call with the same ``--out`` goes on where
the last one ended, as long as the code of ``theory/`` is the same.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bornbiased_jax.files import write_json

ROOT = Path(__file__).resolve().parents[2]
FACTOR = 1.05
TIMEOUT_S = 600.0
NEEDED = ("theory", "bornbiased_jax", "tests/conftest.py", "pyproject.toml")
"""What the theory's tests import or read."""
TESTS: dict[str, tuple[str, ...]] = {
    "activations": ("test_kernels",),
    "checks": ("test_kernels", "test_quadrature"),
    "closed_forms": ("test_kernels",),
    "kernels": ("test_kernels", "test_quadrature"),
    "quadrature": ("test_quadrature",),
    "attention_weights": ("test_quadrature", "test_finite_width", "test_variance_theory", "test_mean_field"),
    "attention": ("test_attention_theory", "test_errata", "test_quadrature"),
    "mlp": ("test_mlp_theory", "test_errata"),
    "variance": ("test_variance_theory",),
    "preference": ("test_preference_theory", "test_uneven_inputs", "test_quadrature"),
    "logits": ("test_preference_theory", "test_uneven_inputs", "test_quadrature"),
    "positions": ("test_mean_field",),
    "finite_width": ("test_finite_width", "test_quadrature", "test_blocks"),
    "mean_field": ("test_mean_field", "test_blocks"),
    "sublayers": ("test_mean_field", "test_blocks", "test_finite_width", "test_errata", "test_uneven_inputs"),
    "seeds": ("test_finite_width", "test_blocks", "test_mean_field"),
    "predict": ("test_finite_width", "test_uneven_inputs", "test_errata"),
}
"""Module of ``theory/`` -> its tests, in the order in which they run."""


class Mutation(NamedTuple):
    """One constant, where it stands."""

    module: str
    line: int
    column: int
    old: str
    new: str

    def apply(self, text: str) -> str:
        """The module's text with the constant moved.

        Raises:
            ValueError: the constant does not stand there.
        """
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1].encode()
        end = self.column + len(self.old.encode())
        if line[self.column : end] != self.old.encode():
            raise ValueError(f"{self.module}.py has no {self.old} at line {self.line}, column {self.column}")
        lines[self.line - 1] = (line[: self.column] + self.new.encode() + line[end:]).decode()
        return "".join(lines)


def mutations(module: str, text: str) -> Iterator[Mutation]:
    """Every number of the module that is an operand of arithmetic, in the order of the text."""
    sites: list[ast.Constant] = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.BinOp):
            continue
        for side in (node.left, node.right):
            if isinstance(side, ast.Constant) and type(side.value) in (int, float) and side.value != 0:
                sites.append(side)
    for site in sorted(sites, key=lambda site: (site.lineno, site.col_offset)):
        old = ast.get_source_segment(text, site) or ""
        # Parentheses: 2 ** -1 and 1.05 * 2 ** n bind as the bare number did.
        yield Mutation(module, site.lineno, site.col_offset, old, f"({FACTOR} * {old})")


def digest() -> str:
    """Of the text of every file of ``theory/``."""
    found = hashlib.sha256()
    for path in sorted((ROOT / "theory").glob("*.py")):
        found.update(path.name.encode() + path.read_bytes())
    return found.hexdigest()[:16]


def copy(scratch: Path) -> None:
    """What the tests need, into an empty folder."""
    for name in NEEDED:
        source, target = ROOT / name, scratch / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        elif source.exists():
            shutil.copy(source, target)


def outcome(scratch: Path, module: str) -> str:
    """ "passes", the first test that fails, "no collection" or "too long", of the module's tests in the copy."""
    tests = [f"theory/{name}.py" for name in TESTS[module]]
    environment = os.environ | {"PYTHONPATH": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=scratch, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "too long"
    if done.returncode == 0:
        return "passes"
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" ")[1] if failed else "no collection"


def run(out: Path, modules: list[str], limit: int | None) -> dict[str, Any]:
    """Try every mutation that ``out`` does not have yet, and write it there.

    Raises:
        RuntimeError: the tests of a module fail without any mutation.
    """
    record: dict[str, Any] = {"theory": digest(), "factor": FACTOR, "mutations": []}
    if out.exists():
        older = json.loads(out.read_text())
        record = older if older["theory"] == record["theory"] else record
    tried = {(m["module"], m["line"], m["column"]) for m in record["mutations"]}
    count = 0
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        copy(scratch)
        for module in modules:
            path = scratch / "theory" / f"{module}.py"
            text = path.read_text()
            left = [m for m in mutations(module, text) if (m.module, m.line, m.column) not in tried]
            left = left if limit is None else left[: limit - count]
            if left and (found := outcome(scratch, module)) != "passes":
                raise RuntimeError(f"without a mutation: {found}")
            for mutation in left:
                path.write_text(mutation.apply(text))
                record["mutations"].append({**mutation._asdict(), "outcome": outcome(scratch, module)})
                path.write_text(text)
                count += 1
                write_json(out, record)
                print(*record["mutations"][-1].values())
    return record


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--module", choices=list(TESTS), action="append")
    parser.add_argument("--limit", type=int)
    options = parser.parse_args()
    record = run(options.out, options.module or list(TESTS), options.limit)
    passed = [m for m in record["mutations"] if m["outcome"] == "passes"]
    print(f"{len(record['mutations'])} mutations, {len(passed)} of them unnoticed")


if __name__ == "__main__":
    main()
