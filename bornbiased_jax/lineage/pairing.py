"""Pair blocks and experts of two models by Grams that no neuron number enters.

The Gram of a block sums outer products over its neurons, of the gate vector and of the concatenated up and down
vectors. Neither their order nor a sign that up and down share changes it, so that a test that permutes neurons stays
exact for blocks paired by Grams. Grams in token space look at no residual coordinate either: tests that permute
coordinates take blocks paired by those alone.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy

from bornbiased_jax.lineage.fingerprints import Component, Neurons
from bornbiased_jax.memoized import memoized

# Pairs of unrelated blocks are about as far apart in any order.
_REORDERED = 0.5

Space = Literal["token", "coordinates"]
"""What the sketches of neurons are products with: the token table, or residual coordinates."""


class BlockPair(NamedTuple):
    """A block of the base and the block of the suspect that corresponds to it, counted from 1."""

    base: int
    suspect: int


class FurtherBlock(NamedTuple):
    """A block of the deeper model without a place in the pairs.

    Attributes:
        side: "base" or "suspect", whose block it is.
        number: of the block, counted from 1.
        partner: block of the other model with the nearest Grams; None where its neurons do not agree with this one's.
        evidence: in which these neurons, in the order in which they are stored, agree most; "" where undefined.
        z: of it; None where undefined.
    """

    side: str
    number: int
    partner: int | None
    evidence: str
    z: float | None


@dataclasses.dataclass(frozen=True)
class NeuronPair:
    """MLPs whose neurons are compared under one permutation: several pairs where experts face one dense MLP.

    Attributes:
        block: of the base.
        pairs: MLPs or experts of base and suspect; their scores are added.
    """

    block: int
    pairs: tuple[tuple[Neurons, Neurons], ...]


class Units(NamedTuple):
    """Sketches of labels as unit vectors.

    Attributes:
        rows: [..., n, k] float32 by part; rows of zeros stay.
        present: the parts that have numbers.
        is_live: labels that have numbers in all of these, bool [..., n].
    """

    rows: dict[str, np.ndarray]
    present: tuple[str, ...]
    is_live: np.ndarray


def unit_rows(sketch: np.ndarray) -> np.ndarray:
    """Scale rows of a sketch to unit norm; rows of zeros stay: [..., n, k] float32."""
    return _scaled(sketch)[0]


def units_of(sketches: Mapping[str, np.ndarray]) -> Units:
    """Scale the sketches of one set of labels, given by part, to unit norm."""
    scaled = {name: _scaled(sketch) for name, sketch in sketches.items()}
    present = tuple(name for name, (_, is_live) in scaled.items() if is_live.any())
    # Without any part no label has numbers.
    is_live = np.logical_and.reduce([scaled[name][1] for name in present or scaled])
    return Units({name: rows for name, (rows, _) in scaled.items()}, present, is_live)


def _scaled(sketch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows of unit norm, and which are not of zeros."""
    rows = sketch.astype(np.float32)
    norm = np.sqrt(np.einsum("...k,...k->...", rows, rows))
    is_live = norm > 0
    rows /= np.where(is_live, norm, 1)[..., None]
    return rows, is_live


def _distances(
    base: Sequence[Sequence[Neurons]], suspect: Sequence[Sequence[Neurons]], *, tokens_only: bool
) -> np.ndarray:
    """Compute distances of blocks by the Grams of their MLPs, each kind of Gram in units of its median: [L, L'].

    A block has one MLP, or its experts; ``tokens_only`` leaves out Grams in residual coordinates.
    """
    total_LL = np.zeros((len(base), len(suspect)))
    for base_LG, suspect_LG in _comparable_grams(base, suspect, tokens_only=tokens_only):
        # Each kind of Gram counts alike: in units of its median.
        squares_LL = scipy.spatial.distance.cdist(base_LG, suspect_LG, "sqeuclidean")
        median = float(np.median(squares_LL))
        total_LL += squares_LL / median if median > 0 else squares_LL
    return total_LL


def _comparable_grams(
    base: Sequence[Sequence[Neurons]], suspect: Sequence[Sequence[Neurons]], *, tokens_only: bool
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Compute both models' Grams in each space in which both have them: [L, G] and [L', G]."""
    spaces: tuple[Space, ...] = ("token",) if tokens_only else ("token", "coordinates")
    by_space = [(_grams(base, space), _grams(suspect, space)) for space in spaces]
    return [
        (base_LG, suspect_LG)
        for base_LG, suspect_LG in by_space
        if base_LG is not None and suspect_LG is not None and base_LG.shape[1] == suspect_LG.shape[1]
    ]


def _grams(blocks: Sequence[Sequence[Neurons]], space: Space) -> np.ndarray | None:
    """Compute the Grams of gate and of concatenated up and down, per neuron: a row for each block, None without any.

    Where some MLPs of a model have a gate and others none, these have the Gram of a gate of zeros.
    """
    grams = [[_gram(mlp, space) for mlp in block] for block in blocks]
    size = max(0 if gram is None else len(gram) for block in grams for gram in block)
    rows = []
    for block in grams:
        # The Gram of the gate stands first.
        present = [gram for gram in block if gram is not None]
        padded = [gram if len(gram) == size else np.pad(gram, (size - len(gram), 0)) for gram in present]
        if len(padded) < len(block):
            return None
        rows.append(padded[0] if len(padded) == 1 else np.mean(padded, axis=0))
    return np.stack(rows)


def neuron_units(mlp: Neurons, space: Space) -> Units | None:
    """Scale the rows of an MLP's sketches to unit norm, by matrix; None without sketches in this space."""
    # All neurons of a large model are many times what a fingerprint holds by default: they are not kept.
    return (_scaled_sketches if mlp.is_complete else _kept_sketches)(mlp, space)


def _scaled_sketches(mlp: Neurons, space: Space) -> Units | None:
    sketches = mlp.token if space == "token" else mlp.coordinates
    return units_of(sketches) if sketches else None


_kept_sketches = memoized(_scaled_sketches)


@memoized
def _gram(mlp: Neurons, space: Space) -> np.ndarray | None:
    """Compute the Grams of one MLP as a row; None without sketches in this space."""
    units = neuron_units(mlp, space)
    if units is None:
        return None
    # Signs that up and down share leave these Grams as they are.
    pieces = [units.rows["gate"]] if "gate" in units.rows else []
    pieces.append(np.concatenate([units.rows["up"], units.rows["down"]], axis=1))
    return np.concatenate([(piece_NK.T @ piece_NK).ravel() / max(1, len(piece_NK)) for piece_NK in pieces])


def monotone_pairs(distance_LL: np.ndarray) -> list[tuple[int, int]]:
    """Pair each row of the shallower model with a column of the deeper one in order, with the least total distance.

    Example:
        >>> monotone_pairs(np.array([[0.0, 9, 9], [9, 9, 0.0]]))
        [(0, 0), (1, 2)]
    """
    if distance_LL.shape[0] > distance_LL.shape[1]:
        return [(row, column) for column, row in monotone_pairs(distance_LL.T)]
    num_rows, num_columns = distance_LL.shape
    # least[i, j]: the first i rows paired with columns among the first j.
    least = np.full((num_rows + 1, num_columns + 1), np.inf)
    least[0] = 0.0
    for row in range(1, num_rows + 1):
        for column in range(row, num_columns - num_rows + row + 1):
            paired = least[row - 1, column - 1] + distance_LL[row - 1, column - 1]
            least[row, column] = min(paired, least[row, column - 1])
    # Walk back through the choices.
    pairs: list[tuple[int, int]] = []
    column = num_columns
    for row in range(num_rows, 0, -1):
        while least[row, column - 1] <= least[row, column]:
            column -= 1
        pairs.append((row - 1, column - 1))
        column -= 1
    return pairs[::-1]


def _pairs_in_order(distance_LL: np.ndarray, grams: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[tuple[int, int]]:
    """Pair blocks in order, by distances or by cosines of Grams without their mean, whichever fits better.

    Training and a rotation change all Grams of a model alike, so that the nearest block may be another one. Grams
    without the mean of their model do not have that part; where many blocks were left out the means differ.
    """
    by_distance = monotone_pairs(distance_LL)
    if distance_LL.shape[0] == distance_LL.shape[1] or min(distance_LL.shape) < 2 or not grams:
        return by_distance
    every_pair = list(np.ndindex(*distance_LL.shape))
    candidates = by_distance, monotone_pairs(_cosine_distances(grams, every_pair))

    def misfit(pairs: list[tuple[int, int]]) -> float:
        cosines_LL = _cosine_distances(grams, pairs)
        return float(sum(cosines_LL[pair] for pair in pairs))

    return min(candidates, key=misfit)


def _cosine_distances(grams: Sequence[tuple[np.ndarray, np.ndarray]], pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Add 1 − cosine of two models' Grams, less their means over the blocks of the pairs, over spaces: [L, L']."""
    rows, columns = (sorted(set(numbers)) for numbers in zip(*pairs, strict=True))
    total_LL = np.zeros((len(grams[0][0]), len(grams[0][1])))
    for base_LG, suspect_LG in grams:
        base_LG, suspect_LG = (
            LG - LG[numbers].mean(axis=0) for LG, numbers in ((base_LG, rows), (suspect_LG, columns))
        )
        norms_LL = np.linalg.norm(base_LG, axis=1)[:, None] * np.linalg.norm(suspect_LG, axis=1)
        # Equal blocks have no cosine.
        total_LL += 1 - base_LG @ suspect_LG.T / np.where(norms_LL > 0, norms_LL, 1)
    return total_LL


def reordered_pairs(distance_LL: np.ndarray) -> list[tuple[int, int]] | None:
    """Pair rows with columns in any order, if that has less than half the total distance of pairs in order.

    Example:
        >>> reordered_pairs(np.array([[9, 9, 0.0], [9, 0.0, 9], [0.0, 9, 9]]))
        [(0, 2), (1, 1), (2, 0)]
    """
    rows, columns = scipy.optimize.linear_sum_assignment(distance_LL)
    in_order = sum(distance_LL[pair] for pair in monotone_pairs(distance_LL))
    if distance_LL[rows, columns].sum() < _REORDERED * in_order:
        return list(zip(rows.tolist(), columns.tolist(), strict=True))
    return None


def pair_blocks(base: Component, suspect: Component, *, tokens_only: bool = False) -> list[BlockPair]:
    """Pair blocks of two models of any depth, in order unless they clearly stand in another one.

    ``tokens_only`` looks at no residual coordinate.

    Returns:
        As many pairs as the shallower model has blocks with an MLP; without MLPs as it has blocks with heads, or else
        blocks of equal numbers.
    """
    base_blocks, suspect_blocks = by_block(base), by_block(suspect)
    if not base_blocks or not suspect_blocks:
        return _pair_by_heads(base, suspect)
    blocks = list(base_blocks.values()), list(suspect_blocks.values())
    by_tokens_LL = _distances(*blocks, tokens_only=True)
    distance_LL = by_tokens_LL if tokens_only else _distances(*blocks, tokens_only=False)
    # In rotated models tokens alone show another order.
    pairs = reordered_pairs(distance_LL) or reordered_pairs(by_tokens_LL)
    if pairs is None:
        pairs = _pairs_in_order(distance_LL, _comparable_grams(*blocks, tokens_only=tokens_only))
    base_numbers, suspect_numbers = list(base_blocks), list(suspect_blocks)
    return [BlockPair(base_numbers[row], suspect_numbers[column]) for row, column in pairs]


def _pair_by_heads(base: Component, suspect: Component) -> list[BlockPair]:
    """Pair blocks without MLPs by what their heads compute together, which no order of heads and no rotation changes.

    Without heads in token space blocks correspond by number.
    """
    if not base.heads or not suspect.heads or base.token_labels != suspect.token_labels:
        return [BlockPair(block, block) for block in range(1, min(base.num_blocks, suspect.num_blocks) + 1)]
    sums = []
    for component in (base, suspect):
        parts = [(unit_rows(heads.query_key), unit_rows(heads.value_output)) for heads in component.heads]
        sums.append(np.stack([np.concatenate([rows.mean(axis=0) for rows in pair]) for pair in parts]))
    distance_LL = scipy.spatial.distance.cdist(*sums, "sqeuclidean")
    pairs = reordered_pairs(distance_LL) or monotone_pairs(distance_LL)
    return [BlockPair(base.heads[row].block, suspect.heads[column].block) for row, column in pairs]


def nearest_blocks(base: Component, suspect: Component, pairs: Sequence[BlockPair]) -> list[tuple[str, int, int]]:
    """Name the nearest block of the other model for each block that has no place in the pairs.

    Returns:
        Whose block it is ("base" or "suspect"), its number, and that of the other model's; empty without MLPs.
    """
    blocks = by_block(base), by_block(suspect)
    paired = {pair.base for pair in pairs}, {pair.suspect for pair in pairs}
    if not all(blocks) or not any(
        by_number.keys() - numbers for by_number, numbers in zip(blocks, paired, strict=True)
    ):
        return []
    distance_LL = _distances(*(list(by_number.values()) for by_number in blocks), tokens_only=False)
    sides = ("base", *blocks, paired[0], distance_LL), ("suspect", *blocks[::-1], paired[1], distance_LL.T)
    return [
        (side, number, list(partners)[row.argmin()])
        for side, by_number, partners, numbers, distances in sides
        for number, row in zip(by_number, distances, strict=True)
        if number not in numbers
    ]


def nearest_mlps(mlps: Sequence[Neurons], most: int) -> list[tuple[Neurons, Neurons]]:
    """Pair MLPs of one model with the ones among the others whose Grams are nearest, where they may be copies.

    Args:
        mlps: of the blocks, or the experts of one block.
        most: so many of them are paired at most, evenly spaced.
    """
    if len(mlps) < 2:
        return []
    places = range(0, len(mlps), math.ceil(len(mlps) / most))
    distance_CM = _distances([[mlps[place]] for place in places], [[mlp] for mlp in mlps], tokens_only=False)
    distance_CM[np.arange(len(places)), places] = np.inf
    return [(mlps[place], mlps[near]) for place, near in zip(places, distance_CM.argmin(axis=1), strict=True)]


def by_block(component: Component) -> dict[int, list[Neurons]]:
    """Group the MLPs and experts of a component by block."""
    blocks: dict[int, list[Neurons]] = {}
    for neurons in component.neurons:
        blocks.setdefault(neurons.block, []).append(neurons)
    return dict(sorted(blocks.items()))


def pair_neurons(base: Component, suspect: Component, pairs: Sequence[BlockPair]) -> list[NeuronPair]:
    """Pair MLPs of paired blocks: experts by assignment, a dense MLP with every expert it faces.

    Neurons are exchangeable within an expert: each pair of experts is permuted on its own. Experts that face one
    dense MLP share a permutation. One wide MLP of all experts would not do: experts that specialize alike would
    count.
    """
    base_blocks, suspect_blocks = by_block(base), by_block(suspect)
    paired: list[NeuronPair] = []
    for pair in pairs:
        # Shared experts face shared ones, routed ones routed ones.
        for is_shared in (True, False):
            first = [neurons for neurons in base_blocks.get(pair.base, []) if neurons.is_shared == is_shared]
            second = [neurons for neurons in suspect_blocks.get(pair.suspect, []) if neurons.is_shared == is_shared]
            if not first or not second:
                continue
            # A dense MLP faces every expert of the other model; experts are assigned one to one.
            if len(first) == 1 or len(second) == 1:
                paired.append(NeuronPair(pair.base, tuple(itertools.product(first, second))))
                continue
            distance_EE = _distances([[mlp] for mlp in first], [[mlp] for mlp in second], tokens_only=False)
            rows, columns = scipy.optimize.linear_sum_assignment(distance_EE)
            paired += [
                NeuronPair(pair.base, ((first[row], second[column]),))
                for row, column in zip(rows, columns, strict=True)
            ]
    return paired
