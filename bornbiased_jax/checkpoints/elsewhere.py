"""A checkpoint that other processes open as well: named so that they find it, and known by its digest."""

from __future__ import annotations

import functools
from typing import Any

from bornbiased_jax import io
from bornbiased_jax.checkpoints.checkpoint import Checkpoint, open_checkpoint
from bornbiased_jax.errors import InputError


def named_for_others(reference: str) -> dict[str, Any]:
    """Return the reference under which processes that began in other folders open the same, as a source of jobs.

    Example:
        >>> named_for_others("seed:42@gpt2-tiny")
        {'checkpoint': 'seed:42@gpt2-tiny'}
    """
    if reference.startswith("seed:"):
        return {"checkpoint": reference}
    path = io.user_path(reference)
    before, at, after = reference.rpartition("@")
    if not path.exists() and at:
        return {"checkpoint": f"{io.user_path(before).absolute()}@{after}"}
    return {"checkpoint": str(path.absolute())}


@functools.lru_cache(maxsize=1)
def open_again(reference: str, digest: str, dtype: str | None = None) -> Checkpoint:
    """Open a checkpoint that another process has named, once in this one, with weights stored as ``dtype``.

    Raises:
        InputError: it is not there, or has other weights.
    """
    checkpoint = open_checkpoint(reference, dtype=dtype)
    if checkpoint.digest() != digest:
        raise InputError(
            f"{reference} has the digest {checkpoint.digest()} here, not {digest}: let all processes see the same files"
        )
    return checkpoint
