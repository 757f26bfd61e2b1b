"""Text that every installation already has: English prose and code, assembled from installed sources.

``prose`` is the running text of the documentation strings of the Python standard library (the
language reference that ``pydoc`` carries included) and of the scientific packages that this package
depends on. ``code`` is the standard library's own source. Nothing is imported for it: sources are
read and parsed with :mod:`ast`.

The text depends on the installed versions, so each corpus carries a digest of its content.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import importlib.metadata
import importlib.util
import inspect
import io
import json
import platform
import re
import sysconfig
import tokenize
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import cache

# Raised whenever the rules below change, so that no cached corpus of other rules is used.
RECIPE = 1
PACKAGES = ("numpy", "scipy", "matplotlib", "jax", "flax", "optax")
# Tests, bundled copies of other packages, generated tables and files that differ by machine.
SKIPPED_FOLDERS = frozenset(
    (
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "testing",
        "idle_test",
        "__pycache__",
        "_vendor",
        "_bundled",
    )
)
SKIPPED_FILES = ("_sysconfigdata", "sitecustomize", "usercustomize", "test_")
GENERATED_FOLDERS = ("encodings", "pydoc_data")

_SENTENCE_END = re.compile(r"[.!?:][)\"'`]*$")
_MARKUP = re.compile(r">>>|\.\. |\.\.\. |^\s*[-=~*+#:|@]|^\s*\d+[.)]|::$|\\[a-z]+|[{}|<>\\]|https?://", re.MULTILINE)
_TRIPLE_QUOTED = re.compile(rb'("""|\'\'\')(.*?)\1', re.DOTALL)
_NOT_LETTERS = re.compile("[^A-Za-z ]")
_WORD = re.compile(r"[A-Za-z][a-z]*(?:'[a-z]+)?")


@dataclass(frozen=True)
class Corpus:
    """A built-in corpus: its documents in a fixed order and what identifies them."""

    name: str
    documents: tuple[str, ...]
    digest: str


def check_name(name: str) -> None:
    """Refuse a name that no built-in corpus has.

    Raises:
        InputError: no such corpus.
    """
    if name not in BUILDERS:
        raise InputError(f"unknown built-in corpus {name!r}: the built-in corpora are {', '.join(BUILDERS)}")


@functools.lru_cache(maxsize=4)
def corpus(name: str) -> Corpus:
    """Return a built-in corpus: ``prose`` or ``code``. Assembled once per installation, then cached.

    Raises:
        InputError: no such corpus, or an installation without sources.
    """
    check_name(name)
    versions = {"python": platform.python_version()}
    roots = {"python": _standard_library()}
    if name == "prose":
        for package in PACKAGES:
            root = _package_root(package)
            if root is not None:
                roots[package] = root
                versions[package] = importlib.metadata.version(package)
    identity = json.dumps([RECIPE, name, versions, {key: str(root) for key, root in roots.items()}])
    slot = f"corpora/{name}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.json.z"
    stored = cache.load(slot)
    if stored is not None:
        documents = tuple(json.loads(stored))
    else:
        documents = tuple(BUILDERS[name](roots))
        cache.store(slot, json.dumps(documents).encode())
    if not documents:
        raise InputError(f"builtin:{name} is empty: this Python carries no sources to make it from; name a text file")
    return Corpus(name, documents, documents_digest(documents))


def documents_digest(documents: tuple[str, ...]) -> str:
    """Hash documents in order by SHA-256, each preceded by its length, so that boundaries count."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little"))
        digest.update(data)
    return digest.hexdigest()


def _standard_library() -> Path:
    return Path(sysconfig.get_paths()["stdlib"])


def _package_root(package: str) -> Path | None:
    """Find the folder of an installed package without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(list(spec.submodule_search_locations)[0])


def _sources(root: Path, skipped: tuple[str, ...] = ()) -> Iterator[Path]:
    """List Python files below a root, in the order of their relative names."""
    sources = []
    for path in root.rglob("*.py"):
        relative = path.relative_to(root)
        if not SKIPPED_FOLDERS.isdisjoint(relative.parts) or not set(skipped).isdisjoint(relative.parts):
            continue
        if not relative.name.startswith(SKIPPED_FILES):
            sources.append((relative.as_posix(), path))
    return (path for _, path in sorted(sources))


def _build_code(roots: dict[str, Path]) -> Iterator[str]:
    """Yield one document a module of the standard library, exact duplicates left out."""
    earlier = set()
    for path in _sources(roots["python"], skipped=GENERATED_FOLDERS):
        text = _decoded(path)
        if text is not None and len(text) >= 200 and text not in earlier:
            earlier.add(text)
            yield text


def _decoded(path: Path) -> str | None:
    r"""Decode a source file by its declared encoding, with newlines as "\n"; None if it has none."""
    try:
        raw = path.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding).removeprefix("\ufeff")
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError):
        return None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _build_prose(roots: dict[str, Path]) -> Iterator[str]:
    """Yield one document a module: the prose paragraphs of its documentation, without repeats."""
    earlier: set[str] = set()
    collecting = gc.isenabled()
    # Syntax trees are many small objects without cycles worth finding: collecting costs half the time.
    gc.disable()
    try:
        for name, root in roots.items():
            for path in _sources(root, skipped=("encodings",) if name == "python" else ()):
                paragraphs = []
                for paragraph in _module_paragraphs(path):
                    if paragraph not in earlier:
                        earlier.add(paragraph)
                        paragraphs.append(paragraph)
                if paragraphs:
                    yield "\n\n".join(paragraphs) + "\n"
    finally:
        if collecting:
            gc.enable()


def _module_paragraphs(path: Path) -> Iterator[str]:
    try:
        raw = path.read_bytes()
        # Parsing is the cost: a file of which less than a fifth stands in triple quotes repays it badly.
        if 5 * sum(len(text) for _, text in _TRIPLE_QUOTED.findall(raw)) < len(raw):
            return
        with warnings.catch_warnings():
            # Other people's invalid escape sequences are not our user's concern.
            warnings.simplefilter("ignore")
            tree = ast.parse(raw)
    except (OSError, SyntaxError, ValueError):
        return
    for text in _documentation(tree):
        if len(text) >= 80:
            for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
                paragraph = " ".join(block.split())
                if is_prose(block, paragraph):
                    yield paragraph


def _documentation(tree: ast.Module) -> Iterator[str]:
    """Yield documentation strings, also those passed to calls (``add_newdoc``) and in top-level dicts."""
    stack: list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = [tree]
    while stack:
        node = stack.pop()
        inner = []
        for statement in node.body:
            values: list[ast.expr] = []
            if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                inner.append(statement)
            elif isinstance(statement, ast.Expr):
                call = statement.value
                values = list(call.args) if isinstance(call, ast.Call) else [call]
            elif isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Dict):
                values = list(statement.value.values)
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value
        stack.extend(reversed(inner))


def is_prose(block: str, paragraph: str) -> bool:
    """Return whether a block of a documentation string (and the same on one line) reads as English sentences.

    It starts with a capital, ends like a sentence, has at least eight words, consists of ASCII letters
    and spaces to 85%, of plain words to 75%, and has none of the marks of lists, doctests, tables,
    formulas and directives.
    """
    if len(paragraph) < 60 or not paragraph[0].isupper() or not paragraph.isascii():
        return False
    if not _SENTENCE_END.search(paragraph) or _MARKUP.search(block) or _MARKUP.search(paragraph):
        return False
    tokens = paragraph.split()
    if len(tokens) < 8:
        return False
    symbols = len(_NOT_LETTERS.findall(paragraph))
    plain = sum(_WORD.fullmatch(token.strip(".,;:!?()\"'`*")) is not None for token in tokens)
    return symbols <= 0.15 * len(paragraph) and plain >= 0.75 * len(tokens)


BUILDERS = {"prose": _build_prose, "code": _build_code}
