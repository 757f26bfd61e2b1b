"""Which tokens two models are compared on: those of one number, or of one string where tokenizers number otherwise."""

from __future__ import annotations

import dataclasses
import filecmp
import functools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.text import ByteTokenizer, Tokenizer, encode_documents, load_tokenizer, read_documents

MIN_TOKENS = 8
# Tokens of a text that are read to see which occur.
_MOST_READ = 1_000_000


@dataclasses.dataclass(frozen=True)
class SharedTokens:
    """Tokens that two models both have.

    Attributes:
        base_I, suspect_I: the number of each token in the base and in the suspect.
        matched_by: "ids" where the models number alike (or do not tell), "strings" where their tokenizers differ.
    """

    base_I: np.ndarray
    suspect_I: np.ndarray
    matched_by: Literal["ids", "strings"] = "ids"

    def __len__(self) -> int:
        return len(self.base_I)

    def kept(self, selection: np.ndarray) -> SharedTokens:
        """Select tokens by a mask or by places."""
        return dataclasses.replace(self, base_I=self.base_I[selection], suspect_I=self.suspect_I[selection])


def shared_tokens(base: Checkpoint, suspect: Checkpoint, ids: Iterable[int] | None = None) -> SharedTokens:
    """List tokens that both models have, of those given (the tokens of some text) or of all, in the base's order.

    Two tokenizers that give a string another number have their tokens matched by strings, those alone that occur once
    in each. Without two tokenizers the numbers are taken to mean the same tokens.

    Args:
        base, suspect: the models.
        ids: numbers of the base's tokens.

    Raises:
        InputError: an id that is in neither vocabulary, or none given.
    """
    least = min(base.cfg.vocab_size, suspect.cfg.vocab_size)
    renumbered = _renumbered(base, suspect)
    tokens = SharedTokens(np.arange(least), np.arange(least)) if renumbered is None else renumbered
    if ids is None:
        return tokens
    chosen_I = np.unique(np.fromiter(ids, np.int64))
    most = max(base.cfg.vocab_size, suspect.cfg.vocab_size)
    if not len(chosen_I) or chosen_I[0] < 0 or chosen_I[-1] >= most:
        raise InputError(f"token ids must be given and lie from 0 to {most - 1}: choose them from a text")
    return tokens.kept(np.isin(tokens.base_I, chosen_I))


def _renumbered(base: Checkpoint, suspect: Checkpoint) -> SharedTokens | None:
    """Match tokens by their strings, where both tokenizers can be read and number some string differently."""
    if not (base.tokenizer_files and suspect.tokenizer_files):
        return None
    paths = base.tokenizer_files[0], suspect.tokenizer_files[0]
    if paths[0].is_file() and paths[1].is_file() and filecmp.cmp(*paths):
        return None
    try:
        base_numbers, suspect_numbers = (_numbers(path, path.stat().st_mtime_ns) for path in paths)
    except (InputError, OSError):
        return None
    pairs = [
        (number, suspect_numbers[piece])
        for piece, number in base_numbers.items()
        if piece in suspect_numbers and number < base.cfg.vocab_size and suspect_numbers[piece] < suspect.cfg.vocab_size
    ]
    if len(pairs) >= MIN_TOKENS and all(number == suspect_number for number, suspect_number in pairs):
        return None
    base_I, suspect_I = np.array(sorted(pairs), np.int64).reshape(-1, 2).T
    return SharedTokens(base_I, suspect_I, "strings")


@functools.lru_cache(maxsize=4)
def _numbers(path: Path, modified: int) -> dict[bytes, int]:
    """Map each string that occurs once in a tokenizer's vocabulary to its number."""
    pieces = load_tokenizer(path).token_bytes()
    count = Counter(pieces)
    return {piece: number for number, piece in enumerate(pieces) if piece is not None and count[piece] == 1}


def seen_ids(base: Checkpoint, suspect: Checkpoint, text: str) -> np.ndarray:
    """List the token ids that occur in a text, by the tokenizer of the base, else of the suspect: [I], ascending.

    Rows of tokens that training never saw are the birth's still, and anyone may overwrite them.

    Args:
        base, suspect: the models; of 256 ids without a tokenizer ids are bytes.
        text: a file, a folder, ``builtin:prose`` …, as :func:`bornbiased_jax.text.read_documents` takes it; its first
            million tokens are read.

    Raises:
        InputError: no such text, neither model has a tokenizer, or no token of the text is in both vocabularies.
    """
    # The tokenizer of the base, else of the suspect, else bytes.
    tokenizer: Tokenizer | None = None
    for reader in (base, suspect):
        if tokenizer is None and reader.tokenizer_files:
            tokenizer = load_tokenizer(reader.tokenizer_files[0])
    if tokenizer is None and min(base.cfg.vocab_size, suspect.cfg.vocab_size) == 256:
        tokenizer = ByteTokenizer()
    if tokenizer is None:
        raise InputError(
            "neither model comes with a tokenizer, so that no text tells which tokens it saw: leave it out"
        )
    # Read documents until enough tokens are counted.
    occurring: set[int] = set()
    count = 0
    for ids in encode_documents(tokenizer, read_documents(text), separate=False):
        occurring.update(np.unique(ids).tolist())
        count += len(ids)
        if count >= _MOST_READ:
            break
    shared_I = np.intersect1d(shared_tokens(base, suspect).base_I, np.fromiter(occurring, np.int64))
    if not len(shared_I):
        raise InputError(f"no token of {text} is in both vocabularies: choose another text, or leave it out")
    return shared_I
