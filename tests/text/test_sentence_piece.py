"""SentencePiece models: trained here and real ones, and what happens without the library."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bornbiased_jax.errors import InputError
from bornbiased_jax.text.tokenizers import load_tokenizer
from tests.fixtures.sentence_pieces import sentence_piece_model

sentencepiece = pytest.importorskip("sentencepiece", exc_type=ImportError)
LINES = ["the quick brown fox jumps over the lazy dog"] * 50


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("sp") / "tokenizer.model"
    path.write_bytes(sentence_piece_model(LINES, 300))
    return path


@pytest.fixture(scope="module")
def tokenizer(path):
    return load_tokenizer(path)


@given(text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\u2581"), max_size=60))
def test_text_comes_back(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_facts_and_saving(tokenizer, path, tmp_path):
    assert (tokenizer.vocab_size, tokenizer.eos_id, tokenizer.bos_id) == (300, 2, 1)
    assert len(tokenizer.encode("the")) == 1
    again = load_tokenizer(tokenizer.save(tmp_path))
    assert again.digest == tokenizer.digest and load_tokenizer(tmp_path).digest == tokenizer.digest
    with pytest.raises(InputError, match="token id 300 is outside"):
        tokenizer.decode([300])


def test_damaged_models_are_refused(path, tmp_path):
    content = path.read_bytes()
    for size in (1, 10, len(content) // 2, len(content) - 1):
        cut = tmp_path / "cut.model"
        cut.write_bytes(content[:size])
        with pytest.raises(InputError, match="not a whole SentencePiece model"):
            load_tokenizer(cut)


def test_without_the_library_the_extra_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(InputError, match=r"pip install 'bornbiased-jax\[sentencepiece\]'"):
        load_tokenizer(path)


def test_a_model_with_its_own_ids(tmp_path):
    ids = dict(pad_id=0, eos_id=1, bos_id=2, unk_id=3)
    (tmp_path / "own.model").write_bytes(sentence_piece_model(LINES, 304, **ids))
    own = load_tokenizer(tmp_path / "own.model")
    assert (own.vocab_size, own.eos_id, own.bos_id) == (304, 1, 2)
    assert own.decode(own.encode("the fox")) == "the fox"


def test_a_real_model_with_its_own_ids(shared):
    nanodo = load_tokenizer(shared / "tokenizers" / "nanodo_cc_all.32000.100extra.model")
    assert (nanodo.vocab_size, nanodo.eos_id, nanodo.bos_id) == (32_101, 1, 2)
    assert nanodo.decode(nanodo.encode("Hello world")) == "Hello world"
