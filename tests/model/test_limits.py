"""What a model can be given ends where its vocabulary, its width and its learned positions end."""

import numpy as np
import pytest

from bornbiased_jax.config import preset
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.limits import check_length, check_sequences, check_tokens

CFG = preset("gpt2-tiny", num_layers=1, d_model=16, vocab_size=10, max_seq_len=5, positions="learned")


def test_ids_end_with_the_vocabulary():
    ids = check_tokens(np.arange(10, dtype=np.uint8), 10)
    assert ids.dtype == np.int32 and ids.tolist() == list(range(10))
    for bad, words in ((10, "token id 10 is outside .* of 10"), (-1, "token id -1 is outside")):
        with pytest.raises(InputError, match=words):
            check_tokens([0, bad], 10)
    with pytest.raises(InputError, match="id 10 of the tokenizer bytes is outside"):
        check_tokens([10], 10, tokenizer="bytes")
    with pytest.raises(InputError, match="integers, not float64"):
        check_tokens([0.5], 10)


def test_learned_positions_end():
    check_length(CFG, 5)
    with pytest.raises(InputError, match="length 6 is beyond the model's 5 learned positions"):
        check_length(CFG, 6)
    check_length(CFG.replace(positions="rope"), 1000)


def test_sequences_are_tables_of_ids_or_of_vectors():
    assert check_sequences(CFG, np.ones((2, 5), np.int64)).dtype == np.int32
    assert check_sequences(CFG, np.ones((2, 5, 16), np.float64)).dtype == np.float32
    for bad, words in (
        (np.ones((2, 5, 15)), "15 wide, the model 16"),
        (np.ones((2, 6), int), "length 6"),
        (np.ones((0, 5), int), r"shape \(0, 5\)"),
        (np.full((2, 5), 10), "token id 10"),
    ):
        with pytest.raises(InputError, match=words):
            check_sequences(CFG, bad)
