"""SentencePiece models, run by the ``sentencepiece`` library (an extra)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from bornbiased_jax import io
from bornbiased_jax.errors import InputError
from bornbiased_jax.text import bpe, scored_pieces
from bornbiased_jax.text.protocol import ESCAPED_SPACE, checked_ids, checked_text, named_byte

if TYPE_CHECKING:
    from sentencepiece import SentencePieceProcessor

MODEL_FILE = "tokenizer.model"
# The kind of model, in its own numbers, that joins pairs.
_BPE = 2


@dataclass(frozen=True, eq=False)
class SentencePieceTokenizer:
    """A SentencePiece model, given by the bytes of its ``.model`` file.

    Text comes back as the model's normalizer leaves it (the identity for Llama's).
    """

    name: str
    proto: bytes

    @cached_property
    def processor(self) -> SentencePieceProcessor:
        """The library's object.

        Raises:
            InputError: the library is not installed, or the bytes are not a model.
        """
        try:
            import sentencepiece
        except ImportError as error:
            raise InputError(f"{self.name} needs SentencePiece: pip install 'bornbiased-jax[sentencepiece]'") from error
        processor = sentencepiece.SentencePieceProcessor()
        try:
            processor.LoadFromSerializedProto(self.proto)
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(f"{self.name} is not a whole SentencePiece model: put the model's own there") from error
        return processor

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return hashlib.sha256(self.proto).hexdigest()

    @property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return int(self.processor.vocab_size())

    @property
    def eos_id(self) -> int | None:
        """The piece ``</s>``, if the model has one."""
        token = int(self.processor.eos_id())
        return token if token >= 0 else None

    @property
    def bos_id(self) -> int | None:
        """The piece ``<s>``, if the model has one."""
        token = int(self.processor.bos_id())
        return token if token >= 0 else None

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int32 [T]."""
        return np.asarray(self.processor.EncodeAsIds(checked_text(text)), np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each of several texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without control pieces."""
        return str(self.processor.DecodeIds(checked_ids(ids, self.vocab_size)))

    def token_bytes(self) -> list[bytes | None]:
        """Return the bytes of each piece; control pieces as they are written."""
        pieces = [str(self.processor.IdToPiece(token)) for token in range(self.vocab_size)]
        return [
            named_byte(piece) if self.processor.IsByte(token) else piece.replace(ESCAPED_SPACE, " ").encode()
            for token, piece in enumerate(pieces)
        ]

    def save(self, folder: str | Path) -> Path:
        """Write ``tokenizer.model``."""
        return io.write_bytes(Path(folder) / MODEL_FILE, self.proto)

    def for_transformers(self) -> bpe.LibraryTokenizer | None:
        """Return the same tokenizer as a ``tokenizer.json``; None of a model that none is built of.

        Built are models that join pairs, have a piece for each byte and leave the text as it is. By a ``.model`` alone
        transformers puts no space before the first word.
        """
        # Fields by their numbers in sentencepiece_model.proto.
        fields = list(_fields(self.proto))
        trainer, normalizer = (
            dict(_fields(b"".join(part for number, part in fields if number == place and isinstance(part, bytes))))
            for place in (2, 3)
        )
        changes_text = normalizer.get(2) or normalizer.get(4, 1) or not normalizer.get(5, 1) or trainer.get(24)
        rows = [dict(_fields(part)) for number, part in fields if number == 1 and isinstance(part, bytes)]
        types = [row.get(3, scored_pieces.NORMAL) for row in rows]
        if trainer.get(3) != _BPE or changes_text or types.count(scored_pieces.BYTE) != 256:
            return None
        return scored_pieces.library_tokenizer(
            scored_pieces.ScoredPieces(
                [str(self.processor.IdToPiece(token)) for token in range(len(rows))],
                [float(self.processor.GetScore(token)) for token in range(len(rows))],
                [int(kind) for kind in types],
                has_space_prefix=bool(normalizer.get(3, 1)),
                bos_id=self.bos_id,
                eos_id=self.eos_id,
            ),
            self.name,
        )


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol buffer, by number: integers, and bytes of all else."""
    place = 0

    def integer() -> int:
        nonlocal place
        value = shift = 0
        while True:
            byte = message[place]
            place, value, shift = place + 1, value | (byte & 127) << shift, shift + 7
            if byte < 128:
                return value

    while place < len(message):
        tag = integer()
        if tag & 7 == 0:
            yield tag >> 3, integer()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or integer()
        yield tag >> 3, message[place : place + size]
        place += size
