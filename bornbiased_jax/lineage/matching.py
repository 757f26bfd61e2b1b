"""Neurons whose order is not known: matched twice, on different matrices of the MLP.

Two independent matchings, on gate and on up and down, agree on many neurons where one model was made from the other
and its neurons were permuted, and on few where the models are unrelated. Between trained models that has no p: the
fraction is held against the largest that unrelated models gave. Against an untrained model it has: its rows of up and
down are as likely in any pairing with its rows of gate, so that permuting the scores of neurons matched on gate is
exact.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from bornbiased_jax.checkpoints.roles import Shape
from bornbiased_jax.lineage.evidence import EvidenceError, Space, Term, neuron_scores
from bornbiased_jax.lineage.fingerprints import Neurons
from bornbiased_jax.lineage.pairing import NeuronPair

AGREEMENT = 0.2
"""Two independent matchings that agree on more of the neurons than this mean a shared initialization."""
# Fewer neurons than this agree by chance too often for a fraction of them to say anything.
_MIN_NEURONS = 32


@dataclasses.dataclass(frozen=True, eq=False)
class Matching:
    """Neurons of paired MLPs matched twice.

    Attributes:
        agreement: fraction of the neurons that both matchings give the same partner.
        by_block: the same for each block of the base.
        terms: scores, by up and down, of neurons that the first matching paired.
        num_neurons: matched in all.
    """

    agreement: float
    by_block: dict[int, float]
    terms: tuple[Term, ...]
    num_neurons: int


def match_neurons(pairs: Sequence[NeuronPair], space: Space, shape: Shape) -> Matching:
    """Match all neurons of every pair of MLPs on gate and, independently, on up and down.

    Args:
        pairs: MLPs or experts, each with a single counterpart.
        space: which sketches.
        shape: of the base's component.

    Raises:
        EvidenceError: not all neurons are stored, or no MLPs correspond.
    """
    if not pairs:
        raise EvidenceError("a model has no MLP, and so no neurons")
    counts: dict[int, list[tuple[int, int]]] = {}
    terms: list[Term] = []
    for pair in pairs:
        if len(pair.pairs) > 1:
            raise EvidenceError("experts face one dense MLP: their neurons are compared in order alone")
        base, suspect = pair.pairs[0]
        for neurons in (base, suspect):
            if not neurons.is_complete:
                raise EvidenceError(
                    f"{neurons.stored:,} of {neurons.total:,} neurons stored: name the checkpoints, or make "
                    "fingerprints with --neurons all"
                )
        agreeing, matched, term = _match(base, suspect, space, shape, pair.block)
        counts.setdefault(pair.block, []).append((agreeing, matched))
        terms.append(term)
    total = sum(matched for block in counts.values() for _, matched in block)
    if total < _MIN_NEURONS:
        raise EvidenceError(f"{total} neurons are too few to match")
    agreeing = sum(count for block in counts.values() for count, _ in block)
    by_block = {
        block: sum(count for count, _ in rows) / sum(matched for _, matched in rows) for block, rows in counts.items()
    }
    return Matching(agreeing / total, by_block, tuple(terms), total)


def _match(base: Neurons, suspect: Neurons, space: Space, shape: Shape, block: int) -> tuple[int, int, Term]:
    """Match one pair of MLPs; neurons without numbers in a model take no part."""
    scores = neuron_scores(base, suspect, space, shape)
    live = np.ix_(np.flatnonzero(scores.is_live_base), np.flatnonzero(scores.is_live_suspect))
    first_nn, second_nn = scores.first[live], scores.second[live]
    if min(first_nn.shape) < 2:
        raise EvidenceError("fewer than two neurons have numbers")
    if not first_nn.any() or not second_nn.any():
        raise EvidenceError("a part of the MLPs has no numbers that a seed decided: nothing to match on twice")
    base_K, suspect_K = linear_sum_assignment(first_nn, maximize=True)
    again_base_K, again_suspect_K = linear_sum_assignment(second_nn, maximize=True)
    partner_n = np.full(len(first_nn), -1)
    partner_n[again_base_K] = again_suspect_K
    agreeing = int((partner_n[base_K] == suspect_K).sum())
    return agreeing, len(base_K), Term(second_nn[np.ix_(base_K, suspect_K)], block)
