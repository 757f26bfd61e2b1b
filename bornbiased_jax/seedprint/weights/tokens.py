"""Which tokens two models are compared on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.errors import InputError
from bornbiased_jax.seedprint.weights.view import Matrix, folded

MIN_TOKENS = 8
# Rows farther than this from the median of the log norms, in robust standard deviations, are padding or rescaled.
_FAR = 8.0


def shared_ids(base: WeightsReader, suspect: WeightsReader, ids: Iterable[int] | None = None) -> np.ndarray:
    """Token ids that both models have, of those given (the tokens of some text) or of all: [I], ascending.

    Raises:
        InputError: an id that is in neither vocabulary, or none given.
    """
    least = min(base.cfg.vocab_size, suspect.cfg.vocab_size)
    if ids is None:
        return np.arange(least)
    given = np.unique(np.fromiter(ids, np.int64))
    most = max(base.cfg.vocab_size, suspect.cfg.vocab_size)
    if not len(given) or given[0] < 0 or given[-1] >= most:
        raise InputError(f"token ids must be given and lie from 0 to {most - 1}: choose them from a text")
    return given[given < least]


def ordinary_ids(reader: WeightsReader, ids_I: np.ndarray) -> np.ndarray:
    """Those of the tokens whose rows are not padding, judged by this model's own rows alone: [≤ I].

    Left out are rows of zeros, rows that occur twice (vocabularies padded or resized with a mean), and rows whose
    norm is far from the median in the embedding or the head.
    """
    kept_I = np.ones(len(ids_I), bool)
    for module in ("embed", "head"):
        rows_ID = folded(reader, Matrix(module))[ids_I]
        norms_I = np.sqrt(np.einsum("id,id->i", rows_ID, rows_ID, dtype=np.float64))
        kept_I &= norms_I > 0
        logs_I = np.log(np.maximum(norms_I, 1e-300))
        centre = np.median(logs_I[norms_I > 0]) if (norms_I > 0).any() else 0.0
        width = 1.4826 * np.median(np.abs(logs_I[norms_I > 0] - centre)) if (norms_I > 0).any() else 0.0
        kept_I &= np.abs(logs_I - centre) <= _FAR * max(width, 0.05)
        _, first, count = np.unique(rows_ID, axis=0, return_index=True, return_counts=True)
        once_I = np.zeros(len(ids_I), bool)
        once_I[first[count == 1]] = True
        kept_I &= once_I
    return ids_I[kept_I]
