"""Sums of traces of score matrices under permutations of their labels: z, a certified bound, and the p of a verdict.

A term is one matrix, label i of one model against label j of another, whose labels are permuted on their own. The
traces of several are added: each is counted under random permutations of its own, and below their reach bounded.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import numpy as np

from bornbiased_jax.hardware import cores
from bornbiased_jax.memoized import memoized
from bornbiased_jax.stats.bound import Rows, joint_bound, sorted_rows
from bornbiased_jax.stats.certified import Certified, certify_sums, constant_sum
from bornbiased_jax.stats.nested import log_order, nested_bound, nested_moments, nested_sums
from bornbiased_jax.stats.permutations import drawn_sums, moments

SCREEN = 3.0
"""Below this z a sum counts as p = 1 without a bound: valid, and enough for most labels that do not correspond."""
# Narrower terms never share permutations: fewer labels have too few orders for a p.
_SHARED = 24
# Order statistics that the bound keeps of each row where several wide matrices are held at once.
_TOP = 64


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """Scores of one set of labels that is permuted on its own.

    Attributes:
        scores_nn: label i of the base with label j of the suspect.
        block: whose labels these are, counted from 1; None for labels that no block has of its own.
        num_groups: several groups of several labels that are permuted with these inside them; None for plain
            permutations.
        signed_n: a score of each label with itself whose sign is that of the agreement, less the mean of all pairs;
            None where ``scores_nn`` is such a score.
    """

    scores_nn: np.ndarray
    block: int | None = None
    num_groups: int | None = None
    signed_n: np.ndarray | None = None

    @property
    def own_n(self) -> np.ndarray:
        """The score of each label with itself, with its sign, less its mean over permutations."""
        if self.signed_n is not None:
            return self.signed_n
        own_n: np.ndarray = np.diagonal(self.scores_nn) - self.facts.mean / len(self.scores_nn)
        return own_n

    @property
    @memoized
    def facts(self) -> TraceFacts:
        """The trace, its moments over all permutations, and what they are large against."""
        if self.num_groups is not None:
            mean, variance = nested_moments(self.scores_nn, self.num_groups)
        else:
            mean, variance = map(float, moments(self.scores_nn))
        squares = float(np.vdot(self.scores_nn, self.scores_nn))
        return TraceFacts(
            float(np.trace(self.scores_nn, dtype=np.float64)), mean, variance, squares / len(self.scores_nn)
        )

    @memoized
    def rows(self, *, is_quick: bool) -> Rows:
        """Sort rows for the certified bound; quick ones, as they are, give a larger one in a quarter of the time."""
        top = _TOP if len(self.scores_nn) > 4 * _TOP else None
        return sorted_rows(self.scores_nn, top=top, scale=not is_quick, columns=not is_quick)

    @property
    def log_order(self) -> float:
        """Natural logarithm of the number of permutations."""
        size = len(self.scores_nn)
        if self.num_groups is not None:
            return log_order(self.num_groups, size // self.num_groups)
        return math.lgamma(size + 1)

    def permuted_traces(self, num_permutations: int, seed: int, stream: int) -> np.ndarray:
        """Compute the trace under random permutations, from a stream of their own: [P] float64."""
        if self.num_groups is not None:
            return nested_sums(self.scores_nn, self.num_groups, num_permutations, seed=seed, group=stream)
        return drawn_sums(self.scores_nn, num_permutations, seed=seed, group=stream)


class TraceFacts(NamedTuple):
    """The score of every label with itself, summed: its mean and variance over permutations, sum of squares over n."""

    trace: float
    mean: float
    variance: float
    mean_square: float

    @property
    def z(self) -> float:
        """Standard deviations by which the trace lies above its mean; NaN where nothing varies."""
        # Rounding leaves a little variance where every score is the same.
        is_varying = self.variance > 1e-12 * self.mean_square
        return (self.trace - self.mean) / math.sqrt(self.variance) if is_varying else math.nan


def total(facts: Iterable[TraceFacts]) -> TraceFacts:
    """Sum the facts of terms that are permuted each on its own, and that need not be there together."""
    return TraceFacts(*map(math.fsum, list(zip(*facts, strict=True)) or [()] * len(TraceFacts._fields)))


def z_of(terms: Sequence[Term]) -> float:
    """Compute how many standard deviations the summed traces lie above their mean; NaN where nothing varies."""
    return total(term.facts for term in terms).z


def bound_of(terms: Sequence[Term], *, is_quick: bool = False) -> float:
    """Bound log₁₀ p of the summed traces; 0 below z = :data:`SCREEN`.

    Terms are all plain, or all nested in one number of groups; ``is_quick`` takes the rows of plain ones as they are.
    """
    # NaN too is below the screen.
    if not z_of(terms) >= SCREEN:
        return 0.0
    # One bound holds for one kind of permutation.
    (num_groups,) = {term.num_groups for term in terms}
    if num_groups is None:
        # Rows of wide terms take seconds to sort, which threads share.
        with ThreadPoolExecutor(cores()) as pool:
            rows = list(pool.map(partial(Term.rows, is_quick=is_quick), terms))
            return joint_bound(rows)
    return nested_bound([term.scores_nn for term in terms], num_groups)


def certified_sum(terms: Sequence[Term], num_permutations: int, seed: int = 0) -> Certified:
    """Certify the p of the summed traces: counted over permutations, and below their reach by the bound.

    Wide plain terms of one size share the permutations that are counted, a subgroup under which the count is as
    exact; the bound takes every term on its own.
    """
    facts = total(term.facts for term in terms)
    # Without variation every permutation gives the same sum.
    if not math.isfinite(facts.z):
        return constant_sum(facts.trace, facts.mean, num_permutations)
    # Draw permutations for all terms together.
    sums_P = np.zeros(num_permutations)
    for stream, term in enumerate(join_terms(terms)):
        sums_P += term.permuted_traces(num_permutations, seed, stream)
    orders = math.fsum(term.log_order for term in terms)
    return certify_sums(facts.trace, facts.mean, math.sqrt(facts.variance), sums_P, bound_of(terms), log_order=orders)


def join_terms(terms: Sequence[Term], *, is_joint: bool = False) -> list[Term]:
    """Add up terms of one size, so that they share a permutation; narrow and nested ones only if all are joint.

    Where labels of different terms repeat each other in both models, one permutation for all is the only exact one.
    """
    # Group the terms that may share permutations.
    by_size: dict[tuple[int, int | None], list[Term]] = {}
    separate = []
    for term in terms:
        if not is_joint and (term.num_groups is not None or len(term.scores_nn) < _SHARED):
            separate.append(term)
        else:
            by_size.setdefault((len(term.scores_nn), term.num_groups), []).append(term)
    sums = []
    # Sums are float64: the terms' scores may be float32.
    for (_, num_groups), members in by_size.items():
        total_nn = members[0].scores_nn.astype(np.float64)
        for term in members[1:]:
            total_nn += term.scores_nn
        sums.append(Term(total_nn, num_groups=num_groups, signed_n=np.sum([term.own_n for term in members], axis=0)))
    return sums + separate
