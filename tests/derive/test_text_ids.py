"""Token ids that occur in a text, by a model's own tokenizer."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from bornbiased_jax.derive import text_ids
from bornbiased_jax.derive.text_ids import ids_in_text
from bornbiased_jax.errors import InputError
from bornbiased_jax.text import ByteTokenizer


def model(vocab_size, *tokenizer_files):
    return SimpleNamespace(cfg=SimpleNamespace(vocab_size=vocab_size), tokenizer_files=tokenizer_files)


def test_ids_of_a_text_are_those_that_the_vocabulary_has(monkeypatch, tmp_path):
    (tmp_path / "text.txt").write_text("zzzaz")
    # The byte that ends every document is in use too.
    assert ids_in_text(model(256), str(tmp_path / "text.txt")).tolist() == [0, ord("a"), ord("z")]
    monkeypatch.setattr(text_ids, "load_tokenizer", lambda path: ByteTokenizer())
    assert ids_in_text(model(100, Path("a")), str(tmp_path / "text.txt")).tolist() == [0, ord("a")]
    monkeypatch.setattr(text_ids, "load_tokenizer", lambda path: ByteTokenizer(eos_id=None, bos_id=9))
    assert ids_in_text(model(100, Path("a")), str(tmp_path / "text.txt")).tolist() == [9, ord("a")]
    with pytest.raises(InputError, match="no token of .*text.txt is in the vocabulary: choose another text"):
        ids_in_text(model(50, Path("a")), str(tmp_path / "text.txt"))
    with pytest.raises(InputError, match="without a tokenizer"):
        ids_in_text(model(50), str(tmp_path / "text.txt"))
