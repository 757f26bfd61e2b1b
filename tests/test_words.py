"""Names say what the glossary says: words that it replaced are in no identifier, and a loop variable names its row."""

import ast
import functools
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("bornbiased_jax", "theory", "experiments", "benchmarks", "tests")

REPLACED = {
    "accuse": "reject, call related",
    "accused": "rejected, called related",
    "accuses": "rejects",
    "behaviour": "behavior",
    "captures": "captured activations",
    "colour": "color",
    "colours": "colors",
    "cure": "mitigation",
    "cures": "mitigations",
    "favourite": "top-1 token",
    "favourites": "top-1 tokens",
    "headwise": "per-head",
    "lane": "CPU shard",
    "lanes": "CPU shards",
    "laws": "distributions",
    "licence": "license",
    "licences": "licenses",
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
    "channel_share",
    "peak_share",
    "share_of_sequences_massive",
    "shares_data_with",
    "top1_share",
    "top1_share_high",
    "top1_share_low",
    "top1_share_mean",
    "top1_share_p10",
    "top1_share_p50",
    "top1_share_p90",
}
# What is said in no prose either: docs, docstrings, comments, help. The others have uses of their own there: people are
# accused, and tests reject.
UNSAID = ("accuse", "accuses", "cure", "cures", "favourites", "lane", "lanes", "stranger", "strangers")
UNSAID += ("behaviour", "colour", "colours", "licence", "licences")
VAGUE = {"one", "found", "done", "it", "thing"}
# Pronouns and participles that say nothing of what a name holds: hardly any name is one of them.
_PRONOUNS = "asked done every found given how kept known made ours own said seen some theirs thing told what whole"
PRONOUNS = {*_PRONOUNS.split(), "chosen", "drawn", "held", "others", "shown", "taken", "which", "who", "whose"}
MOST_PRONOUNS = 3 / 1000

# Of pages, which readers without this project's history understand. Exempt are code, links, the paper's title, and the
# outputs that stand in code blocks.
PAGE_WORDS = {
    r"newborns?": "untrained model",
    r"births?": "initialization, initial weights",
    r"born": "initialized",
    r"courts?": "calibration benchmark",
    r"renumber\w*": "permute",
    r"strangers?": "unrelated models",
    r"ours": "of this package",
    r"theirs": "of the other model",
    r"cures?": "mitigation",
    r"favou?rites?": "top-1 token, preferred",
    r"accus(?:es?|ations?|ers?)": "reject, claim",
    r"lanes?": "CPU shard",
    r"damaged?": "corrupted",
    r"mend(?:s|ed|ing)?": "repair, fix, correct",
    r"beside": "alongside, versus, next to",
    r"go(?:es|ing)? on|went on": "resume, continue",
    r"typed again": "run again",
    r"h(?:a|u)ngs? on": "depends on",
    r"keeps? (?:its|their) promises?": "keeps its level, is calibrated",
    r"side by side": "compared",
    r"what became of": "name the result",
    r"in disguise": "after a change that keeps the function",
    r"behaviour|colours?|licences?": "the American spelling",
}
_TITLE = re.compile(r"(?:Transformers\s+are\s+)?born[\s-]+biased", re.IGNORECASE)


@functools.lru_cache(maxsize=1)
def _nodes(tree: ast.AST) -> list[ast.AST]:
    return list(ast.walk(tree))


def _identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every name that a module gives: variables, arguments, attributes set on self, functions, classes."""
    for node in _nodes(tree):
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
    for node in _nodes(tree):
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


class Words(NamedTuple):
    """What one module says in each way, by line."""

    wrong: list[tuple[int, str]]
    identifiers: list[tuple[int, str]]
    messages: list[tuple[int, str]]


@functools.cache
def _words(path: Path) -> Words:
    tree = ast.parse(path.read_text())
    return Words(list(_wrong(tree)), list(_identifiers(tree)), list(_messages(tree)))


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_name_has_a_replaced_word(folder):
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {words}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, words in _words(path).wrong
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if folder != "tests"])
def test_hardly_a_name_is_a_pronoun(folder):
    files = [path for path in (ROOT / folder).rglob("*.py") if not path.name.startswith("test_")]
    names = [(path, *row) for path in files for row in _words(path).identifiers]
    vague = [f"{path.relative_to(ROOT)}:{line}: {name}" for path, line, name in names if name.strip("_") in PRONOUNS]
    assert len(vague) <= MOST_PRONOUNS * len(names), "\n".join(vague)


def _prose(path: Path) -> Iterator[tuple[int, str]]:
    """Lines of a page outside its code and comments, or comments and docstrings of a module, but for this one."""
    text = path.read_text()
    if path.suffix == ".md":
        text = re.sub(r"```.*?```|`[^`]*`|<!--.*?-->", lambda code: "\n" * code[0].count("\n"), text, flags=re.DOTALL)
        yield from enumerate(text.splitlines(), 1)
    elif path != Path(__file__).resolve():
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and '"""' in token.string):
                yield token.start[0], re.sub(r"``.*?``|`[^`]*`|\"\w+\"", "", token.string)


_UNSAID = re.compile(rf"\b({'|'.join(UNSAID)})\b", re.IGNORECASE)


def _may_say_one(text: str) -> bool:
    lowered = text.lower()
    return any(word in lowered for word in UNSAID)


def _said(lines: Iterable[tuple[int, str]]) -> list[str]:
    return [f"{line}: {word}: say {REPLACED[word.lower()]}" for line, text in lines for word in _UNSAID.findall(text)]


@pytest.mark.parametrize("folder", [".", "docs", *FOLDERS])
def test_no_prose_has_a_replaced_word(folder):
    pages = (ROOT / folder).glob("*.md") if folder == "." else (ROOT / folder).rglob("*")
    wrong = [
        f"{path.relative_to(ROOT)}:{where}"
        for path in sorted(pages)
        # Few files have such a word at all, and only these are taken apart.
        if path.suffix in (".py", ".md") and _may_say_one(path.read_text())
        for where in _said(_prose(path))
    ]
    assert not wrong, "\n".join(wrong)


def _page_prose(path: Path) -> str:
    """Text of a page, or of the Markdown cells of a notebook, without code, comments and targets of links."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    code = r"```.*?```|`[^`]*`|<!--.*?-->|\]\([^)]*\)"
    text = re.sub(code, lambda match: "\n" * match[0].count("\n"), text, flags=re.DOTALL)
    return _TITLE.sub(lambda match: "\n" * match[0].count("\n"), text)


def _unplain(text: str) -> list[str]:
    # A phrase may go over the end of a line.
    words = {word.replace(" ", r"\s+"): instead for word, instead in PAGE_WORDS.items()}
    return [
        f"{text.count(chr(10), 0, match.start()) + 1}: {match[0]}: say {instead}"
        for word, instead in words.items()
        for match in re.finditer(rf"\b(?:{word})\b", text, re.IGNORECASE)
    ]


def _pages() -> list[Path]:
    own = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    docs = [
        path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".ipynb") and path.name != "changelog.md"
    ]
    return own + sorted(docs) + sorted((ROOT / "experiments").glob("*/README.md"))


@pytest.mark.parametrize("page", _pages(), ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_are_in_plain_words(page):
    assert not _unplain(_page_prose(page))


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("A newborn model.", 1),
        ("It goes\non.", 1),
        ("Renumbered strangers in court.", 3),
        ("`court` and [a page](court.md)", 0),
        ("```\na shared birth\n```\n", 0),
        ("Transformers Are\nBorn Biased", 0),
        ("The courtesy of a stubborn reader", 0),
    ],
)
def test_unplain_words_are_noticed_and_code_and_titles_are_left(tmp_path, text, count):
    page = tmp_path / "page.md"
    page.write_text(text)
    assert len(_unplain(_page_prose(page))) == count


# Values of records, fingerprints and reports, which are frozen; pages replace the words (experiments.base.LABELS).
FROZEN = {
    "birth of seed ",
    "shared birth",
    r"\ba birth\b",
    "a birth and a trained model",
    "rotated, units and heads renumbered",
    "birth: matched units",
    "own birth",
    "another birth",
    "own birth, hidden",
    "bilinear, its birth",
}


def _messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Texts of more than one word that a program may print: messages, help, titles; neither docstrings nor code."""
    unprinted = {id(node.value) for node in _nodes(tree) if isinstance(node, ast.Expr)}
    for node in _nodes(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or id(node) in unprinted:
            continue
        if " " in node.value.strip() and node.value not in FROZEN:
            yield node.lineno, _TITLE.sub("", re.sub(r"`[^`]*`", "", node.value))


@pytest.mark.parametrize("folder", ["bornbiased_jax", "experiments", "theory"])
def test_messages_and_help_are_in_plain_words(folder):
    pattern = re.compile(rf"\b(?:{'|'.join(PAGE_WORDS)})\b", re.IGNORECASE)
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {match[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.startswith("test_")
        for line, text in _words(path).messages
        for match in pattern.finditer(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ('raise InputError(f"{path} is damaged: it goes on")', 2),
        ('"""Beside it."""', 0),
        ('row = {"birth": "own birth", "text": "`a court` of law"}', 0),
    ],
)
def test_unplain_words_of_messages_are_noticed(code, count):
    pattern = re.compile(rf"\b(?:{'|'.join(PAGE_WORDS)})\b", re.IGNORECASE)
    assert sum(len(pattern.findall(text)) for _, text in _messages(ast.parse(code))) == count


@pytest.mark.parametrize(("name", "text"), [("a.md", "The cures.\n"), ("a.py", "x = 1  # A stranger.\n")])
def test_a_replaced_word_of_prose_is_noticed(tmp_path, name, text):
    (tmp_path / name).write_text(text + "`cures`\n" * (name == "a.md"))
    assert len(_said(_prose(tmp_path / name))) == 1


@pytest.mark.parametrize(
    "code",
    ["def f(share): ...", "CURES = {}", "self.last_token_share = 1", "for one in x: ...", "[found for found in x]"],
)
def test_a_replaced_word_is_noticed(code):
    assert list(_wrong(ast.parse(code)))


def test_words_within_words_are_left():
    assert not list(_wrong(ast.parse("def shared(lawful, done): spreadsheet = 1")))
