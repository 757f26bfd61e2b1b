"""The token space: projections of the residual stream on the tokens' rows, which no rotation of the stream changes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from bornbiased_jax.lineage.sketches import equal_rows

# Numbers of a table that are scaled at once.
_CHUNK = 1 << 21
# Rows farther than this from the median of the log norms, in robust standard deviations, are padding or rescaled.
_FAR = 8.0


@dataclasses.dataclass(frozen=True, eq=False)
class TokenTable:
    """Rows of the embedding or the head as the token space has them.

    Attributes:
        rows_VD: float32 rows by token.
        scale_D: scale of the norm folded into them, None where there is none.
        is_centered: whether the norm takes out the mean over coordinates.
    """

    rows_VD: np.ndarray
    scale_D: np.ndarray | None
    is_centered: bool

    def chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield chunks of rows, scaled and centered: float32, valid until the next one, not to be written to."""
        step = max(1, _CHUNK // self.rows_VD.shape[1])
        # One place for all chunks, as new memory costs more than what is computed in it.
        room_vD = np.empty((min(step, len(self.rows_VD)), self.rows_VD.shape[1]), np.float32)
        for start in range(0, len(self.rows_VD), step):
            rows_vD = np.asarray(self.rows_VD[start : start + step], np.float32)
            out_vD = room_vD[: len(rows_vD)]
            if self.scale_D is not None:
                rows_vD = np.multiply(rows_vD, self.scale_D, out=out_vD)
            if self.is_centered:
                mean_v = rows_vD.mean(axis=1, dtype=np.float64).astype(np.float32)
                rows_vD = np.subtract(rows_vD, mean_v[:, None], out=out_vD)
            yield slice(start, start + len(rows_vD)), rows_vD

    @cached_property
    def norms(self) -> np.ndarray:
        """The norm of each row."""
        return np.concatenate([np.zeros(0), *(np.sqrt(np.einsum("vd,vd->v", x, x)) for _, x in self.chunks())])

    def mean(self, is_used_V: np.ndarray) -> np.ndarray:
        """Return the mean over the tokens that are used, float64 [D]."""
        total_D = np.zeros(self.rows_VD.shape[1])
        for rows, rows_vD in self.chunks():
            total_D += is_used_V[rows].astype(np.float32) @ rows_vD
        return total_D / max(1, int(is_used_V.sum()))


def used_tokens(table: TokenTable) -> np.ndarray:
    """Return which rows of a table are no padding, by this model alone: bool [V].

    Padding are rows of zeros, rows that occur twice (vocabularies resized with a mean), and rows whose norm is far from
    the median.
    """
    is_used_V = table.norms > 0
    if not is_used_V.any():
        return is_used_V
    # Norms far from the median are padding or were rescaled.
    logs_V = np.log(np.where(is_used_V, table.norms, 1.0))
    center = np.median(logs_V[is_used_V])
    width = 1.4826 * np.median(np.abs(logs_V[is_used_V] - center))
    is_used_V &= np.abs(logs_V - center) <= _FAR * max(width, 0.05)
    is_equal_V = equal_rows(table.rows_VD)
    if is_equal_V.any():
        # The first of each set of equal rows is padding as well.
        repeated = {row.tobytes() for row in table.rows_VD[is_equal_V]}
        is_equal_V = np.array([row.tobytes() in repeated for row in table.rows_VD])
    has_label_V: np.ndarray = is_used_V & ~is_equal_V
    return has_label_V


def token_space(
    table: TokenTable, signs_VK: np.ndarray, is_used_V: np.ndarray, mean_D: np.ndarray | None
) -> np.ndarray:
    """Return P, the sum over tokens of signs ⊗ unit row: float64 [D, k].

    Args:
        table: embedding or head.
        signs_VK: sign vectors of the tokens.
        is_used_V: tokens that enter.
        mean_D: taken from every row before it is scaled to norm 1; None for nothing.
    """
    projection_DK = np.zeros((table.rows_VD.shape[1], signs_VK.shape[1]))
    for rows, rows_vD in table.chunks():
        if mean_D is not None:
            rows_vD = rows_vD - mean_D.astype(np.float32)
        norms_v = table.norms[rows] if mean_D is None else np.sqrt(np.einsum("vd,vd->v", rows_vD, rows_vD))
        weight_v = np.where(is_used_V[rows] & (norms_v > 0), 1.0 / np.where(norms_v > 0, norms_v, 1.0), 0.0)
        projection_DK += rows_vD.T @ (signs_VK[rows] * weight_v[:, None].astype(np.float32))
    return projection_DK
