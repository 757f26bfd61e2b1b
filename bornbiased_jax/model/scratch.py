"""What a pass through a model block by block keeps on disk: the residual stream, and what each block gave.

A page is a folder with two files of streams in turn, one file for each whole block, and a list of what is whole with
its digests. The list is written last, so that a killed pass resumes after its last whole block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import math
import os
import re
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

import numpy as np
from annotated_types import Ge, Len
from typing_extensions import TypedDict

from bornbiased_jax import io, progress
from bornbiased_jax.code import code_digest
from bornbiased_jax.errors import InputError

LIST = "whole.json"
FINISHED = "finished.npz"
NOTHING = -1
"""The number of whole blocks of a page that has not even the embedded sequences."""
# Bytes that are written at once where a file gets its room by zeros.
_ZEROS = 1 << 24


class BlockList(TypedDict):
    """The list of a page: the number of complete blocks, and the digest of each file that they left."""

    blocks: Annotated[int, Ge(0)]
    files: Annotated[dict[str, str], Len(0, 1_000_000)]


class Page:
    """The folder of one pass.

    Attributes:
        path: where it is.
        shapes: of the residual stream of each batch, [B, T, D].
    """

    def __init__(self, path: Path, shapes: Sequence[tuple[int, int, int]]) -> None:
        self.path, self.shapes = path, list(shapes)
        sizes = [4 * math.prod(shape) for shape in self.shapes]
        self._offsets = [sum(sizes[:index]) for index in range(len(sizes))]
        self.stream_bytes = sum(sizes)
        self._files: dict[str, str] = {}

    def resume(self) -> int:
        """Return the number of complete blocks: 0 with the embedded sequences alone, :data:`NOTHING` without those.

        A page of which a file is corrupted or missing begins again; a line says so.

        Raises:
            InputError: its files cannot be made: the disk is full, or the folder is not to be written to.
        """
        blocks = self._num_complete()
        if blocks is None:
            progress.warn(f"{self.path} is corrupted: its blocks are computed again from the first")
            blocks = NOTHING
        if blocks == NOTHING:
            self._files = {}
            self._make()
        return blocks

    def _num_complete(self) -> int | None:
        if not (self.path / LIST).is_file():
            return NOTHING
        try:
            # Every file that the list names must be as it was written.
            listing: BlockList = io.read_sealed(BlockList, self.path / LIST)
            self._files = dict(listing["files"])
            for name, digest in self._files.items():
                current = self._stream_digest(name) if name.endswith(".f32") else io.sha256(self.path / name)
                if current != digest:
                    return None
        except (InputError, OSError, ValueError):
            return None
        return listing["blocks"]

    def _make(self) -> None:
        try:
            self._clear()
            for parity in range(2):
                with (self.path / _stream_name(parity)).open("wb") as stream:
                    _allocate(stream, self.stream_bytes)
        except OSError as error:
            raise InputError(
                f"cannot write {2 * self.stream_bytes:,} bytes into {self.path}: {error.strerror}; free some room or "
                "choose another folder"
            ) from error

    def write_stream(self, blocks: int, batch: int, stream_BTD: np.ndarray) -> str:
        """Store the residual stream of one batch after ``blocks`` blocks and return its digest."""
        # Two files in turn: the stream before a block stays until the one after it is whole.
        mapped = self._mapped(blocks, batch, "r+")
        mapped[...] = stream_BTD
        return _digest(mapped)

    def read_stream(self, blocks: int, batch: int) -> np.ndarray:
        """Read the residual stream of one batch after ``blocks`` blocks."""
        return np.array(self._mapped(blocks, batch, "r"))

    def _mapped(self, blocks: int, batch: int, mode: Literal["r", "r+"]) -> np.ndarray:
        # One batch at a time: what is mapped counts as memory of the process while it is.
        place = self.path / _stream_name(blocks % 2)
        return np.memmap(place, np.float32, mode, self._offsets[batch], self.shapes[batch])

    def _stream_digest(self, name: str) -> str:
        parity = 0 if name == _stream_name(0) else 1
        digests = [_digest(self._mapped(parity, index, "r")) for index in range(len(self.shapes))]
        return hashlib.sha256("".join(digests).encode()).hexdigest()

    def commit(self, blocks: int, digests: Sequence[str], results: Sequence[Sequence[np.ndarray]]) -> None:
        """Record that ``blocks`` blocks are complete.

        Args:
            blocks: how many.
            digests: of the streams after them, by batch, as :meth:`write_stream` gave them.
            results: of the last of them, by batch; nothing for the embedded sequences.

        Raises:
            InputError: it cannot be written.
        """
        # Results, then the stream, then the list that says so: a kill between leaves the former state.
        if results:
            self._store(_block_name(blocks - 1), results)
        self._files.pop(_stream_name((blocks - 1) % 2), None)
        self._files[_stream_name(blocks % 2)] = hashlib.sha256("".join(digests).encode()).hexdigest()
        # A mapped file is written back by the kernel when it likes: wait for it.
        descriptor = os.open(self.path / _stream_name(blocks % 2), os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        self._write_list(blocks)

    def finish(
        self, results: Sequence[Sequence[np.ndarray]], outputs: Sequence[Sequence[np.ndarray]], blocks: int
    ) -> None:
        """Store the results of the last block, unless they are stored already, and the outputs of the pass.

        The residual streams are removed.
        """
        if results:
            self._store(_block_name(blocks - 1), results)
        # The streams are the largest part of a page, and no longer needed.
        self._store(FINISHED, outputs)
        for parity in range(2):
            self._files.pop(_stream_name(parity), None)
        self._write_list(blocks)
        for parity in range(2):
            (self.path / _stream_name(parity)).unlink(missing_ok=True)

    @property
    def finished(self) -> bool:
        """True once :meth:`finish` was called."""
        return FINISHED in self._files

    def block(self, block: int, batch: int) -> list[np.ndarray]:
        """Read the results of a block (from 0) for one batch."""
        return _load(self.path / _block_name(block), batch)

    def output(self, batch: int) -> list[np.ndarray]:
        """Read the output of one batch, made of its residual stream after the last block."""
        return _load(self.path / FINISHED, batch)

    def _store(self, name: str, arrays: Sequence[Sequence[np.ndarray]]) -> None:
        # One archive for all batches, each array under its batch and its place.
        buffer = BytesIO()
        named = {f"{batch}.{index}": array for batch, row in enumerate(arrays) for index, array in enumerate(row)}
        np.savez(buffer, allow_pickle=False, **named)
        data = buffer.getvalue()
        io.write_bytes(self.path / name, data)
        self._files[name] = hashlib.sha256(data).hexdigest()

    def _write_list(self, blocks: int) -> None:
        io.write_sealed(self.path / LIST, {"blocks": blocks, "files": self._files})

    def remove(self) -> None:
        """Remove the page, and nothing that somebody else put there."""
        with contextlib.suppress(OSError):
            self._clear()
            (self.path / "lock").unlink(missing_ok=True)
            self.path.rmdir()

    def _clear(self) -> None:
        # The list first: without it nothing of the rest is taken for whole.
        names = [LIST, FINISHED, *map(_stream_name, range(2))]
        blocks = [path.name for path in self.path.glob("block-*.npz") if _BLOCK.fullmatch(path.name)]
        for name in names + blocks:
            (self.path / name).unlink(missing_ok=True)


def _digest(array: np.ndarray) -> str:
    return hashlib.sha256(array.view(np.uint8).data).hexdigest()


def _stream_name(parity: int) -> str:
    return f"stream-{parity}.f32"


def _block_name(block: int) -> str:
    return f"block-{block:04}.npz"


_BLOCK = re.compile(r"block-\d{4,}\.npz")


def _load(path: Path, batch: int) -> list[np.ndarray]:
    with np.load(path, allow_pickle=False) as stored:
        count = sum(name.startswith(f"{batch}.") for name in stored.files)
        return [stored[f"{batch}.{index}"] for index in range(count)]


def _allocate(stream: BinaryIO, size: int) -> None:
    """Give a file its room now: a mapped page that finds none later would end the process."""
    # macOS has no such call: zeros are written there.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(stream.fileno(), 0, size)
        return
    for start in range(0, size, _ZEROS):
        stream.write(bytes(min(_ZEROS, size - start)))


def describe(value: object) -> object:
    """Describe a callable, JSON-ready: its code and, through partials, lists and dataclasses, what it carries.

    Raises:
        InputError: a function within another one or without a name, which its code alone does not tell from others.
    """
    if value is None or isinstance(value, str):
        return value
    if inspect.isfunction(value):
        if "<" in value.__qualname__:
            raise InputError(
                f"{value.__qualname__} is not told from other functions: define it at the top of a module, and give it "
                "its numbers by jax.tree_util.Partial"
            )
        return [code_digest(value), value.__qualname__]
    if isinstance(value, functools.partial):
        return [describe(part) for part in (value.func, *value.args, *sorted(value.keywords.items()))]
    if isinstance(value, list | tuple):
        return [describe(part) for part in value]
    if dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name) for field in dataclasses.fields(value)]
        return [code_digest(type(value)), *map(describe, fields)]
    return array_digest(np.ascontiguousarray(value))


def array_digest(array: np.ndarray) -> str:
    """Compute the digest of an array: of its type, its shape and its numbers."""
    return hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes()).hexdigest()
