"""The tests of the theory, tested: one constant at a time is moved by 5% in a scratch copy, and a test must fall.

Run by hand, for hours: ``python -m experiments.theory.mutations --out mutations.json [--module mlp] [--limit 3]
[--minutes 50]``. A mutation is a number that is an operand of +, −, ·, / or a power, anywhere in the modules of
``TESTS``. They are tried in an order that ``ORDER_SEED`` shuffles: those tried so far are a random sample of all.
The JSON is written after every mutation; a call with the same ``--out`` goes on where the last one ended, as long as
the code of ``theory/`` is the same.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bornbiased_jax.code import code_digest
from bornbiased_jax.files import write_json
from bornbiased_jax.record import provenance

ROOT = Path(__file__).resolve().parents[2]
FACTOR = 1.05
TIMEOUT_S = 600.0
ORDER_SEED = 0
NEEDED = ("theory", "bornbiased_jax", "tests/conftest.py", "tests/compilation.py", "pyproject.toml")
"""What the theory's tests import or read."""
TESTS: dict[str, tuple[str, ...]] = {
    "activations": ("test_kernels",),
    "checks": ("test_kernels", "test_quadrature"),
    "closed_forms": ("test_kernels",),
    "kernels": ("test_kernels", "test_quadrature"),
    "quadrature": ("test_quadrature",),
    "attention_weights": ("test_quadrature", "test_variance_theory", "test_finite_width", "test_mean_field"),
    "attention": ("test_attention_theory", "test_errata", "test_quadrature"),
    "mlp": ("test_moments", "test_mlp_theory", "test_errata"),
    "variance": ("test_variance_theory",),
    "preference": ("test_preference_theory", "test_uneven_inputs", "test_quadrature"),
    "logits": ("test_preference_theory", "test_uneven_inputs", "test_quadrature"),
    "positions": ("test_mean_field",),
    "given_head": ("test_given_head",),
    "finite_width": ("test_moments", "test_finite_width", "test_quadrature", "test_blocks"),
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
    """Of the module's tests in the copy: "passes", the first test that fails, "no collection" or "too long"."""
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


def in_order(modules: Sequence[str]) -> list[Mutation]:
    """Every mutation of the modules, shuffled by ``ORDER_SEED``."""
    texts = {name: (ROOT / "theory" / f"{name}.py").read_text() for name in modules}
    found = [mutation for name, text in texts.items() for mutation in mutations(name, text)]
    random.Random(ORDER_SEED).shuffle(found)
    return found


def run(out: Path, modules: Sequence[str], limit: int | None = None, minutes: float | None = None) -> dict[str, Any]:
    """Try the mutations that ``out`` does not have yet, at most ``limit`` of them, and write each there.

    No mutation is begun after ``minutes``.

    Raises:
        RuntimeError: the tests of a module fail without any mutation.
    """
    record: dict[str, Any] = {"theory": digest(), "factor": FACTOR, "order_seed": ORDER_SEED, "mutations": []}
    if out.exists():
        older = json.loads(out.read_text())
        record = older if older["theory"] == record["theory"] else record
    record["constants"] = {name: sum(m.module == name for m in in_order([name])) for name in TESTS}
    tried = {(m["module"], m["line"], m["column"]) for m in record["mutations"]}
    left = [m for m in in_order(modules) if (m.module, m.line, m.column) not in tried][:limit]
    whole: set[str] = set()
    start, before = time.monotonic(), record.get("provenance", {}).get("wall_time_s", 0.0)
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        copy(scratch)
        for mutation in left:
            if minutes is not None and time.monotonic() - start > 60 * minutes:
                break
            module = mutation.module
            if module not in whole and (found := outcome(scratch, module)) != "passes":
                raise RuntimeError(f"{module} without a mutation: {found}")
            whole.add(module)
            path = scratch / "theory" / f"{module}.py"
            text = path.read_text()
            path.write_text(mutation.apply(text))
            record["mutations"].append({**mutation._asdict(), "outcome": outcome(scratch, module)})
            path.write_text(text)
            wall_time_s = before + time.monotonic() - start
            record["provenance"] = provenance(wall_time_s=wall_time_s, code=code_digest(run))
            write_json(out, record)
            print(*record["mutations"][-1].values(), flush=True)
    return record


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--module", choices=list(TESTS), action="append")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--minutes", type=float)
    options = parser.parse_args()
    record = run(options.out, options.module or list(TESTS), options.limit, options.minutes)
    passed = [m for m in record["mutations"] if m["outcome"] == "passes"]
    print(f"{len(record['mutations'])} mutations, {len(passed)} of them unnoticed")


if __name__ == "__main__":
    main()
