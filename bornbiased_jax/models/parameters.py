"""The parameter tree as a flat dict of paths, and back."""

from __future__ import annotations

import math
from typing import Any

from flax import traverse_util

Params = dict[str, Any]


def flatten(params: Params) -> dict[str, Any]:
    """{"blocks/attention/query/kernel": array, …}, sorted by path."""
    return dict(sorted(traverse_util.flatten_dict(params, sep="/").items()))


def unflatten(flat: dict[str, Any]) -> Params:
    """The inverse of :func:`flatten`."""
    return traverse_util.unflatten_dict(flat, sep="/")


def count_parameters(params: Params) -> int:
    """Number of scalars in a tree of arrays or of shape descriptions."""
    return sum(math.prod(leaf.shape) for leaf in flatten(params).values())
