"""Names say what the glossary says: words that it replaced are in no identifier, and a loop variable names its row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("bornbiased_jax", "theory", "experiments", "benchmarks", "tests")

REPLACED = {
    "accuse": "reject, call related",
    "accused": "rejected, called related",
    "accuses": "rejects",
    "captures": "captured activations",
    "cure": "mitigation",
    "cures": "mitigations",
    "favourite": "top-1 token",
    "favourites": "top-1 tokens",
    "headwise": "per-head",
    "lane": "CPU shard",
    "lanes": "CPU shards",
    "laws": "distributions",
    "share": "fraction, part",
    "shares": "fractions, parts",
    "spread": "standard deviation (std)",
    "stranger": "unrelated model",
    "strangers": "unrelated models",
}
# Kept: a verb, and the published keys of JSON.
KEPT = {
    "test_seeds_at_once_share_a_call",
    "test_training_experiments_share_their_models",
    "top1_share",
    "peak_share",
}
VAGUE = {"one", "found", "done", "it", "thing"}


def _identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module gives: variables, arguments, attributes set on self, functions, classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def _rows(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every variable of a loop, a comprehension or a lambda."""
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.comprehension):
            yield from ((name.lineno, name.id) for name in ast.walk(node.target) if isinstance(name, ast.Name))
        elif isinstance(node, ast.Lambda):
            yield from ((node.lineno, argument.arg) for argument in node.args.args)


def _wrong(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for line, name in _identifiers(tree):
        words = [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]
        for word in words:
            if word in REPLACED and name not in KEPT:
                yield line, f"{name}: say {REPLACED[word]}"
    for line, name in _rows(tree):
        if name in VAGUE:
            yield line, f"{name}: name the row"


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_has_a_replaced_word(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, words in _wrong(ast.parse(path.read_text()))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    ["def f(share): ...", "CURES = {}", "self.last_token_share = 1", "for one in x: ...", "[found for found in x]"],
)
def test_a_replaced_word_is_noticed(code):
    assert list(_wrong(ast.parse(code)))


def test_words_within_words_are_left():
    assert not list(_wrong(ast.parse("def shared(lawful, done): spreadsheet = 1")))
