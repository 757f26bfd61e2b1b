"""One piece of evidence: scores of the labels of two models, and how far they lie above all permutations of labels.

Every piece of evidence is a sum of score matrices, label i of the base against label j of the suspect, whose trace is
tested under permutations: counted over random ones, and below their reach by a certified bound.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from bornbiased_jax.stats.terms import Term

SIGN_SCREEN = 4.0
"""From this z on labels are asked for signs: below it no verdict depends on them, and p keeps its level."""
# Where labels agree, signs of their own scores show it from this z on: of related models it is over half of z.
_SIGNED = 4.0


@dataclasses.dataclass(frozen=True)
class EvidenceKind:
    """A piece of evidence: which labels it permutes, and what its statistic does not see.

    Attributes:
        labels: the axis whose labels are permuted; "units" are neurons.
        permuted: the same for a reader.
        invariant_to: changes of a model that leave the statistic as it is.
        evaded_by: what hides a shared initialization from it.
    """

    labels: Literal["coordinates", "units", "heads"]
    permuted: str
    invariant_to: tuple[str, ...]
    evaded_by: str


COORDINATES, SIGNLESS = "coordinates", "coordinates up to sign"
RAW_NEURONS, TOKEN_NEURONS, TOKEN_HEADS = "neurons in coordinates", "neurons in token space", "heads in token space"
MATCHED, OUTPUTS = "matched neurons", "outputs"
_BLOCK_CHANGES = ("inserted, dropped and repeated blocks", "the order of heads")
_ROTATIONS = ("rotations, permutations and signs of the residual stream", "scales moved between norms and matrices")
_VOCABULARY = "a vocabulary that was cut, extended or, with its tokenizer, reordered"
KINDS: Mapping[str, EvidenceKind] = {
    COORDINATES: EvidenceKind(
        "coordinates",
        "the residual coordinates",
        ("the order and scales of neurons", *_BLOCK_CHANGES),
        "rotating, permuting or negating the residual coordinates",
    ),
    SIGNLESS: EvidenceKind(
        "coordinates",
        "the residual coordinates",
        ("signs of the residual coordinates", "the order and scales of neurons", *_BLOCK_CHANGES),
        "rotating or permuting the residual coordinates",
    ),
    RAW_NEURONS: EvidenceKind(
        "units",
        "the neurons of each MLP",
        ("new embeddings and vocabularies", "scales and signs of neurons", *_BLOCK_CHANGES),
        "rotating or permuting the residual coordinates, or permuting neurons",
    ),
    TOKEN_NEURONS: EvidenceKind(
        "units",
        "the neurons of each MLP",
        (*_ROTATIONS, "scales and signs of neurons", *_BLOCK_CHANGES, _VOCABULARY),
        "permuting the neurons of each MLP, or replacing the embeddings",
    ),
    TOKEN_HEADS: EvidenceKind(
        "heads",
        "key/value groups and the query heads inside each",
        (*_ROTATIONS, "bases inside each head", "the order and scales of neurons", _VOCABULARY),
        "permuting the heads of each block, or replacing the embeddings",
    ),
    MATCHED: EvidenceKind(
        "units",
        "rows of up and down of the untrained model against its rows of gate",
        (*_ROTATIONS, "the order, scales and signs of neurons", *_BLOCK_CHANGES),
        "splitting, merging or retraining neurons",
    ),
    # The permutation test of outputs, where it joins the family.
    OUTPUTS: EvidenceKind(
        "coordinates",
        "the residual coordinates",
        ("what the outputs do not show",),
        "rotating, permuting or negating the residual coordinates",
    ),
}


class EvidenceError(Exception):
    """A label set gives no evidence for a pair of models; the text says why."""


def check_signs(z: float, terms: Sequence[Term], scores: str = "they", most: float = _SIGNED) -> None:
    """Refuse labels whose scores with themselves are large, and as often negative as positive.

    Zeros at the same places of two models, a mask that both were trained under, make scores of labels of one number
    larger, and leave their signs to chance. Under any mask the sum over its root of squares is about standard normal,
    and so is the sum of signs over its own, in which a few large scores do not outweigh the others.

    Args:
        z: of the evidence.
        terms: its own, or others whose scores have the signs.
        scores: what a reader is told of.
        most: that is asked of any number of labels. A model has many cells, each of which could agree by chance.

    Raises:
        EvidenceError: the signs do not agree.
    """
    if not z >= SIGN_SCREEN:
        return
    own_n = np.concatenate([term.own_n for term in terms])
    if not own_n.any():
        return
    # Of n labels that all agree either is the root of n.
    agreement = max(float(each_n.sum()) / math.sqrt(float(each_n @ each_n)) for each_n in (own_n, np.sign(own_n)))
    if agreement < min(z / 2, most, math.sqrt(len(own_n)) / 2):
        raise EvidenceError(f"{scores} agree in size and not in sign: a common pattern of zeros would do that")
