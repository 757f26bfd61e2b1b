"""Tokenize a source once, into files that later runs find again.

A folder per (source, tokenizer, split) holds ``train-00000.bin``, ``validation-00000.bin``, … (ids,
little-endian, 16 bits where the vocabulary allows) and ``tokens.json``. Documents end with the
tokenizer's ``eos_id``. A document belongs to validation by a hash of its text, so that the split depends
on neither order nor neighbors. Work is written in whole parts: a killed job resumes after its last.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, cast

import numpy as np
from annotated_types import Ge
from typing_extensions import TypedDict

from bornbiased_jax import io, progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.text import cache
from bornbiased_jax.text.documents import read_documents, source_digest
from bornbiased_jax.text.encoding import SPLITS, batches, encoded
from bornbiased_jax.text.protocol import Tokenizer

INDEX = "tokens.json"
CHECKED = "checked.json"
# Raised when the meaning of the files changes, so that no old ones are used.
RECIPE = 1
PART_TOKENS = 2**25


NonNegative = Annotated[int, Ge(0)]


class ShardIdentity(TypedDict):
    """The settings that the ids depend on; its digest names the folder."""

    recipe: int
    source_digest: str
    tokenizer_digest: str
    validation_fraction: float


class ShardPart(TypedDict):
    """One file of each split: how many ids, and the digest of both."""

    train: NonNegative
    validation: NonNegative
    digest: str


class Index(TypedDict):
    """The contents of ``tokens.json``."""

    identity: ShardIdentity
    dtype: Literal["<u2", "<u4"]
    parts: list[ShardPart]
    documents: NonNegative
    text_bytes: NonNegative
    complete: bool


class Shard(NamedTuple):
    """One file of ids."""

    path: Path
    num_tokens: int


class Tokens:
    """The ids of one split as one long sequence, read from their files as they are asked for."""

    def __init__(self, shards: list[Shard], dtype: str, start: int = 0, stop: int | None = None) -> None:
        self._shards = [shard for shard in shards if shard.num_tokens]
        self._dtype = np.dtype(dtype)
        self._ends = np.cumsum([0, *(shard.num_tokens for shard in self._shards)])
        self._start = start
        self._stop = int(self._ends[-1]) if stop is None else stop

    def __len__(self) -> int:
        return self._stop - self._start

    def part(self, start: int, stop: int) -> Tokens:
        """Return the ids from ``start`` to before ``stop``, still on disk."""
        return Tokens(self._shards, self._dtype.str, self._start + start, self._start + stop)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Read the ids from ``start`` to before ``stop``, int32.

        Raises:
            InputError: a file has vanished or was cut short.
        """
        low, high = self._start + start, self._start + stop
        if not self._start <= low <= high <= self._stop:
            raise IndexError(f"ids {start} to {stop} of {len(self)}")
        chunks = [np.zeros(0, np.int32)]
        size = self._dtype.itemsize
        # A window may lie in several files: take from each what it has.
        index = int(np.searchsorted(self._ends, low, side="right")) - 1
        while low < high:
            shard, begin = self._shards[index], int(self._ends[index])
            until = min(high, int(self._ends[index + 1]))
            # Not a mapping: to make one takes longer than to read a window, and a file that shrinks would kill the
            # process.
            ids = np.zeros(0, self._dtype)
            with contextlib.suppress(OSError), shard.path.open("rb", buffering=0) as stream:
                if os.fstat(stream.fileno()).st_size == shard.num_tokens * size:
                    ids = np.fromfile(stream, self._dtype, until - low, offset=(low - begin) * size)
            if len(ids) < until - low:
                raise InputError(
                    f"the tokenized data {shard.path} has vanished or was cut short: run the same command again to "
                    "make it anew"
                )
            chunks.append(ids.astype(np.int32))
            low, index = until, index + 1
        return np.concatenate(chunks)


class ShardFacts(TypedDict):
    """The facts of a tokenized source in a record; JSON-ready."""

    source: str
    source_digest: str
    tokens_digest: str
    documents: int
    train_tokens: int
    validation_tokens: int
    text_bytes: int


class Dataset(NamedTuple):
    """A tokenized source."""

    train: Tokens
    validation: Tokens
    digest: str
    """SHA-256 over every id of both splits in order."""
    facts: ShardFacts


def prepare(
    source: str,
    tokenizer: Tokenizer,
    *,
    folder: Path | str | None = None,
    validation_fraction: float = 0.05,
    processes: int | None = None,
    part_tokens: int = PART_TOKENS,
    tokens_digest: str | None = None,
    quiet: bool = False,
) -> Dataset:
    """Return the tokenized source: taken from the cache, finished if begun, or made.

    Args:
        source: what ``--data`` takes (:func:`bornbiased_jax.text.documents.read_documents`).
        tokenizer: turns documents into ids.
        folder: where tokenized sources are kept; None: in the user's cache.
        validation_fraction: fraction of the documents that go to validation.
        processes: threads that tokenize; None: as many as cores.
        part_tokens: about how many ids a part has. The ids do not depend on it; the files and the digest do.
        tokens_digest: of the tokens, if they were made before: with it they are found when the source is gone.
        quiet: no progress display.

    Raises:
        InputError: the source is missing or corrupted, or the folder cannot be written.
    """
    root = io.user_path(folder if folder is not None else cache.cache_dir() / "tokens").resolve()
    try:
        # A source that is gone may have left its tokens.
        origin = source_digest(source)
    except InputError as error:
        cached = _find(root, tokens_digest) if tokens_digest is not None else None
        if cached is None:
            raise
        progress.warn(f"{error}; continuing with its tokens in {cached}")
        return _open(cached, io.read_sealed(Index, cached / INDEX), source)
    identity: ShardIdentity = {
        "recipe": RECIPE,
        "source_digest": origin,
        "tokenizer_digest": tokenizer.digest,
        "validation_fraction": validation_fraction,
    }
    # The folder's name identifies recipe, source, tokenizer and split.
    name = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:24]
    place = root / name
    index = _index(place)
    if index is not None and index["complete"]:
        # Others may share it, and need not be able to write there.
        return _open(place, index, source)
    with _locked(place, folder is None):
        index = _index(place)
        if index is None:
            if (place / INDEX).exists():
                progress.warn(f"the tokenized data in {place} is corrupted: making it anew")
            shutil.rmtree(place, ignore_errors=True)
        if index is None or not index["complete"]:
            index = _tokenize(place, index, source, tokenizer, identity, processes, part_tokens, quiet)
    return _open(place, index, source)


def _find(root: Path, digest: str) -> Path | None:
    """Return the folder of complete, intact tokens with this digest."""
    for path in sorted(root.glob(f"*/{INDEX}")):
        # What the index says first: only the one that is wanted is read whole.
        with contextlib.suppress(InputError):
            index = io.read_sealed(Index, path)
            if index["complete"] and _digest(index) == digest and _index(path.parent) is not None:
                return path.parent
    return None


def _index(place: Path) -> Index | None:
    """Return the index of the parts written so far, or None when no complete part was."""
    path = place / INDEX
    if not path.exists():
        return None
    try:
        index = io.read_sealed(Index, path)
        width = np.dtype(index["dtype"]).itemsize
        is_complete = all((place / file).stat().st_size == count * width for file, count in _shard_files(index))
        is_complete = is_complete and _unchanged(place, index)
    except (InputError, OSError):
        is_complete = False
    return index if is_complete else None


def _unchanged(place: Path, index: Index) -> bool:
    """Return whether every part has its digest; files checked before and not touched since are not read again."""
    stamps = {file: _stamp(place / file) for file, _ in _shard_files(index)}
    try:
        before = io.read_json(place / CHECKED)
    except InputError:
        before = {}
    # Hash the parts of which a file changed since it was checked.
    for number, part in enumerate(index["parts"]):
        names = [f"{split}-{number:05d}.bin" for split in SPLITS]
        if all(before.get(name) == stamps[name] for name in names):
            continue
        hasher = hashlib.sha256()
        for split in SPLITS:
            hasher.update(f"{split} {part[split]}\n".encode())
            with (place / f"{split}-{number:05d}.bin").open("rb") as stream:
                while block := stream.read(2**24):
                    hasher.update(block)
        if hasher.hexdigest() != part["digest"]:
            return False
    if before != stamps:
        # A shared cache that cannot be written is read again each time.
        with contextlib.suppress(InputError):
            io.write_json(place / CHECKED, stamps)
    return True


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, stat.st_ino]


def _shard_files(index: Index) -> Iterator[tuple[str, int]]:
    for split in SPLITS:
        for number, part in enumerate(index["parts"]):
            yield f"{split}-{number:05d}.bin", part[split]


def _open(place: Path, index: Index, source: str) -> Dataset:
    # Shards of each split in the order in which they were written.
    shards = {
        split: [Shard(place / f"{split}-{number:05d}.bin", part[split]) for number, part in enumerate(index["parts"])]
        for split in SPLITS
    }
    train, validation = (Tokens(shards[split], index["dtype"]) for split in SPLITS)
    digest = _digest(index)
    facts: ShardFacts = {
        "source": source,
        "source_digest": index["identity"]["source_digest"],
        "tokens_digest": digest,
        "documents": index["documents"],
        "train_tokens": len(train),
        "validation_tokens": len(validation),
        "text_bytes": index["text_bytes"],
    }
    return Dataset(train, validation, digest, facts)


def _digest(index: Index) -> str:
    parts = [part["digest"] for part in index["parts"]]
    return hashlib.sha256(json.dumps([index["dtype"], parts]).encode()).hexdigest()


def _tokenize(
    place: Path,
    index: Index | None,
    source: str,
    tokenizer: Tokenizer,
    identity: ShardIdentity,
    processes: int | None,
    part_tokens: int,
    quiet: bool,
) -> Index:
    if index is None:
        dtype: Literal["<u2", "<u4"] = "<u2" if tokenizer.vocab_size <= 2**16 else "<u4"
        index = {
            "identity": identity, "dtype": dtype, "parts": [], "documents": 0, "text_bytes": 0, "complete": False,
        }  # fmt: skip
    # Continue after the documents of the parts written so far.
    documents = itertools.islice(read_documents(source), index["documents"], None)
    part: dict[str, list[np.ndarray]] = {split: [] for split in SPLITS}
    count = 0
    with progress.bar(None, f"tokenizing {source}", unit="bytes", quiet=quiet) as advance:
        fraction = identity["validation_fraction"]
        for batch in encoded(batches(documents), tokenizer, fraction, processes):
            for split in SPLITS:
                part[split].append(batch.ids[split])
            count += sum(len(ids) for ids in batch.ids.values())
            index["documents"] += batch.documents
            index["text_bytes"] += batch.text_bytes
            advance(batch.text_bytes)
            # Write a part once there are enough ids in memory.
            if count >= part_tokens:
                _write_part(place, index, part)
                part, count = {split: [] for split in SPLITS}, 0
    if count:
        _write_part(place, index, part)
    if not index["parts"]:
        raise InputError(f"{source} holds no text: name a source that does")
    # Only a complete index makes the tokens usable.
    index["complete"] = True
    io.write_sealed(place / INDEX, index)
    return index


def _write_part(place: Path, index: Index, part: dict[str, list[np.ndarray]]) -> None:
    """Append one part: its files first, then the index that knows of them."""
    # One file a split, and one digest over them.
    number = len(index["parts"])
    hasher = hashlib.sha256()
    counts: dict[str, int] = {}
    for split in SPLITS:
        ids = np.concatenate(part[split])
        data = ids.astype(index["dtype"]).tobytes()
        io.write_bytes(place / f"{split}-{number:05d}.bin", data)
        hasher.update(f"{split} {len(ids)}\n".encode() + data)
        counts[split] = len(ids)
    index["parts"].append(cast(ShardPart, {**counts, "digest": hasher.hexdigest()}))
    io.write_sealed(place / INDEX, index)


@contextlib.contextmanager
def _locked(place: Path, is_default: bool) -> Iterator[None]:
    """Lock a folder for one process at a time; the others wait and then find the work complete."""
    try:
        lock = io.check_writable(place.with_name(f"{place.name}.lock"))
    except InputError as error:
        option = f"--token-cache or ${cache.CACHE_VARIABLE}" if is_default else "--token-cache"
        raise InputError(f"{error}: {option} names where tokenized data go") from error
    with io.locked(lock):
        yield
