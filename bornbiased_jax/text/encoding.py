"""Encode documents as ids: in this process, or in several that are fed through their pipes."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

import bornbiased_jax
from bornbiased_jax import hardware
from bornbiased_jax.errors import InputError
from bornbiased_jax.text.protocol import Tokenizer
from bornbiased_jax.text.tokenizers import load_tokenizer

SPLITS: tuple[Literal["train"], Literal["validation"]] = ("train", "validation")
BATCH_CHARACTERS = 2**20
# The library's own threads are enough for the first few batches; more are worth starting processes for.
BATCHES_AT_HOME = 32


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


class Workers:
    """Processes that encode, each fed by a thread of its own through its standard input and output.

    Not ``multiprocessing``: it would run the user's script again in every worker, and forking does not go
    together with the threads of jax.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._own = threading.local()

    def submit(self, count: int, tokenizer: Tokenizer, texts: list[str], fraction: float) -> Future[Encoded]:
        """Encode texts in one of ``count`` processes."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(count)
        return self._threads.submit(self._encode, tokenizer, texts, fraction)

    def _encode(self, tokenizer: Tokenizer, texts: list[str], fraction: float) -> Encoded:
        process: subprocess.Popen[bytes] | None = getattr(self._own, "process", None)
        if process is None:
            package = str(Path(bornbiased_jax.__file__).resolve().parents[1])
            path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
            # Each worker is one of many: the tokenizer's own threads would only fight each other.
            environment = {**os.environ, "PYTHONPATH": path, "TOKENIZERS_PARALLELISM": "false"}
            command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
            process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            self._own.process = process
            self._processes.append(process)
            with tempfile.TemporaryDirectory() as folder:
                _ask(process, str(tokenizer.save(folder)))
        batch = _ask(process, (texts, fraction))
        assert batch is not None
        return batch

    def close(self) -> None:
        """End the processes."""
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
        for process in self._processes:
            for pipe in filter(None, (process.stdin, process.stdout)):
                with contextlib.suppress(OSError):
                    pipe.close()
            process.wait()


def serve() -> None:
    """Encode batches as a worker process: read a tokenizer, then answer until the input ends."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    tokenizer = load_tokenizer(pickle.load(source))
    answer: Encoded | InputError | None = None
    while True:
        pickle.dump(answer, sink)
        sink.flush()
        try:
            texts, fraction = pickle.load(source)
        except EOFError:
            return
        try:
            answer = encode(tokenizer, texts, fraction)
        except InputError as error:
            answer = error


def _ask(process: subprocess.Popen[bytes], message: object) -> Encoded | None:
    """Send a message to a worker and return its answer.

    Raises:
        InputError: the worker's own, or it is gone.
    """
    assert process.stdin is not None and process.stdout is not None
    try:
        pickle.dump(message, process.stdin)
        process.stdin.flush()
        answer: Encoded | InputError | None = pickle.load(process.stdout)
    except (OSError, EOFError, pickle.UnpicklingError) as error:
        raise InputError("a process that tokenizes was ended from outside: run the same command again") from error
    if isinstance(answer, InputError):
        raise answer
    return answer


def encoded(
    batches: Iterator[list[str]],
    tokenizer: Tokenizer,
    fraction: float,
    processes: int | None,
    pool: Workers,
) -> Iterator[Encoded]:
    """Yield encoded batches in order; at most two a worker are under way, so memory does not grow."""
    count = processes if processes is not None else hardware.cores()
    at_home = None if count == 1 else 0 if processes is not None else BATCHES_AT_HOME
    for texts in itertools.islice(batches, at_home):
        yield encode(tokenizer, texts, fraction)
    waiting: list[Future[Encoded]] = []
    for texts in batches:
        waiting.append(pool.submit(count, tokenizer, texts, fraction))
        if len(waiting) >= 2 * count:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()
