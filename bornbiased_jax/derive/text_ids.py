"""Token ids that occur in a text: rows of other tokens are untrained, and anyone may overwrite them."""

from __future__ import annotations

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.text import ByteTokenizer, encode_documents, read_documents

# Tokens of a text that are read to see which occur.
_MOST_READ = 1_000_000


def ids_in_text(checkpoint: Checkpoint, text: str) -> np.ndarray:
    """List the ids of a model's vocabulary that occur in a text, or begin or end documents: [I], ascending.

    Args:
        checkpoint: the model; of 256 ids without a tokenizer ids are bytes.
        text: a file, a folder, ``builtin:prose`` …, as :func:`bornbiased_jax.text.read_documents` takes it; its first
            million tokens are read.

    Raises:
        InputError: no such text, the model has no tokenizer or another model's, or no token of the text is in its
            vocabulary.
    """
    vocab_size = checkpoint.cfg.vocab_size
    tokenizer = checkpoint.tokenizer or (ByteTokenizer() if vocab_size == 256 else None)
    if tokenizer is None:
        raise InputError("the model comes without a tokenizer, so that no text tells which tokens it saw: leave it out")
    # Read documents until enough tokens are counted.
    occurring: set[int] = set()
    count = 0
    for ids in encode_documents(tokenizer, read_documents(text), separate=False):
        occurring.update(np.unique(ids).tolist())
        count += len(ids)
        if count >= _MOST_READ:
            break
    occurring = {token for token in occurring if token < vocab_size}
    if not occurring:
        raise InputError(f"no token of {text} is in the vocabulary: choose another text, or leave it out")
    # No text spells them, and every model has seen them.
    occurring |= {token for token in (tokenizer.bos_id, tokenizer.eos_id) if token is not None and token < vocab_size}
    return np.array(sorted(occurring), np.int64)
