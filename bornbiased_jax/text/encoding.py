"""Encode documents as ids, several batches at once: the libraries that tokenize let go of the interpreter's lock."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, NamedTuple

import numpy as np

from bornbiased_jax import hardware
from bornbiased_jax.text.protocol import Tokenizer

SPLITS: tuple[Literal["train"], Literal["validation"]] = ("train", "validation")
BATCH_CHARACTERS = 2**20


class Encoded(NamedTuple):
    """One batch of documents as ids."""

    ids: dict[str, np.ndarray]
    documents: int
    text_bytes: int


def encode(tokenizer: Tokenizer, texts: list[str], validation_fraction: float) -> Encoded:
    """Encode documents by split, each document ended with ``eos_id`` (if the tokenizer has one)."""
    end = np.asarray([] if tokenizer.eos_id is None else [tokenizer.eos_id], np.int32)
    chunks: dict[str, list[np.ndarray]] = {split: [np.zeros(0, np.int32)] for split in SPLITS}
    size = 0
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
        data = text.encode()
        size += len(data)
        chunks["validation" if in_validation(data, validation_fraction) else "train"] += [ids, end]
    return Encoded({split: np.concatenate(chunks[split]) for split in SPLITS}, len(texts), size)


def in_validation(document: bytes, fraction: float) -> bool:
    """Return whether a document goes to validation: its hash, read as a number from 0 to 1, is below the fraction."""
    return int.from_bytes(hashlib.sha256(document).digest()[:8], "big") < fraction * 2**64


def batches(documents: Iterator[str]) -> Iterator[list[str]]:
    """Yield documents in lists of at least ``BATCH_CHARACTERS`` characters, the last one shorter."""
    texts: list[str] = []
    size = 0
    for document in documents:
        texts.append(document)
        size += len(document)
        if size >= BATCH_CHARACTERS:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


def encoded(
    batches: Iterator[list[str]], tokenizer: Tokenizer, fraction: float, threads: int | None = None
) -> Iterator[Encoded]:
    """Yield encoded batches in order, one for each core at a time unless ``threads`` says how many.

    At most two a thread are under way, so memory does not grow.
    """
    count = threads or hardware.cores()
    waiting: deque[Future[Encoded]] = deque()
    with ThreadPoolExecutor(count) as pool:
        for texts in batches:
            waiting.append(pool.submit(encode, tokenizer, texts, fraction))
            if len(waiting) >= 2 * count:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()
