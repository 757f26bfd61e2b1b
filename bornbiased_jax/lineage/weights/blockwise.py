"""Was a model quantised in contiguous blocks? Places in a block are labels too, and a permutation does not keep them.

A block has a scale of its own: within it numbers recur, between neighbouring blocks they do not. Numbers of float16 or
bfloat16 recur alike everywhere, and so do those that share one scale in a row or a matrix, which treats labels alike.
"""

from __future__ import annotations

import numpy as np

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.lineage.weights.view import block_modules

_SIZES = (16, 32, 64, 128, 256)
# Rows of a matrix that are looked at.
_ROWS = 64
# The fraction of pairs of numbers in a block that are equal is at least this, and so many times that of two blocks.
_RECURRING, _TIMES = 2e-3, 5.0


def blockwise(reader: Checkpoint) -> bool:
    """Return whether a model was quantised in blocks, by its file or by numbers of the embedding or the first block.

    What was trained after it was quantised, or with numbers scaled by tiles, shows nothing.
    """
    if reader.stored.is_block_quantized or reader.is_initial or reader.kind == "run":
        return reader.stored.is_block_quantized
    matrices = (reader.read(f"blocks/{module}/kernel", 0) for module in block_modules(reader.cfg))
    if has_blocks(reader.read("embed/embedding")):
        return True
    # Files keep a matrix by outputs or by inputs.
    return any(has_blocks(rows) for kernel in matrices for rows in (kernel, kernel.T))


def has_blocks(rows_nD: np.ndarray) -> bool:
    """Return whether numbers recur within contiguous blocks of the rows and not between neighbors; zeros aside."""
    sample_nD = np.where(rows_nD[:_ROWS] == 0, np.nan, rows_nD[:_ROWS])
    for size in _SIZES:
        count = sample_nD.shape[1] // size
        if count < 2:
            return False
        blocks_nKb = sample_nD[:, : count * size].reshape(len(sample_nD), count, size)
        equal = _equal(blocks_nKb, blocks_nKb) - np.count_nonzero(~np.isnan(blocks_nKb))
        within = equal / (blocks_nKb.size * (size - 1))
        across = _equal(blocks_nKb[:, 1:], blocks_nKb[:, :-1]) / (blocks_nKb[:, 1:].size * size)
        if within >= _RECURRING and within >= _TIMES * across:
            return True
    return False


def _equal(first_nKb: np.ndarray, second_nKb: np.ndarray) -> int:
    """Count pairs of equal numbers of blocks in the same place."""
    return sum(
        int(np.count_nonzero(first_Kb[:, :, None] == second_Kb[:, None, :]))
        for first_Kb, second_Kb in zip(first_nKb, second_nKb, strict=True)
    )
