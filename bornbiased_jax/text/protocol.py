"""The protocol of tokenizers: text to token ids and back, with the facts that identify it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from bornbiased_jax.errors import InputError

# SentencePiece writes spaces as this character.
ESCAPED_SPACE = "\u2581"
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class UnknownTokenizerError(InputError):
    """A tokenizer of a kind that is not read: text cannot be cut into tokens, and weights can be compared."""


class Tokenizer(Protocol):
    """Text to ids and back. Immutable, and safe to share between threads.

    ``encode`` adds nothing to the text: no mark of its beginning or end. Whoever packs documents puts
    ``eos_id`` between them, whoever prompts a model puts ``bos_id`` before the prompt (None: the
    tokenizer has none, or its models expect none).
    """

    @property
    def name(self) -> str:
        """The name that records give it."""

    @property
    def digest(self) -> str:
        """SHA-256 of its content: equal digests encode equally."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def eos_id(self) -> int | None:
        """The id that ends a document."""

    @property
    def bos_id(self) -> int | None:
        """The id that models of this tokenizer expect before a text."""

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int32 [T]."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each of several texts."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD.

        Raises:
            InputError: an id is not in the vocabulary.
        """

    def token_bytes(self) -> list[bytes | None]:
        """Return the bytes that each id stands for, special tokens as they are written; None for an id without any."""

    def save(self, folder: str | Path) -> Path:
        """Write it to a folder; ``load_tokenizer`` reads the file returned back with the same digest."""


def named_byte(piece: str) -> bytes | None:
    """Return the byte of a piece such as "<0x0A>", None of any other."""
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else None


def checked_ids(ids: Iterable[int], vocab_size: int) -> list[int]:
    """Return the ids as plain integers.

    Raises:
        InputError: one is not in the vocabulary.
    """
    plain = [int(token) for token in ids]
    for token in plain:
        if not 0 <= token < vocab_size:
            raise InputError(f"token id {token} is outside the tokenizer's vocabulary of {vocab_size}")
    return plain


def checked_text(text: str, place: str = "the text") -> str:
    """Return the text, if it can be written as UTF-8.

    Raises:
        InputError: it holds half of a surrogate pair.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{place} holds half of a surrogate pair at character {error.start}: correct it") from error
    return text
