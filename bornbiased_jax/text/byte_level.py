"""The tokenizer that needs no file: the bytes of the text are the ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bornbiased_jax import io
from bornbiased_jax.text.protocol import checked_ids, checked_text

BYTES_FILE = "tokenizer.bytes.json"
IDENTITY = {"kind": "bytes", "vocab_size": 256, "eos_id": 0}


@dataclass(frozen=True)
class ByteTokenizer:
    """UTF-8 bytes as ids, 256 of them. Documents end with byte 0, which text does not use.

    >>> ByteTokenizer().encode("Hé").tolist()
    [72, 195, 169]
    >>> ByteTokenizer().decode([72, 195, 169])
    'Hé'
    """

    name: str = "bytes"
    digest: str = hashlib.sha256(repr(sorted(IDENTITY.items())).encode()).hexdigest()
    vocab_size: int = 256
    eos_id: int | None = 0
    bos_id: int | None = None

    def encode(self, text: str) -> np.ndarray:
        """Return the bytes of a text, int32 [T]."""
        return np.frombuffer(checked_text(text).encode(), np.uint8).astype(np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the bytes of each of several texts."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of bytes."""
        return bytes(checked_ids(ids, self.vocab_size)).decode(errors="replace")

    def token_bytes(self) -> list[bytes | None]:
        """Return every byte, by its id."""
        return [bytes([byte]) for byte in range(self.vocab_size)]

    def save(self, folder: str | Path) -> Path:
        """Write ``tokenizer.bytes.json``."""
        return io.write_json(Path(folder) / BYTES_FILE, IDENTITY)
