"""A digest of the code behind a number, so that caches and records know when it has changed."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bornbiased_jax.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
"""The folder of the packages."""

PACKAGES = ("theory", "bornbiased_jax", "experiments")

# "bornbiased_jax.lineage.paper:paper_test" in a table of what is loaded when it is asked for.
_LOADED_BY_NAME = re.compile(rf"({'|'.join(PACKAGES)})(\.\w+)+(:\w+)?$")

SILENT = (
    *("bornbiased_jax.report", "bornbiased_jax.cli", "bornbiased_jax.progress", "bornbiased_jax.record"),
    *(
        "bornbiased_jax.code",
        "bornbiased_jax.store",
        "bornbiased_jax.executors",
        "experiments.base",
        "experiments.runner",
    ),
)
"""What no number depends on: display, the command line, and the machinery that keeps records."""


@dataclasses.dataclass(frozen=True)
class _Statement:
    """One statement of a module: what it binds (None: it is always needed), what it reads, and what it imports."""

    binds: frozenset[str] | None
    reads: frozenset[str]
    imports: tuple[tuple[str, tuple[str, ...] | None], ...]
    text: str


def code_digest(compute: Callable[..., Any]) -> str:
    """Compute a digest of the code that a function runs, as it lies on disk: 16 hexadecimal digits.

    Covered is the static import closure of the function's module within :data:`PACKAGES`, with imports inside functions
    and modules that a string names in full. Modules count whole, but for two kinds: of the function's own module what
    the function reaches, and of a package's ``__init__`` what is imported from it. So the tables and claims beside an
    experiment's ``run``, and a new name in a list, change nothing. Comments, docstrings, layout and :data:`SILENT`
    modules are left out, paths too: the digest is the same on every machine and Python.

    A process computes it once for each function: its own code does not change while it runs.

    Args:
        compute: a function; one defined inside another counts as that one. Outside the packages (in a test) its own
            file is where the closure begins.

    Raises:
        InputError: the function's source, or a file of the closure, cannot be read.
    """
    while isinstance(compute, functools.partial):
        compute = compute.func
    compute = inspect.unwrap(compute)
    module, name = compute.__module__, compute.__qualname__.split(".")[0]
    if module.split(".")[0] in PACKAGES:
        return _digest(module, name, ROOT, None)
    try:
        source = inspect.getsourcefile(compute)
    except TypeError:
        source = None
    if source is None:
        raise InputError(f"{name} has no source file to take a digest of: define it in a module")
    return _digest(module, name, ROOT, Path(source))


@functools.cache
def _digest(module: str, name: str, root: Path, source: Path | None) -> str:
    return hashlib.sha256("\n".join(closure(module, name, root, source)).encode()).hexdigest()[:16]


def closure(module: str, name: str | None = None, root: Path = ROOT, source: Path | None = None) -> Iterator[str]:
    """Yield every module that a function of a module needs, in order: its name, then the statements that count.

    Args:
        module: where the function is defined.
        name: the function; None takes the whole module.
        root: the folder of the packages.
        source: the module's file, where it lies outside the packages.
    """
    first = source or _find(root, module)
    if first is None:
        raise InputError(f"the module {module} does not lie below {root}")
    statements = _read(first)
    defined = {bound for statement in statements for bound in statement.binds or ()}
    # Module -> the names that are wanted of it, None for all.
    needed: dict[str, frozenset[str] | None] = {module: frozenset({name}) if name in defined else None}
    paths = {module: first}
    # Follow imports until no module is asked for further names.
    waiting = [module]
    while waiting:
        current = waiting.pop()
        for statement in _reached(_read(paths[current]), needed[current]):
            for target, names in _targets(statement, root):
                path = _find(root, target)
                if path is None or _silent(target):
                    continue
                paths[target] = path
                before = needed.get(target, frozenset())
                after = None if before is None or names is None else before | names
                if target not in needed or after != before:
                    needed[target] = after
                    waiting.append(target)
    for module in sorted(needed):
        yield module
        yield from (statement.text for statement in _reached(_read(paths[module]), needed[module]))


def _silent(module: str) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in SILENT)


def _find(root: Path, module: str) -> Path | None:
    if module.split(".")[0] not in PACKAGES:
        return None
    path = root.joinpath(*module.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _targets(statement: _Statement, root: Path) -> Iterator[tuple[str, frozenset[str] | None]]:
    """Yield the modules that a statement imports, and the names that it needs of each; None for all."""
    for module, names in statement.imports:
        parts = module.split(".")
        for length in range(1, len(parts)):
            yield ".".join(parts[:length]), frozenset()
        path = _find(root, module)
        if names is None or (path is not None and path.name != "__init__.py"):
            yield module, None
            continue
        # A package, or a folder without an __init__.
        bound = frozenset(name for name in names if _find(root, f"{module}.{name}") is None)
        named = {name for entry in _read(path) for name in entry.binds or ()} if path is not None else set()
        if "__getattr__" in named and (hidden := bound - named):
            raise InputError(f"{', '.join(sorted(hidden))} of {module} is found by name: import it from its module")
        yield module, bound
        for name in names:
            yield f"{module}.{name}", None


def _reached(statements: tuple[_Statement, ...], needed: frozenset[str] | None) -> list[_Statement]:
    """Return the statements that the needed names depend on, and those that bind nothing and so act."""
    if needed is None:
        return [statement for statement in statements if statement.text]
    reached: set[int] = set()
    names: set[str] = set(needed)
    while True:
        added = {
            index
            for index, statement in enumerate(statements)
            if index not in reached and (statement.binds is None or statement.binds & names)
        }
        if not added:
            return [statements[index] for index in sorted(reached) if statements[index].text]
        reached |= added
        names.update(*(statements[index].reads for index in added))


def _read(path: Path) -> tuple[_Statement, ...]:
    try:
        facts = path.stat()
        return _parse(path, facts.st_mtime_ns, facts.st_size)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputError(f"{path} cannot be read as Python: {error}") from error


@functools.lru_cache(maxsize=4096)
def _parse(path: Path, _mtime_ns: int, _size: int) -> tuple[_Statement, ...]:
    return tuple(map(_statement, ast.parse(path.read_text()).body))


def _statement(node: ast.stmt) -> _Statement:
    reads: set[str] = set()
    imports: list[tuple[str, tuple[str, ...] | None]] = []
    for child in ast.walk(node):
        if isinstance(child, ast.Name):
            reads.add(child.id)
        elif isinstance(child, ast.Import):
            imports += [(alias.name, None) for alias in child.names]
        elif isinstance(child, ast.ImportFrom):
            if child.level or child.names[0].name == "*":
                raise ValueError(f"line {child.lineno}: import by the module's full name, and what is used by its own")
            imports.append((child.module or "", tuple(alias.name for alias in child.names)))
        elif isinstance(child, ast.Constant) and isinstance(child.value, str) and _LOADED_BY_NAME.match(child.value):
            imports.append((child.value.partition(":")[0], None))
    text: list[str] = []
    _write(node, text)
    return _Statement(_bound(node), frozenset(reads), tuple(imports), "".join(text))


def _bound(node: ast.stmt) -> frozenset[str] | None:
    """Return the names that a definition, an import or an assignment binds; None for a statement that acts."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return frozenset({node.name})
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return frozenset(alias.asname or alias.name.split(".")[0] for alias in node.names)
    targets: list[ast.expr]
    if isinstance(node, ast.Assign):
        targets = [leaf for target in node.targets for leaf in getattr(target, "elts", [target])]
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    else:
        return None
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return frozenset(names) if len(names) == len(targets) else None


def _write(value: object, text: list[str]) -> None:
    """Write a syntax tree as text without docstrings, places and ``__version__``; alike on every Python."""
    if isinstance(value, ast.AST):
        if _says_nothing(value):
            return
        text.append(f"({type(value).__name__}")
        for name, field in ast.iter_fields(value):
            if field is None or field == [] or name in ("ctx", "kind", "type_comment"):
                continue
            text.append(f" {name}=")
            _write(field, text)
        text.append(")")
    elif isinstance(value, list):
        text.append("[")
        for entry in value:
            _write(entry, text)
        text.append("]")
    else:
        text.append(repr(value))


def _says_nothing(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    # __all__, __version__: names for others.
    return isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) and target.id.startswith("__") for target in node.targets
    )
