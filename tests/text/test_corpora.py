"""The built-in corpora: prose that reads as prose, code that is code, the same every time."""

import ast
import sys
import textwrap

import pytest

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import cache, corpora


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Both corpora, assembled afresh, and the folder that they are cached in."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.CACHE_VARIABLE, str(folder))
        corpora.corpus.cache_clear()
        modules = set(sys.modules)
        built = {name: corpora.corpus(name) for name in corpora.BUILDERS}
        # The packages whose sources are read are not imported for it.
        assert not {"matplotlib", "scipy.special", "optax"} & (set(sys.modules) - modules)
        yield built, folder
    corpora.corpus.cache_clear()


@pytest.mark.slow
def test_each_corpus_is_several_megabytes_of_distinct_documents(made):
    for corpus in made[0].values():
        assert sum(map(len, corpus.documents)) > 2e6
        assert len(set(corpus.documents)) == len(corpus.documents) > 300
        assert corpus.digest == corpora.documents_digest(corpus.documents)


@pytest.mark.slow
def test_prose_is_sentences_in_ascii(made):
    observed = set()
    for document in made[0]["prose"].documents:
        assert document.isascii() and document.endswith("\n")
        for paragraph in document.strip().split("\n\n"):
            assert corpora.is_prose(paragraph, paragraph)
            assert paragraph not in observed
            observed.add(paragraph)
    words = " ".join(observed).lower().split()
    # English function words: "the" is about 7% of prose, and of code or tables next to nothing.
    assert 0.04 < words.count("the") / len(words) < 0.12


@pytest.mark.slow
def test_code_parses(made):
    documents = made[0]["code"].documents
    for document in documents[::20]:
        ast.parse(document)
    assert sum("def " in document for document in documents) > len(documents) / 2


@pytest.mark.slow
def test_the_cached_corpus_is_the_assembled_one(made):
    built, folder = made
    assert len(list((folder / "corpora").iterdir())) == len(built)
    for name, corpus in built.items():
        corpora.corpus.cache_clear()
        assert corpora.corpus(name) == corpus


@pytest.mark.slow
def test_a_damaged_cache_is_assembled_again(made):
    built, folder = made
    for path in (folder / "corpora").glob("code-*"):
        path.write_bytes(path.read_bytes()[:-10])
    corpora.corpus.cache_clear()
    assert corpora.corpus("code") == built["code"]


def test_documents_digest_sees_boundaries_and_order():
    cases = [("ab", "c"), ("a", "bc"), ("c", "ab"), ("abc",), ("ab", "c", "")]
    assert len({corpora.documents_digest(case) for case in cases}) == len(cases)


@pytest.mark.parametrize(
    "block",
    [
        "Return the sum of array elements over a given axis, and ignore the masked values it holds.",
        "This is a method (which may be overridden) that the base class calls before anything is read:",
    ],
)
def test_sentences_are_prose(block):
    assert corpora.is_prose(block, block)


@pytest.mark.parametrize(
    "block",
    [
        "too short to be a paragraph.",
        "no capital at the beginning of a sentence that is otherwise long enough to be taken for prose.",
        "Parameters ---------- x : array_like, y : array_like, z : array_like, w : (M, N) array_like, k.",
        ">>> print(np.sum([1, 2, 3]))  # A doctest is no prose, however long it becomes in the end of all.",
        "A sentence that has no end and goes on until the line is over without anything to stop it, see",
        "The values 1.0 2.0 3.0 4.0 5.0 6.0 7.0 8.0 9.0 10.0 11.0 12.0 13.0 14.0 15.0 16.0 17.0 18.0.",
        "Naïve words outside of ASCII keep a paragraph out, which costs little and keeps the text plain.",
    ],
)
def test_other_blocks_are_not_prose(block):
    assert not corpora.is_prose(block, " ".join(block.split()))


def test_documentation_is_found_wherever_it_stands(tmp_path):
    sentence = "The {} of this small module explains at some length, in plain words, what it is there for."
    source = textwrap.dedent(f'''
        """{sentence.format("docstring")}"""
        def f():
            """{sentence.format("function")}"""
            x = """{sentence.format("variable, which is none")}"""
        class A:
            """{sentence.format("class")}"""
            async def g(self):
                """{sentence.format("method")}

                x : int
                """
        add_newdoc("a", """{sentence.format("call")}""")
        topics = {{"key": """{sentence.format("topic")}"""}}
    ''')
    path = tmp_path / "module.py"
    path.write_text(source)
    paragraphs = list(corpora._module_paragraphs(path))
    wanted = ["docstring", "call", "topic", "function", "class", "method"]
    assert paragraphs == [sentence.format(word) for word in wanted]


def test_broken_sources_are_passed_over(tmp_path):
    path = tmp_path / "module.py"
    for content in (b'"""\xff"""', b'"""unfinished', b'"""null \x00"""', b'def f(:\n    """text"""'):
        path.write_bytes(content)
        assert list(corpora._module_paragraphs(path)) == []
    path.write_bytes(b"# -*- coding: nonsense -*-\n")
    assert corpora._decoded(path) is None
    path.write_bytes("# -*- coding: latin-1 -*-\r\nx = 'é'\r\n".encode("latin-1"))
    assert corpora._decoded(path) == "# -*- coding: latin-1 -*-\nx = 'é'\n"


def test_unknown_and_empty_corpora_are_refused(monkeypatch, tmp_path):
    with pytest.raises(InputError, match="prose, code"):
        corpora.corpus("poetry")
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(corpora, "_standard_library", lambda: tmp_path)
    corpora.corpus.cache_clear()
    with pytest.raises(InputError, match="carries no sources"):
        corpora.corpus("code")
