"""Byte-pair encoding by piece scores, as in llama2.c and in GGUF files of Llama models.

The text starts as characters; again and again the neighbouring two whose joined piece has the highest
score (the leftmost of equals) are joined, until no joined piece is in the vocabulary. A character
without a piece becomes its UTF-8 bytes.

Not by the byte-fallback BPE of the library ``tokenizers``, which ranks pairs where this ranks pieces. Its ids are the
same where no two joined pieces share a score (tested), as in Llama's vocabularies; it cannot take the leftmost of
equals, nor build a piece of characters that have none themselves. So the loop would stay beside it; and with words
remembered, as here, the loop took a third of its time on running text (300,000 characters, ``tok512.bin``).
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Interval
from typing_extensions import TypedDict

from bornbiased_jax import files, schema
from bornbiased_jax.errors import InputError
from bornbiased_jax.ranges import TokenId
from bornbiased_jax.text.protocol import ESCAPED_SPACE, checked_ids, checked_text, named_byte

PIECES_FILE = "tokenizer.pieces.json"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
_CACHED_WORDS = 200_000
_SAVED = ("name", "pieces", "scores", "types", "eos_id", "bos_id", "space_prefix", "escaped")


class PiecesFile(TypedDict):
    """What :meth:`ScoredTokenizer.save` writes."""

    name: str
    pieces: list[str]
    scores: list[float]
    types: list[Annotated[int, Interval(ge=NORMAL, le=BYTE)]]
    eos_id: TokenId | None
    bos_id: TokenId | None
    space_prefix: bool
    escaped: bool


@dataclass(frozen=True, eq=False)
class ScoredTokenizer:
    """Pieces with scores. Spaces in pieces are spaces.

    Attributes:
        name: what to call it.
        pieces: text of each id.
        scores: score of each id; higher joins first.
        types: NORMAL, UNKNOWN, CONTROL (never made from text), USER_DEFINED (always cut out of the text
            whole), UNUSED or BYTE, for each id.
        space_prefix: whether a space is put before the text (and taken off when decoding).
        escaped: whether U+2581 in a text counts as a space.

    Raises:
        InputError: the lengths differ, or an id is outside the vocabulary.
    """

    name: str
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    eos_id: int | None
    bos_id: int | None
    space_prefix: bool = True
    escaped: bool = False
    _words: dict[str, list[int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not len(self.pieces) == len(self.scores) == len(self.types) > 0:
            raise InputError(
                f"{self.name} is damaged: {len(self.pieces)} pieces, {len(self.scores)} scores, "
                f"{len(self.types)} types; fetch it again"
            )
        checked_ids([token for token in (self.eos_id, self.bos_id) if token is not None], self.vocab_size)

    @property
    def vocab_size(self) -> int:
        """Number of pieces."""
        return len(self.pieces)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of everything but the name."""
        content = [getattr(self, key) for key in _SAVED if key != "name"]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    @cached_property
    def _ids(self) -> dict[str, int]:
        joinable: dict[str, int] = {}
        for token, (piece, kind) in enumerate(zip(self.pieces, self.types, strict=True)):
            if kind in (NORMAL, USER_DEFINED):
                joinable.setdefault(piece, token)
        return joinable

    @cached_property
    def _byte_ids(self) -> dict[int, int]:
        named = ((token, named_byte(self.pieces[token])) for token in self._of_type(BYTE))
        return {value[0]: token for token, value in named if value is not None}

    @cached_property
    def _user_defined(self) -> re.Pattern[str] | None:
        pieces = sorted((self.pieces[token] for token in self._of_type(USER_DEFINED)), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, pieces))) if pieces else None

    @cached_property
    def _word_pattern(self) -> re.Pattern[str]:
        # Where no piece has a space after something else, nothing joins across the start of a word, and
        # words can be encoded (and remembered) one by one.
        if any(re.search("[^ ] ", piece) for piece in self._ids):
            return re.compile(".+", re.DOTALL)
        return re.compile(" *[^ ]+| +")

    def _of_type(self, wanted: int) -> list[int]:
        return [token for token, kind in enumerate(self.types) if kind == wanted]

    def encode(self, text: str) -> np.ndarray:
        """The ids of a text, int32 [T]."""
        checked_text(text)
        if self.escaped:
            text = text.replace(ESCAPED_SPACE, " ")
        if text and self.space_prefix:
            text = " " + text
        ids: list[int] = []
        start = 0
        if self._user_defined is not None:
            for match in self._user_defined.finditer(text):
                self._encode_words(text[start : match.start()], ids)
                ids.append(self._ids[match[0]])
                start = match.end()
        self._encode_words(text[start:] if start else text, ids)
        return np.asarray(ids, np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of each of several texts."""
        return [self.encode(text) for text in texts]

    def _encode_words(self, text: str, ids: list[int]) -> None:
        for word in self._word_pattern.findall(text):
            known = self._words.get(word)
            if known is None:
                known = self._join(word)
                if len(self._words) < _CACHED_WORDS and len(word) < 64:
                    self._words[word] = known
            ids.extend(known)

    def _join(self, word: str) -> list[int]:
        """Greedy joining with a heap: O(n log n) in the characters."""
        parts: list[str | None] = list(word)
        after = list(range(1, len(parts) + 1))
        before = list(range(-1, len(parts) - 1))
        heap: list[tuple[float, int, int, str]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right < len(parts):
                joined = f"{parts[left]}{parts[right]}"
                token = self._ids.get(joined)
                if token is not None:
                    heapq.heappush(heap, (-self.scores[token], left, right, joined))

        for left in range(len(parts) - 1):
            offer(left, left + 1)
        while heap:
            _, left, right, joined = heapq.heappop(heap)
            here, there = parts[left], parts[right]
            # An offer is stale once either side has been joined to something else.
            if here is None or there is None or after[left] != right or here + there != joined:
                continue
            parts[left], parts[right] = joined, None
            after[left] = after[right]
            if after[right] < len(parts):
                before[after[right]] = left
            offer(before[left], left)
            offer(left, after[left])
        ids: list[int] = []
        for part in parts:
            if part is not None:
                ids.extend(self._spelled(part))
        return ids

    def _spelled(self, part: str) -> list[int]:
        token = self._ids.get(part)
        if token is not None:
            return [token]
        spelled = [self._byte_ids.get(value) for value in part.encode()]
        if all(token is not None for token in spelled):
            return [token for token in spelled if token is not None]
        unknown = self._of_type(UNKNOWN)
        if not unknown:
            raise InputError(f"{self.name} has no piece for {part!r}: use another tokenizer or other text")
        return unknown[:1]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids, without control pieces and the space that ``encode`` puts first."""
        values = {token: bytes([value]) for value, token in self._byte_ids.items()}
        data = b"".join(
            values.get(token) or (b"" if self.types[token] == CONTROL else self.pieces[token].encode())
            for token in checked_ids(ids, self.vocab_size)
        )
        return data.removeprefix(b" " if self.space_prefix else b"").decode(errors="replace")

    def token_bytes(self) -> list[bytes | None]:
        """The bytes of each piece; control pieces as they are written."""
        return [
            (named_byte(piece) if kind == BYTE else None) or piece.encode(errors="surrogateescape")
            for piece, kind in zip(self.pieces, self.types, strict=True)
        ]

    def save(self, folder: str | Path) -> Path:
        """Write ``tokenizer.pieces.json``."""
        content = {"kind": "scored pieces", **{key: getattr(self, key) for key in _SAVED}}
        return files.write_text(Path(folder) / PIECES_FILE, json.dumps(content) + "\n")


def from_pieces_file(content: dict[str, Any], name: str) -> ScoredTokenizer:
    """What :meth:`ScoredTokenizer.save` wrote.

    Raises:
        InputError: a field is missing or of the wrong kind.
    """
    schema.check(PiecesFile, content, name, "it is not a whole tokenizer file, write it again")
    fields: dict[str, Any] = {key: content[key] for key in _SAVED}
    for key in ("pieces", "scores", "types"):
        fields[key] = tuple(fields[key])
    return ScoredTokenizer(**fields)


def from_llama2c(data: bytes, name: str) -> ScoredTokenizer:
    """A llama2.c ``tokenizer.bin``: int32 longest piece, then float32 score, int32 length, bytes for each id.

    As that program has it: id 1 begins a text, id 2 ends it, ``<0x00>`` to ``<0xFF>`` are bytes, and spaces
    in pieces are spaces.

    Raises:
        InputError: the bytes are not such a file.
    """
    wrong = InputError(f"{name} is not a whole llama2.c tokenizer: name a tokenizer file, or fetch it again")
    if len(data) < 4:
        raise wrong
    longest = struct.unpack_from("<i", data)[0]
    pieces, scores = [], []
    offset = 4
    while offset < len(data):
        if offset + 8 > len(data):
            raise wrong
        score, length = struct.unpack_from("<fi", data, offset)
        offset += 8
        if not 0 <= length <= longest or offset + length > len(data) or score != score:
            raise wrong
        try:
            pieces.append(data[offset : offset + length].decode())
        except UnicodeDecodeError as error:
            raise wrong from error
        scores.append(score)
        offset += length
    if len(pieces) < 4 or max(len(piece.encode()) for piece in pieces) != longest:
        raise wrong
    types = [BYTE if named_byte(piece) else NORMAL for piece in pieces]
    types[:3] = [UNKNOWN, CONTROL, CONTROL]
    return ScoredTokenizer(name, tuple(pieces), tuple(scores), tuple(types), eos_id=2, bos_id=1)
