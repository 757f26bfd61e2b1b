"""Which tokens two models are compared on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.errors import InputError
from bornbiased_jax.seedprint.weights.view import Matrix, folded
from bornbiased_jax.text import ByteTokenizer, Tokenizer, encode_documents, load_tokenizer, read_documents

MIN_TOKENS = 8
# Rows farther than this from the median of the log norms, in robust standard deviations, are padding or rescaled.
_FAR = 8.0
# Tokens of a text that are read to see which occur.
_MOST_READ = 1_000_000


def shared_ids(base: WeightsReader, suspect: WeightsReader, ids: Iterable[int] | None = None) -> np.ndarray:
    """Token ids that both models have, of those given (the tokens of some text) or of all: [I], ascending.

    Raises:
        InputError: an id that is in neither vocabulary, or none given.
    """
    least = min(base.cfg.vocab_size, suspect.cfg.vocab_size)
    if ids is None:
        return np.arange(least)
    given = np.unique(np.fromiter(ids, np.int64))
    most = max(base.cfg.vocab_size, suspect.cfg.vocab_size)
    if not len(given) or given[0] < 0 or given[-1] >= most:
        raise InputError(f"token ids must be given and lie from 0 to {most - 1}: choose them from a text")
    return given[given < least]


def seen_ids(base: WeightsReader, suspect: WeightsReader, text: str) -> np.ndarray:
    """The token ids that occur in a text, by the tokenizer of the base, else of the suspect: [I], ascending.

    Rows of tokens that training never saw are the birth's still, and anyone may overwrite them.

    Args:
        base, suspect: the models; of 256 ids without a tokenizer ids are bytes.
        text: a file, a folder, ``builtin:prose`` …, as :func:`bornbiased_jax.text.read_documents` takes it; its first
            million tokens are read.

    Raises:
        InputError: no such text, neither model has a tokenizer, or no token of the text is in both vocabularies.
    """
    tokenizer: Tokenizer | None = None
    for reader in (base, suspect):
        if tokenizer is None and reader.tokenizer_files:
            tokenizer = load_tokenizer(reader.tokenizer_files[0])
    least = min(base.cfg.vocab_size, suspect.cfg.vocab_size)
    if tokenizer is None and least == 256:
        tokenizer = ByteTokenizer()
    if tokenizer is None:
        raise InputError(
            "neither model comes with a tokenizer, so that no text tells which tokens it saw: leave it out"
        )
    seen: set[int] = set()
    count = 0
    for ids in encode_documents(tokenizer, read_documents(text), separate=False):
        seen.update(np.unique(ids).tolist())
        count += len(ids)
        if count >= _MOST_READ:
            break
    shared = sorted(value for value in seen if value < least)
    if not shared:
        raise InputError(f"no token of {text} is in both vocabularies: choose another text, or leave it out")
    return np.array(shared, np.int64)


def ordinary_ids(reader: WeightsReader, ids_I: np.ndarray) -> np.ndarray:
    """Those of the tokens whose rows are not padding, judged by this model's own rows alone: [≤ I].

    Left out are rows of zeros, rows that occur twice (vocabularies padded or resized with a mean), and rows whose
    norm is far from the median in the embedding or the head.
    """
    kept_I = np.ones(len(ids_I), bool)
    for module in ("embed", "head"):
        rows_ID = folded(reader, Matrix(module))[ids_I]
        norms_I = np.sqrt(np.einsum("id,id->i", rows_ID, rows_ID, dtype=np.float64))
        kept_I &= norms_I > 0
        logs_I = np.log(np.maximum(norms_I, 1e-300))
        centre = np.median(logs_I[norms_I > 0]) if (norms_I > 0).any() else 0.0
        width = 1.4826 * np.median(np.abs(logs_I[norms_I > 0] - centre)) if (norms_I > 0).any() else 0.0
        kept_I &= np.abs(logs_I - centre) <= _FAR * max(width, 0.05)
        _, first, count = np.unique(rows_ID, axis=0, return_index=True, return_counts=True)
        once_I = np.zeros(len(ids_I), bool)
        once_I[first[count == 1]] = True
        kept_I &= once_I
    return ids_I[kept_I]
