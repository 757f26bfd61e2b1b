"""Windows of real text as probe inputs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import jax.numpy as jnp
import numpy as np

from bornbiased_jax import keys
from bornbiased_jax.errors import InputError
from bornbiased_jax.model.limits import check_tokens
from bornbiased_jax.probes.inputs.kinds import Inputs, check_sizes, draw_ids
from bornbiased_jax.text import Tokenizer, encode_documents, read_documents, source_digest

Windows = Literal["consecutive", "random"]
# Characters after which a text without separators counts as another document (and gets an end of document).
_LONGEST_DOCUMENT = 1 << 20


def text(
    source: str | Path,
    tokenizer: Tokenizer,
    *,
    num_inputs: int,
    seq_len: int,
    vocab_size: int,
    windows: Windows = "consecutive",
    seed: int = 0,
) -> Inputs:
    """Cut windows of real text: its documents tokenized, each ended by the tokenizer's ``eos_id``, end to end.

    Args:
        source: a file, a folder, ``builtin:prose``, ``builtin:code`` or ``hf:NAME``.
        tokenizer: see :mod:`bornbiased_jax.text`.
        num_inputs: N.
        seq_len: T.
        vocab_size: of the model.
        windows: "consecutive" takes the first N·T tokens and cuts them, reading no further; "random" draws
            N starts (window n by (seed, n) alone) from the whole source: windows may overlap.
        seed: of random windows.

    Raises:
        InputError: a size below 1, too little text, an id outside the vocabulary, or a corrupted source.
    """
    check_sizes(num_inputs=num_inputs, seq_len=seq_len, vocab_size=vocab_size)
    # Tokenize no further than the windows need.
    documents = read_documents(source, longest=_LONGEST_DOCUMENT)
    needed = num_inputs * seq_len if windows == "consecutive" else seq_len
    pieces = encode_documents(tokenizer, documents, batch=1)
    ids = _join_ids(pieces, needed if windows == "consecutive" else None)
    if len(ids) < needed:
        raise InputError(
            f"{source} gives {len(ids):,} tokens with the tokenizer {tokenizer.name}, but {num_inputs} "
            f"sequences of {seq_len} need {needed:,}: ask for fewer or shorter sequences, or give more text"
        )
    if windows == "consecutive":
        tokens_NT = ids[:needed].reshape(num_inputs, seq_len)
    else:
        starts_N1 = np.asarray(
            draw_ids(
                keys.stream_key(keys.check_seed(seed), "inputs"),
                jnp.arange(num_inputs, dtype=jnp.uint32),
                1,
                len(ids) - seq_len + 1,
            )
        )
        tokens_NT = ids[starts_N1 + np.arange(seq_len)[None, :]]
    check_tokens(tokens_NT, vocab_size, tokenizer=tokenizer.name)
    # Where the text comes from, for records.
    about = {
        "source": str(source),
        "windows": windows,
        "tokenizer": tokenizer.name,
        "tokenizer_digest": tokenizer.digest,
    }
    if str(source).startswith("builtin:"):
        about["corpus_digest"] = source_digest(source)
    draw_seed = seed if windows == "random" else None
    return Inputs("text", num_inputs, seq_len, vocab_size=vocab_size, seed=draw_seed, tokens_NT=tokens_NT, source=about)


def _join_ids(documents: Iterable[np.ndarray], needed: int | None) -> np.ndarray:
    """Join the ids of documents end to end, until there are enough."""
    parts = [np.zeros(0, np.int32)]
    count = 0
    for ids in documents:
        parts.append(ids)
        count += len(ids)
        if needed is not None and count >= needed:
            break
    return np.concatenate(parts)
