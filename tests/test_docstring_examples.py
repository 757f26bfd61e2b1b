"""Examples in docstrings run."""

import ast
import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("bornbiased_jax", "experiments")


def with_examples() -> list[str]:
    """Every function, method or class below the rooms whose docstring has an example, found without importing."""
    names = []
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            text = path.read_text()
            if ">>>" not in text:
                continue
            module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            if room != "bornbiased_jax":
                module = f"bornbiased_jax.{module}"
            for node in ast.parse(text).body:
                members = node.body if isinstance(node, ast.ClassDef) else []
                for entry, name in [(node, ""), *((member, f"{getattr(node, 'name', '')}.") for member in members)]:
                    if isinstance(entry, ast.FunctionDef | ast.ClassDef) and ">>>" in (ast.get_docstring(entry) or ""):
                        names.append(f"{module}:{name}{entry.name}")
    return names


EXAMPLES = with_examples()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_runs(name):
    module_name, _, path = name.partition(":")
    module = importlib.import_module(module_name)
    thing = module
    for part in path.split("."):
        thing = getattr(thing, part)
    finder = doctest.DocTestFinder(recurse=False)
    (example,) = finder.find(thing, path, module=module, globs=dict(vars(module)))
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    said: list[str] = []
    runner.run(example, out=said.append)
    assert runner.failures == 0 and runner.tries > 0, "".join(said)
