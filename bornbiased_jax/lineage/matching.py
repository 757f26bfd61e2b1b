"""Match neurons of unknown order twice, on different matrices of the MLP.

Two independent matchings, on gate and on up and down, agree on many neurons where one model was made from the other
and its neurons were permuted, and on few where the models are unrelated. Between trained models that has no p: the
fraction is held against the largest that unrelated models gave. Against an untrained model it has: its rows of up and
down are as likely in any pairing with its rows of gate, so that permuting the scores of neurons matched on gate is
exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import scipy

from bornbiased_jax.checkpoints.roles import Shape
from bornbiased_jax.lineage.evidence import EvidenceError
from bornbiased_jax.lineage.fingerprints import Neurons
from bornbiased_jax.lineage.pairing import NeuronPair, Space, neuron_units
from bornbiased_jax.lineage.scores import NeuronScores, neuron_scores
from bornbiased_jax.lineage.sketches import equal_rows
from bornbiased_jax.stats.terms import Term

AGREEMENT = 0.5
"""Agreement of two matchings that means a shared initialization in MLPs narrower than all in the calibration."""
UNRELATED_AGREEMENT = {64: 0.11, 128: 0.051, 256: 0.026}
"""The largest agreement of two matchings of models trained apart, by neurons of a block.

Of ``reproduce power`` as it was committed from two processors: 0.109, 0.051 and 0.025 (AMD EPYC), and 0.094, 0.051 and
0.021 (Intel Xeon).
"""
_MARGIN = 4
# Fewer neurons than this agree by chance too often for a fraction of them to say anything.
_MIN_NEURONS = 32
# Two matchings of any MLP agree on one neuron by chance, which of few neurons is a large fraction.
_NARROWEST = 16
# Correlation of the scores of neurons that neither matching pairs, beyond which one matching repeats the other: the
# matrices of a neuron resemble each other in both models, as where down began as up. Up to it chance agreement stays
# below what means a shared initialization; scores of small trained models correlate as well, if less.
_ALIKE = 0.5


@dataclasses.dataclass(frozen=True, eq=False)
class Matching:
    """Neurons of paired MLPs matched twice.

    Attributes:
        agreement: fraction of the neurons that both matchings give the same partner.
        by_block: the same for each block of the base.
        terms: scores, by up and down, of neurons that the first matching paired.
    """

    agreement: float
    by_block: dict[int, float]
    terms: tuple[Term, ...]

    @property
    def largest_unrelated(self) -> float | None:
        """The largest agreement of unrelated models, of the widest MLPs in the calibration that are not wider."""
        neurons = min(len(term.scores_nn) for term in self.terms)
        return next((UNRELATED_AGREEMENT[size] for size in sorted(UNRELATED_AGREEMENT)[::-1] if size <= neurons), None)

    @property
    def largest_unrelated_text(self) -> str:
        """The largest agreement of unrelated models, as a sentence."""
        if self.largest_unrelated is None:
            return "unrelated models with so few neurons were not measured"
        return f"unrelated models were seen to agree on {self.largest_unrelated:.1%} at most"

    @property
    def threshold(self) -> float:
        """The agreement beyond which two models share an initialization, with a margin over unrelated ones."""
        return AGREEMENT if self.largest_unrelated is None else _MARGIN * self.largest_unrelated


def match_neurons(pairs: Sequence[NeuronPair], space: Space, shape: Shape) -> Matching:
    """Match all neurons of every pair of MLPs, each with one counterpart, on gate and, independently, on up and down.

    MLPs that are narrow or of zeros take no part.

    Raises:
        EvidenceError: not all neurons are stored, or no MLPs correspond.
    """
    if not pairs:
        raise EvidenceError("a model has no MLP, and so no neurons")
    agreeing, matched = Counter[int](), Counter[int]()
    terms: list[Term] = []
    reasons: list[str] = []
    # Match each pair of MLPs twice, where all neurons are there.
    for pair in pairs:
        if len(pair.pairs) > 1:
            raise EvidenceError("experts face one dense MLP: their neurons are compared in order alone")
        base, suspect = pair.pairs[0]
        for mlp in (base, suspect):
            if not mlp.is_complete:
                raise EvidenceError(
                    f"{mlp.stored:,} of {mlp.total:,} neurons stored: compare the checkpoints with --neurons all, or "
                    "fingerprints made with it"
                )
        try:
            scores = neuron_scores(neuron_units(base, space), neuron_units(suspect, space), shape)
            num_agreeing, scores_KK = _match(scores, _are_first(base, space), _are_first(suspect, space))
        except EvidenceError as error:
            reasons.append(str(error))
            continue
        agreeing[pair.block] += num_agreeing
        matched[pair.block] += len(scores_KK)
        terms.append(Term(scores_KK, pair.block))
    if not terms:
        raise EvidenceError(reasons[0])
    if matched.total() < _MIN_NEURONS:
        raise EvidenceError(f"{matched.total()} neurons are too few to match")
    # Agreement by block, and over all neurons.
    by_block = {block: agreeing[block] / count for block, count in matched.items()}
    return Matching(agreeing.total() / matched.total(), by_block, tuple(terms))


def _are_first(mlp: Neurons, space: Space) -> np.ndarray:
    """Return which neurons equal no earlier one of their MLP, bool [n]: which of equal ones is paired, nothing says."""
    sketch = mlp.token if space == "token" else mlp.coordinates
    are_first_n: np.ndarray = ~equal_rows(np.concatenate([sketch[name] for name in sorted(sketch)], axis=1))
    return are_first_n


def _match(scores: NeuronScores, are_first_base: np.ndarray, are_first_suspect: np.ndarray) -> tuple[int, np.ndarray]:
    """Match one pair of MLPs twice; neurons without numbers in a model, and copies of earlier ones, take no part.

    Returns:
        How many neurons have one partner in both matchings; the second scores of those that the first paired, [K, K].
    """
    live = np.ix_(
        np.flatnonzero(scores.is_live_base & are_first_base), np.flatnonzero(scores.is_live_suspect & are_first_suspect)
    )
    # Neurons with numbers in both models, each of them once.
    first_nn, second_nn = scores.first[live], scores.second[live]
    if min(first_nn.shape) < _NARROWEST:
        raise EvidenceError(f"{min(first_nn.shape)} neurons of an MLP are too few to match")
    if not first_nn.any() or not second_nn.any():
        raise EvidenceError("a part of the MLPs has no numbers that a seed decided: nothing to match on twice")
    base_K, suspect_K = scipy.optimize.linear_sum_assignment(first_nn, maximize=True)
    # The second matching, as the partner of each base neuron.
    partner_n = np.full(len(first_nn), -1)
    rows_K, columns_K = scipy.optimize.linear_sum_assignment(second_nn, maximize=True)
    partner_n[rows_K] = columns_K
    num_agreeing, scores_KK = int((partner_n[base_K] == suspect_K).sum()), second_nn[np.ix_(base_K, suspect_K)]
    # Two matchings tell something only where they are independent between unrelated neurons.
    for scores_nn in (first_nn, second_nn):
        scores_nn[base_K, suspect_K] = scores_nn[rows_K, columns_K] = scores_nn.mean()
        scores_nn -= scores_nn.mean()
    squares = float(np.vdot(first_nn, first_nn)) * float(np.vdot(second_nn, second_nn))
    if float(np.vdot(first_nn, second_nn)) > _ALIKE * math.sqrt(squares):
        raise EvidenceError("the matrices of a neuron resemble each other in both models: nothing to match on twice")
    return num_agreeing, scores_KK
