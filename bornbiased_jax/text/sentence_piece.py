"""SentencePiece models, run by the ``sentencepiece`` library (an extra)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
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
        from sentencepiece import sentencepiece_model_pb2

        model = sentencepiece_model_pb2.ModelProto.FromString(self.proto)  # type: ignore[attr-defined]  # made at import
        normalizer, trainer = model.normalizer_spec, model.trainer_spec
        leaves_text = normalizer.escape_whitespaces and not (
            normalizer.precompiled_charsmap or normalizer.remove_extra_whitespaces or trainer.treat_whitespace_as_suffix
        )
        types = [int(piece.type) for piece in model.pieces]
        if trainer.model_type != trainer.BPE or not leaves_text or types.count(scored_pieces.BYTE) != 256:
            return None
        return scored_pieces.library_tokenizer(
            scored_pieces.ScoredPieces(
                [piece.piece for piece in model.pieces],
                [piece.score for piece in model.pieces],
                types,
                has_space_prefix=normalizer.add_dummy_prefix,
                bos_id=self.bos_id,
                eos_id=self.eos_id,
            ),
            self.name,
        )
