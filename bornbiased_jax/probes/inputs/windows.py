"""Windows of real text as probe inputs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.model.limits import check_tokens
from bornbiased_jax.probes.inputs.kinds import Inputs, check_sizes
from bornbiased_jax.text import Tokenizer, encode_documents, read_documents, source_digest

# Characters after which a text without separators counts as another document (and gets an end of document).
_LONGEST_DOCUMENT = 1 << 20


def text(
    source: str | Path,
    tokenizer: Tokenizer,
    *,
    num_inputs: int,
    seq_len: int,
    vocab_size: int,
) -> Inputs:
    """Cut windows of real text: its documents tokenized, each ended by the tokenizer's ``eos_id``, end to end.

    The first N·T tokens are cut into windows, and no more is read than they need.

    Args:
        source: a file, a folder, ``builtin:prose``, ``builtin:code`` or ``hf:NAME``.
        tokenizer: see :mod:`bornbiased_jax.text`.
        num_inputs: N.
        seq_len: T.
        vocab_size: of the model.

    Raises:
        InputError: a size below 1, too little text, an id outside the vocabulary, or a corrupted source.
    """
    num_inputs, seq_len, vocab_size = check_sizes(num_inputs=num_inputs, seq_len=seq_len, vocab_size=vocab_size)
    documents = read_documents(source, longest=_LONGEST_DOCUMENT)
    needed = num_inputs * seq_len
    ids = _join_ids(encode_documents(tokenizer, documents, batch=1), needed)
    if len(ids) < needed:
        raise InputError(
            f"{source} gives {len(ids):,} tokens with the tokenizer {tokenizer.name}, but {num_inputs} "
            f"sequences of {seq_len} need {needed:,}: ask for fewer or shorter sequences, or give more text"
        )
    tokens_NT = ids[:needed].reshape(num_inputs, seq_len)
    check_tokens(tokens_NT, vocab_size, tokenizer=tokenizer.name)
    # Where the text comes from, for records.
    about = {
        "source": str(source),
        "windows": "consecutive",
        "tokenizer": tokenizer.name,
        "tokenizer_digest": tokenizer.digest,
    }
    if str(source).startswith("builtin:"):
        about["corpus_digest"] = source_digest(source)
    return Inputs("text", num_inputs, seq_len, vocab_size=vocab_size, tokens_NT=tokens_NT, source=about)


def _join_ids(documents: Iterable[np.ndarray], needed: int) -> np.ndarray:
    """Join the ids of documents end to end, until there are enough."""
    parts = [np.zeros(0, np.int32)]
    count = 0
    for ids in documents:
        parts.append(ids)
        count += len(ids)
        if count >= needed:
            break
    return np.concatenate(parts)
