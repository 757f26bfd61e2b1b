"""Windows of ids on disk, shuffled by the data seed and batched endlessly with Grain."""

from __future__ import annotations

from collections.abc import Iterator
from typing import SupportsIndex

import grain
import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.training.data.shards import Dataset, Tokens


class Windows:
    """Windows [context + 1] of a long sequence of ids, each ``context`` further on; random access.

    The last id of a window is the first of the next: inputs are ``window[:-1]``, targets ``window[1:]``, and
    every id but the very first is a target once an epoch (the remainder at the end is left out).

    Args:
        tokens: the ids.
        context: inputs a window.
        bos_id: an id that every window begins with, before ``context`` ids of the text; None: the text alone.

    >>> class Count:  # stands for Tokens
    ...     __len__, read = lambda self: 9, lambda self, start, stop: np.arange(start, stop)
    >>> windows = Windows(Count(), 4)
    >>> len(windows), windows[0].tolist(), windows[1].tolist()
    (2, [0, 1, 2, 3, 4], [4, 5, 6, 7, 8])
    >>> windows.with_bos(99)[1].tolist()
    [99, 4, 5, 6, 7]
    """

    def __init__(self, tokens: Tokens, context: int, bos_id: int | None = None) -> None:
        self._tokens, self._context, self._bos_id = tokens, context, bos_id

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1) // self._context)

    def __getitem__(self, index: SupportsIndex) -> np.ndarray:
        # Windows overlap by one id: the last target of one is the first input of the next.
        start = int(index) * self._context
        ids = self._tokens.read(start, start + self._context + 1)
        return ids if self._bos_id is None else prepend_bos(ids, self._bos_id)

    def with_bos(self, bos_id: int | None) -> Windows:
        """Return the same windows, each with a BOS token in front."""
        return Windows(self._tokens, self._context, bos_id)


def prepend_bos(ids_NT: np.ndarray, bos_id: int) -> np.ndarray:
    """Put a BOS token in front of each row [..., T] and drop its last id: the same shape."""
    front = np.full((*ids_NT.shape[:-1], 1), bos_id, ids_NT.dtype)
    return np.concatenate([front, ids_NT[..., :-1]], axis=-1)


def split(dataset: Dataset, context: int, validation_fraction: float) -> tuple[Windows, Windows, str]:
    """Return windows of training and validation, and the way in which they were split.

    Where the documents are so few that none fell to validation (or too little for one window), the end of the
    training ids is taken instead: "documents" or "tail".

    Raises:
        InputError: the text is too short for one window of each.
    """
    train, validation, method = dataset.train, dataset.validation, "documents"
    if len(validation) <= context:
        keep = len(train) - max(context + 1, round(validation_fraction * len(train)))
        if keep > context:
            train, validation, method = train.part(0, keep), train.part(keep, len(train)), "tail"
    # Each part needs one window at least.
    windows = Windows(train, context), Windows(validation, context)
    if not len(windows[0]) or not len(windows[1]):
        total = len(dataset.train) + len(dataset.validation)
        raise InputError(
            f"{dataset.facts['source']} has {total:,} tokens, too few for training and validation at a context of "
            f"{context} and a validation fraction of {validation_fraction:g}: give more text, shorten the context or "
            "bring the fraction nearer to 0.5"
        )
    return *windows, method


def batches(
    windows: Windows,
    *,
    batch_size: int,
    data_seed: int,
    part: tuple[int, int] = (0, 1),
    threads: int = 1,
) -> grain.DatasetIterator[np.ndarray]:
    """Yield batches [B / count, context + 1] without end, int32, the same for the same data seed.

    Each epoch has its own order. ``get_state()`` and ``set_state()`` save and restore the place; the state is
    the number of batches taken, whatever the part.

    Args:
        windows: what to draw from.
        batch_size: B, of all processes together.
        data_seed: of the order alone.
        part: (index, count): this process takes every count-th window of each batch.
        threads: that read ahead.
    """
    index, count = part
    # An order of its own for each epoch, of which each process takes its part of every batch.
    ordered = grain.MapDataset.source(windows).seed(data_seed).shuffle().repeat()
    if count > 1:
        ordered = ordered[index::count]
    grouped = ordered.batch(batch_size // count, drop_remainder=True)
    ahead = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 if threads else 0)
    return iter(grouped.to_iter_dataset(ahead))


def held_out(windows: Windows, num_sequences: int, batch_size: int) -> Iterator[np.ndarray]:
    """Yield batches [B, context + 1] of the first ``num_sequences`` windows; missing rows are −1 throughout."""
    # Always the same windows from the beginning, the last batch padded to the shape of the others.
    total = min(num_sequences, len(windows))
    for start in range(0, total, batch_size):
        rows = [windows[index] for index in range(start, min(start + batch_size, total))]
        rows += [np.full_like(rows[0], -1)] * (batch_size - len(rows))
        yield np.stack(rows)
