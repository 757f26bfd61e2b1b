"""A few positions that stand for all: nodes, sums over what a position sees, interpolation between nodes.

At initialization every statistic of a token is a smooth function of its position's logarithm, and a
covariance between two positions is smooth on either side of the diagonal. So a few dozen nodes, dense at the
start and geometric after it, carry the whole T×T matrix. Sums over all positions are exact for functions that
are piecewise cubic in the logarithm.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bornbiased_jax.theory import checks
from bornbiased_jax.theory.activations import Array

DENSE = 24
"""Positions 1..DENSE are always nodes."""
RATIO = 1.06
"""Spacing of the nodes after them."""
EXACT_UP_TO = 96
"""Sequences this short have a node at every position."""
LARGEST_EXACT = 2048
"""The longest sequence for which a window, whose statistics have kinks, is followed at every position."""


Index = npt.NDArray[np.intp]


class Grid(NamedTuple):
    """Nodes in 1..T, shape [n]; the last one is T."""

    length: int
    nodes: Array
    seen_nn: Array
    """Row j: weights over nodes of Σ f(i) over the positions i that node j attends to."""
    reach: Array
    """How many those are."""
    interpolation_Tn: Array
    """From values at the nodes to values at positions 1..T."""


def grid(length: int, window: int | None = None, exact: bool = False) -> Grid:
    """Return nodes for sequences of one length, attention reaching back over a window or everything.

    Args:
        length: tokens of a sequence.
        window: positions that attention reaches back over; None: all.
        exact: a node at every position, whatever the length.

    Raises:
        ValueError: length or window below 1; a window shorter than a sequence of more than ``LARGEST_EXACT``
            positions.
    """
    length = checks.whole(length, "length")
    reach = length if window is None else min(checks.whole(window, "window"), length)
    if reach < length and length > LARGEST_EXACT:
        raise ValueError(
            f"window: {window} is shorter than the sequence, which is then followed at every position, "
            f"up to {LARGEST_EXACT} of them, not {length}"
        )
    return _grid(length, reach, bool(exact or reach < length or length <= EXACT_UP_TO))


@functools.lru_cache(maxsize=32)
def _grid(length: int, reach: int, exact: bool) -> Grid:
    places = np.arange(1.0, length + 1)
    if exact:
        seen_nn = np.tril(np.ones((length, length)))
        if reach < length:
            seen_nn -= np.tril(seen_nn, -reach)
        return Grid(length, places, seen_nn, np.minimum(places, reach), np.eye(length))
    nodes = _nodes(length)
    between = _interpolation(places, nodes)
    seen_nn = np.cumsum(between, axis=0)[nodes.astype(int) - 1]
    return Grid(length, nodes, seen_nn, nodes.copy(), between)


def num_nodes(length: int) -> int:
    """Count the nodes that :func:`grid` has for a sequence of this length, without making it.

    >>> num_nodes(100_000) == grid(100_000).nodes.size
    True
    """
    return length if length <= EXACT_UP_TO else _nodes(length).size


def _nodes(length: int) -> Array:
    nodes = list(range(1, DENSE + 1))
    while nodes[-1] < length:
        nodes.append(max(nodes[-1] + 1, round(nodes[-1] * RATIO)))
    # The last step is stretched or shortened so that it ends at T and no cell is tiny.
    nodes[-1] = length
    if len(nodes) > 2 and nodes[-1] - nodes[-2] < 0.5 * (nodes[-2] - nodes[-3]):
        del nodes[-2]
    return np.array(nodes, dtype=float)


def _interpolation(places: Array, nodes: Array) -> Array:
    """Interpolate in log position by cubic Lagrange polynomials, [places, nodes]."""
    x, y = np.log(places), np.log(nodes)
    first = np.clip(np.searchsorted(nodes, places, side="right") - 2, 0, nodes.size - 4)
    near = first[:, None] + np.arange(4)
    weights = np.ones((places.size, 4))
    for j in range(4):
        for k in range(4):
            if k != j:
                weights[:, j] *= (x - y[near[:, k]]) / (y[near[:, j]] - y[near[:, k]])
    matrix = np.zeros((places.size, nodes.size))
    np.put_along_axis(matrix, near, weights, axis=1)
    return matrix


def coarse(fine: Grid, count: int = 9) -> tuple[Index, Array]:
    """Choose a thin subset of the nodes for slowly varying fields.

    Returns:
        (index [m] of the chosen nodes, mean_mm): row j of ``mean_mm`` averages over the positions that node j
        sees, for fields that are linear in log position between chosen nodes.

    Raises:
        ValueError: count below 1.
    """
    checks.whole(count, "count")
    places = np.arange(1.0, fine.length + 1)
    targets = np.unique(np.round(np.geomspace(1, fine.length, count)))
    index = np.unique(np.searchsorted(fine.nodes, targets))
    nodes = fine.nodes[index]
    if nodes.size == 1:
        return index, np.ones((1, 1))
    hats = np.stack([np.interp(np.log(places), np.log(nodes), row) for row in np.eye(nodes.size)], axis=1)
    sums = np.concatenate([np.zeros((1, nodes.size)), np.cumsum(hats, axis=0)])
    last = nodes.astype(int)
    reach = fine.reach[index].astype(int)
    return index, (sums[last] - sums[last - reach]) / reach[:, None]


def mean_over_pairs(field_nn: Array, fine: Grid) -> float:
    """Average a symmetric function of two different positions over all pairs; 0 for a single position."""
    T = fine.length
    if T == 1:
        return 0.0
    weights = fine.interpolation_Tn.sum(axis=0)
    diagonal = weights @ np.diag(field_nn)
    return float((weights @ field_nn @ weights - diagonal) / (T * (T - 1)))
