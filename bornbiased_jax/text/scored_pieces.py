"""SentencePiece's BPE, built for the library ``tokenizers`` from pieces with scores."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import tokenizers
from tokenizers import decoders, models, normalizers, processors

from bornbiased_jax.errors import InputError
from bornbiased_jax.text import bpe
from bornbiased_jax.text.protocol import ESCAPED_SPACE

# Types of pieces, as SentencePiece models and GGUF files number them; 5 is unused.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


class ScoredPieces(NamedTuple):
    """A vocabulary: pieces by id with their scores and types, and what stands around a text.

    Attributes:
        pieces: texts, with the escaped space.
        scores: of each piece; a pair of pieces that makes one of a higher score is joined first.
        types: of each piece.
        has_space_prefix: whether a space goes before every text.
        bos_id: the piece that goes before every text; None for none.
        eos_id: the piece that ends a document; None for none.
    """

    pieces: list[str]
    scores: list[float]
    types: list[int]
    has_space_prefix: bool
    bos_id: int | None
    eos_id: int | None


def library_tokenizer(vocabulary: ScoredPieces, name: str) -> bpe.LibraryTokenizer:
    """Build SentencePiece's BPE: pairs ranked by the score of the piece they make, bytes for unknown characters.

    The ids are SentencePiece's where no two joined pieces share a score (of equals it takes the leftmost in the text,
    the library the lower id) and each character of a piece is a piece itself, as in vocabularies that it trained. A
    text that is exactly one user-defined piece gets no space before it.

    Raises:
        InputError: neither bytes nor an unknown piece, for characters that have no piece.
    """
    pieces, types = vocabulary.pieces, vocabulary.types
    # Of equal pieces the first counts.
    ids = {piece: token for token, piece in reversed(list(enumerate(pieces)))}
    unknown = next((piece for piece, kind in zip(pieces, types, strict=True) if kind == UNKNOWN), None)
    if unknown is None and any(f"<0x{byte:02X}>" not in ids for byte in range(256)):
        raise InputError(f"{name} has a tokenizer with neither bytes nor an unknown piece: name a tokenizer file")
    backend = tokenizers.Tokenizer(
        models.BPE(vocab=ids, merges=_merges(ids, vocabulary.scores, types), byte_fallback=True, unk_token=unknown)
    )
    # Normalizer: spaces become the escaped space, with one in front of the text.
    user_defined = [piece for piece, token in ids.items() if types[token] == USER_DEFINED]
    control = [piece for piece, token in ids.items() if types[token] == CONTROL]
    # A space goes before the text, but not into user-defined pieces, which the library looks for as normalized.
    prefix = [normalizers.Replace(tokenizers.Regex(rf"\A(?!(?:{_alternatives(user_defined)})\z)(?=[\s\S])"), " ")]
    spaces = normalizers.Replace(" ", ESCAPED_SPACE)
    backend.normalizer = normalizers.Sequence([*(prefix if vocabulary.has_space_prefix else []), spaces])
    backend.add_tokens([tokenizers.AddedToken(piece, normalized=True) for piece in user_defined])
    # Decoder: the inverse, without control pieces.
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace(tokenizers.Regex(rf"\A(?:{_alternatives(control)})\z"), ""),
            decoders.Replace(ESCAPED_SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            *([decoders.Strip(" ", 1, 0)] if vocabulary.has_space_prefix else []),
        ]
    )
    if (bos_id := vocabulary.bos_id) is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=["BOS", "$A"], pair=None, special_tokens=[{"id": "BOS", "ids": [bos_id], "tokens": [pieces[bos_id]]}]
        )
    return bpe.LibraryTokenizer(Path(name).name, backend.to_str(), vocabulary.eos_id)


def _merges(ids: dict[str, int], scores: list[float], types: list[int]) -> list[tuple[str, str]]:
    """Return all ways to halve a normal piece into two, the piece of the highest score first."""
    normal = {piece: token for piece, token in ids.items() if types[token] == NORMAL}
    halves = [
        (-scores[token], token, piece[:cut], piece[cut:])
        for piece, token in normal.items()
        for cut in range(1, len(piece))
        if piece[:cut] in normal and piece[cut:] in normal
    ]
    return [(left, right) for *_, left, right in sorted(halves)]


def _alternatives(pieces: list[str]) -> str:
    """Return a regular expression for any of several pieces, and for nothing if there is none."""
    return "|".join(map(re.escape, pieces)) or "(?!)"
