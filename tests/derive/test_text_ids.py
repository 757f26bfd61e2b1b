"""Token ids that occur in a text, by a model's own tokenizer."""

from types import SimpleNamespace

import pytest

from bornbiased_jax.derive.text_ids import ids_in_text
from bornbiased_jax.errors import InputError
from bornbiased_jax.text import ByteTokenizer


def model(vocab_size, tokenizer=None):
    return SimpleNamespace(cfg=SimpleNamespace(vocab_size=vocab_size), tokenizer=tokenizer)


def test_ids_of_a_text_are_those_that_the_vocabulary_has(tmp_path):
    (tmp_path / "text.txt").write_text("zzzaz")
    # The byte that ends every document is in use too.
    assert ids_in_text(model(256), str(tmp_path / "text.txt")).tolist() == [0, ord("a"), ord("z")]
    assert ids_in_text(model(100, ByteTokenizer()), str(tmp_path / "text.txt")).tolist() == [0, ord("a")]
    begun = model(100, ByteTokenizer(eos_id=None, bos_id=9))
    assert ids_in_text(begun, str(tmp_path / "text.txt")).tolist() == [9, ord("a")]
    with pytest.raises(InputError, match="no token of .*text.txt is in the vocabulary: choose another text"):
        ids_in_text(model(50, ByteTokenizer()), str(tmp_path / "text.txt"))
    with pytest.raises(InputError, match="without a tokenizer"):
        ids_in_text(model(50), str(tmp_path / "text.txt"))
