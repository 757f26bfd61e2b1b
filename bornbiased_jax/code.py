"""A digest of the code behind a number, so that stores, caches and records know when it has changed."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bornbiased_jax.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the package."""
PACKAGE = "bornbiased_jax"
SILENT = (
    *("bornbiased_jax.report", "bornbiased_jax.cli", "bornbiased_jax.progress", "bornbiased_jax.record"),
    *("bornbiased_jax.code", "bornbiased_jax.executors", "bornbiased_jax.store", "bornbiased_jax.chunk_store"),
    *("bornbiased_jax.experiments.base", "bornbiased_jax.experiments.runner"),
    *("bornbiased_jax.experiments.birth.settings", "bornbiased_jax.experiments.demo.settings"),
    *("bornbiased_jax.experiments.lineage.settings", "bornbiased_jax.experiments.theory.settings"),
)
"""Modules that no number depends on: display, the command line, the machinery that keeps records, and settings.

Settings that functions read from their context alone are stated by records and by the keys of caches. A chapter whose
functions read constants of its settings is not listed.
"""
# "bornbiased_jax.lineage.paper:paper_test" in a table of functions that are imported when first used.
_LOADED_BY_NAME = re.compile(rf"{PACKAGE}(\.\w+)+(:\w+)?$")
_NO_CODE = ("ctx", "kind", "type_comment")


def code_digest(compute: Callable[..., Any]) -> str:
    """Compute a digest of the code that a function runs, as it lies on disk: 16 hexadecimal digits.

    Covered are the modules of the static import closure of the function's module within :data:`PACKAGE`, with imports
    inside functions and modules that a string names in full. A package's ``__init__`` counts where a name is imported
    from it. Comments, docstrings, layout, ``__version__``, paths and :data:`SILENT` modules are left out: the digest is
    the same on every machine and Python. A process computes it once for each module.

    Args:
        compute: a function. Outside the package (in a test) its own file is where the closure begins.

    Raises:
        InputError: the function's source, or a file of the closure, cannot be read.
    """
    while isinstance(compute, functools.partial):
        compute = compute.func
    compute = inspect.unwrap(compute)
    try:
        source = inspect.getsourcefile(compute)
    except TypeError:
        source = None
    # Python 3.13 names "<string>" for code that was made of one.
    if source is None or source.startswith("<"):
        raise InputError(f"{compute.__qualname__} has no source file to take a digest of: define it in a module")
    return _digest(compute.__module__, Path(source))


@functools.cache
def _digest(module: str, source: Path) -> str:
    modules = closure(module, source)
    text = "\n".join(f"{name}\n{modules[name]}" for name in sorted(modules))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def closure(module: str, source: Path | None = None) -> dict[str, str]:
    """Return every module that a module imports, directly or not, and its syntax as text.

    Args:
        module: the first one.
        source: the module's file, where it lies outside the package.
    """
    path = source or _find(module)
    if path is None:
        raise InputError(f"the module {module} does not lie below {ROOT}")
    modules: dict[str, str] = {}
    waiting = [(module, path)]
    while waiting:
        name, path = waiting.pop()
        if name in modules:
            continue
        modules[name], imports = _parse(path)
        for imported in imports:
            # What is imported from a package is a module, or a name of its __init__.
            parent, _, member = imported.rpartition(".")
            target = imported if _find(imported) else parent
            place = _find(target)
            if place is None or any(f"{target}.".startswith(f"{silent}.") for silent in SILENT):
                continue
            if target == parent and place.name == "__init__.py" and b"def __getattr__(" in place.read_bytes():
                raise InputError(f"{member} of {parent} is found by name: import it from its module")
            waiting.append((target, place))
    return modules


def _find(module: str) -> Path | None:
    if module.split(".")[0] != PACKAGE:
        return None
    path = ROOT.joinpath(*module.split("."))
    return next((place for place in (path.with_suffix(".py"), path / "__init__.py") if place.is_file()), None)


@functools.cache
def _parse(path: Path) -> tuple[str, list[str]]:
    """Return the syntax of a file as text, and the modules and members that it imports by their full names."""
    try:
        # As bytes: the locale's encoding may be another than the file's.
        tree = ast.parse(path.read_bytes())
        return _text(tree), [name for node in ast.walk(tree) for name in _imports_of(node)]
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Python: {error}") from error


def _text(value: object) -> str:
    """Write a syntax tree as text without docstrings and places, alike on every Python."""
    if isinstance(value, ast.AST):
        fields = ((name, getattr(value, name, None)) for name in value._fields if name not in _NO_CODE)
        parts = [f" {name}={_text(field)}" for name, field in fields if field is not None and field != []]
        return type(value).__name__ + "".join(parts)
    if isinstance(value, list):
        return f"[{''.join(_text(entry) for entry in value if not _is_silent(entry))}]"
    return repr(value)


def _imports_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.level or node.names[0].name == "*":
            raise ValueError(f"line {node.lineno}: import by the module's full name, and what is used by its own")
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and _LOADED_BY_NAME.match(node.value):
        module = node.value.partition(":")[0]
        return [module] if _find(module) else []
    return []


def _is_silent(node: object) -> bool:
    """Check for a string that stands alone, and for ``__all__`` and ``__version__``."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets
    )
