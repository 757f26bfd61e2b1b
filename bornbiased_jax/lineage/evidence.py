"""Scores of labels of two models, from sketches, and how far they lie above all permutations of those labels.

Every piece of evidence is a sum of score matrices: label i of the base against label j of the suspect, whose trace is
tested under permutations. Labels without numbers of their own in either model (rows of zeros) leave both: under the
null the suspect's other labels stay exchangeable. Where both models repeat themselves at one period, the labels of
one period are permuted jointly, the same in every repeat.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from typing import Literal

import numpy as np

from bornbiased_jax.checkpoints.roles import Shape
from bornbiased_jax.lineage.fingerprints import Component, Heads, Neurons
from bornbiased_jax.lineage.pairing import NeuronPair, unit_rows
from bornbiased_jax.stats import tails
from bornbiased_jax.stats.bound import Rows, joint_bound, sorted_rows
from bornbiased_jax.stats.certified import Certified
from bornbiased_jax.stats.nested import log_order, nested_bound, nested_moments, nested_sums
from bornbiased_jax.stats.permutations import TIE, drawn_sums, histogram, moments

Space = Literal["token", "coordinates"]
Inner = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From vectors [n, k] of the base and [n', k] of the suspect to the inner products of some of their pairs."""

SCREEN = 3.0
"""Below this z a cell counts as p = 1 without a bound: valid, and most cells of unrelated models are done with it."""
# Labels that share the permutations counted with other terms are at least so many: fewer have too few orders for a p.
_SHARED = 24
# Random partners that a label has where its null is sampled.
_PARTNERS = 8
# Order statistics that the bound keeps of each row where several wide matrices are held at once.
_TOP = 64


class EvidenceError(Exception):
    """A label set gives no evidence for a pair of models; the text says why."""


@dataclasses.dataclass(frozen=True)
class Draws:
    """Permutations that are drawn: how many, and from which seed."""

    num_permutations: int
    seed: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class Term:
    """Scores of one set of labels that is permuted on its own.

    Attributes:
        scores_nn: label i of the base with label j of the suspect.
        block: of the base, counted from 1; None for labels that no block has of its own.
        num_groups: groups that are permuted with their members inside them; None for plain permutations.
    """

    scores_nn: np.ndarray
    block: int | None = None
    num_groups: int | None = None

    @property
    def is_nested(self) -> bool:
        """Whether both groups and members vary."""
        return self.num_groups is not None and 1 < self.num_groups < len(self.scores_nn)

    @cached_property
    def moments(self) -> tuple[float, float]:
        """Mean and variance of the trace over all permutations."""
        if self.is_nested:
            assert self.num_groups is not None
            return nested_moments(self.scores_nn, self.num_groups)
        mean, variance = moments(self.scores_nn)
        return float(mean), float(variance)

    @cached_property
    def rows(self) -> Rows:
        """Sorted rows for the certified bound."""
        return sorted_rows(self.scores_nn, top=_TOP if len(self.scores_nn) > 4 * _TOP else None)

    @property
    def log_order(self) -> float:
        """Natural logarithm of the number of permutations."""
        size = len(self.scores_nn)
        if self.is_nested:
            assert self.num_groups is not None
            return log_order(self.num_groups, size // self.num_groups)
        return math.lgamma(size + 1)


def z_of(terms: Sequence[Term]) -> float:
    """Compute how many standard deviations the summed traces lie above their mean; NaN where nothing varies."""
    statistic = math.fsum(float(np.trace(term.scores_nn, dtype=np.float64)) for term in terms)
    mean = math.fsum(term.moments[0] for term in terms)
    variance = math.fsum(term.moments[1] for term in terms)
    scale = math.fsum(float(np.vdot(term.scores_nn, term.scores_nn)) / len(term.scores_nn) for term in terms)
    return (statistic - mean) / math.sqrt(variance) if variance > 1e-12 * scale else math.nan


def every_pair(first_nK: np.ndarray, second_mK: np.ndarray) -> np.ndarray:
    """Multiply every vector of the base with every vector of the suspect: [n, m]."""
    products_nm: np.ndarray = first_nK @ second_mK.T
    return products_nm


@dataclasses.dataclass
class SampledZ:
    """z of summed traces without a score matrix, its moments estimated from a few random partners of each label.

    The screen needs no more: a p that is set to 1 below any threshold on anything is valid.
    """

    excess: float = 0.0
    variance: float = 0.0

    def add(self, scores_Sn: np.ndarray, is_live_n: np.ndarray, partners_Sn: np.ndarray) -> None:
        """Add one set of labels: scores of each with itself, then with its partners, as :func:`partners` has them."""
        is_live_Sn = is_live_n & is_live_n[partners_Sn]
        null, size = scores_Sn[1:][is_live_Sn[1:]].astype(np.float64), int(is_live_n.sum())
        if len(null):
            self.excess += float(scores_Sn[0][is_live_n].sum(dtype=np.float64)) - size * float(null.mean())
            self.variance += float(null.var()) * size * (1 + size / len(null))

    @property
    def z(self) -> float:
        """The z; NaN where nothing varies."""
        return self.excess / math.sqrt(self.variance) if self.variance > 0 else math.nan


@cache
def partners(size: int) -> np.ndarray:
    """Return each label itself, then random partners of it: [1 + partners, n]."""
    rng = np.random.default_rng(size)
    return np.stack([np.arange(size), *(rng.permutation(size) for _ in range(_PARTNERS))])


def sampled_neurons(pairs: Sequence[NeuronPair], space: Space, shape: Shape) -> SampledZ:
    """Estimate z of all neurons; see :func:`neuron_terms`, whose pairs without scores are left out here too."""
    sampled = SampledZ()
    for pair in pairs:
        partners_Sn = partners(min(neurons.stored for facing in pair.pairs for neurons in facing))
        inner = partial(_partner_products, partners_Sn=partners_Sn)
        with contextlib.suppress(EvidenceError):
            scores = [neuron_scores(*facing, space, shape, inner) for facing in pair.pairs]
            is_live = [
                labels[: partners_Sn.shape[1]]
                for each in scores
                for labels in (each.is_live_base, each.is_live_suspect)
            ]
            combined = np.sum([each.combined for each in scores], axis=0)
            sampled.add(combined, np.logical_and.reduce(is_live), partners_Sn)
    return sampled


def sampled_coordinates(base: Sequence[np.ndarray], suspect: Sequence[np.ndarray]) -> tuple[SampledZ, SampledZ]:
    """Estimate z of coordinates, and of coordinates up to sign; see :func:`coordinate_scores`."""
    first_DK, second_DK, is_live_D = _coordinate_rows(base, suspect)
    partners_SD = partners(len(first_DK))
    scores_SD = _partner_products(first_DK, second_DK, partners_SD)
    signed, signless = SampledZ(), SampledZ()
    signed.add(scores_SD, is_live_D, partners_SD)
    signless.add(np.square(scores_SD), is_live_D, partners_SD)
    return signed, signless


def _partner_products(first_nK: np.ndarray, second_nK: np.ndarray, partners_Sn: np.ndarray) -> np.ndarray:
    products_Sn: np.ndarray = np.einsum("nk,snk->sn", first_nK[: partners_Sn.shape[1]], second_nK[partners_Sn])
    return products_Sn


def bound_of(terms: Sequence[Term]) -> float:
    """Bound log₁₀ P(S(π) ≥ S) over permutations, independent for each term; 0 below the screen."""
    if not z_of(terms) >= SCREEN:
        return 0.0
    plain = [term for term in terms if not term.is_nested]
    nested = [term for term in terms if term.is_nested]
    if plain and nested:
        raise ValueError("give terms with one kind of permutation")
    if plain:
        return min(0.0, joint_bound([term.rows for term in plain]).log10_p)
    num_groups = {term.num_groups for term in nested}
    if len(num_groups) > 1:
        raise ValueError("give terms with one number of groups")
    return min(0.0, nested_bound([term.scores_nn for term in nested], num_groups.pop() or 1).log10_p)


def certified_sum(terms: Sequence[Term], draws: Draws) -> Certified:
    """Certify the p of the summed traces: counted over permutations, and below their reach by the bound.

    Wide plain terms of one size share the permutations that are counted, a subgroup under which the count is as
    exact; the bound takes every term on its own.

    Args:
        terms: at least one.
        draws: of the permutations.
    """
    statistic = math.fsum(float(np.trace(term.scores_nn, dtype=np.float64)) for term in terms)
    mean = math.fsum(term.moments[0] for term in terms)
    std = math.sqrt(math.fsum(term.moments[1] for term in terms))
    z = z_of(terms)
    if not math.isfinite(z):
        nan = math.nan
        return Certified(
            *(nan, nan, nan, nan, nan, statistic, mean, 0.0, draws.num_permutations, 0, False, 0.0, "rows")
        )
    # Count the permutations that reach the observed sum.
    sums_P = np.zeros(draws.num_permutations)
    for group, term in enumerate(joined(terms)):
        if term.is_nested:
            assert term.num_groups is not None
            stream = {"seed": draws.seed, "group": group}
            sums_P += nested_sums(term.scores_nn, term.num_groups, draws.num_permutations, **stream)
        else:
            sums_P += drawn_sums(term.scores_nn, draws.num_permutations, seed=draws.seed, group=group)
    exceedances = int((sums_P >= statistic - TIE * std).sum())
    p_value = (1 + exceedances) / (1 + draws.num_permutations)
    log10_p, bound = math.log10(p_value), bound_of(terms)
    if exceedances == 0 and bound < log10_p:
        p_value, log10_p = 10.0**bound, bound
    # The identity is one of all permutations: no p lies below that, where the normal tail goes on.
    floor = -math.fsum(term.log_order for term in terms)
    return Certified(
        p_value=p_value,
        log10_p=log10_p,
        log10_p_bound=bound,
        log10_p_moments=min(0.0, max(floor, tails.log_normal_sf(z)) / tails.LN10),
        z=z,
        statistic=statistic,
        mean=mean,
        std=std,
        num_permutations=draws.num_permutations,
        exceedances=exceedances,
        enumerated=False,
        tilt=0.0,
        orientation="rows",
        histogram=histogram(sums_P, mean, std),
    )


def joined(terms: Sequence[Term], *, is_joint: bool = False) -> list[Term]:
    """Add up terms of one size, so that they share a permutation; narrow and nested ones only where asked for.

    Where labels of different terms repeat each other in both models, one permutation for all is the only exact one.
    """
    by_size: dict[tuple[int, int | None], list[Term]] = {}
    alone = []
    for term in terms:
        if not is_joint and (term.is_nested or len(term.scores_nn) < _SHARED):
            alone.append(term)
        else:
            groups = term.num_groups if term.is_nested else None
            by_size.setdefault((len(term.scores_nn), groups), []).append(term)
    sums = []
    for (_, groups), members in by_size.items():
        total_nn = members[0].scores_nn.astype(np.float64)
        for term in members[1:]:
            total_nn += term.scores_nn
        sums.append(Term(total_nn, num_groups=groups))
    return sums + alone


# ---------------------------------------------------------------------------------------------------------------------
# Labels


def live_rows(parts: Mapping[str, np.ndarray]) -> tuple[list[str], np.ndarray]:
    """Return the parts that are not zero altogether, and which labels have numbers in all of them: bool [n]."""
    names = [name for name, rows in parts.items() if rows.any()]
    if not names:
        return [], np.zeros(len(next(iter(parts.values()), np.zeros(0))), bool)
    return names, np.logical_and.reduce([parts[name].any(axis=-1) for name in names])


def permuted_labels(scores_nn: np.ndarray, is_live_n: np.ndarray, period: int | None) -> np.ndarray:
    """Reduce scores to the labels that may be permuted.

    Args:
        scores_nn: scores of all stored labels.
        is_live_n: labels that have numbers in both models.
        period: labels of one repeat where both models repeat themselves, summed over repeats; None where they do not.

    Raises:
        Undefined: fewer than two labels are left.
    """
    if period is not None and len(scores_nn) >= period:
        repeats = len(scores_nn) // period
        whole = repeats * period
        blocks = scores_nn[:whole, :whole].reshape(repeats, period, repeats, period)
        scores_nn = np.einsum("ripj->rpij", blocks)[np.arange(repeats), np.arange(repeats)].sum(axis=0)
        is_live_n = np.all(is_live_n[:whole].reshape(repeats, period), axis=0)
    labels_n = np.flatnonzero(is_live_n)
    if len(labels_n) < 2:
        raise EvidenceError("fewer than two labels have numbers in both models")
    if len(labels_n) == len(scores_nn):
        return scores_nn
    return scores_nn[np.ix_(labels_n, labels_n)]


# ---------------------------------------------------------------------------------------------------------------------
# Neurons


@dataclasses.dataclass(frozen=True, eq=False)
class NeuronScores:
    """Scores of neurons of one MLP with those of another: [n, n'] float32 each.

    Attributes:
        first: ⟨gate⟩, or ⟨up⟩ where there is no gate: what neurons are matched on.
        second: |⟨up⟩ + ⟨down⟩|, or ⟨down⟩ where there is no gate: what a matching is compared with.
        combined: the score of the permutation test.
        is_live_base, is_live_suspect: neurons with numbers in every part used, bool [n] and [n'].
    """

    first: np.ndarray
    second: np.ndarray
    combined: np.ndarray
    is_live_base: np.ndarray
    is_live_suspect: np.ndarray


def neuron_scores(
    base: Neurons, suspect: Neurons, space: Space, shape: Shape, inner: Inner | None = None
) -> NeuronScores:
    """Score neurons of two MLPs: ⟨gate⟩ + |⟨up⟩ + ⟨down⟩|, and ⟨up⟩ + ⟨down⟩ without a gate.

    A gated neuron may change the sign of up and down together, one with an odd activation too: its absolute value
    counts.

    Args:
        base, suspect: the MLPs.
        space: which sketches.
        shape: of the base's component.
        inner: inner products of some pairs of neurons; of all pairs by default.

    Raises:
        Undefined: no sketch in this space, or a part that only one model has.
    """
    parts = [neurons.token if space == "token" else neurons.coordinates for neurons in (base, suspect)]
    if not parts[0] or not parts[1]:
        raise EvidenceError("a model has no vocabulary, and so no token space")
    if set(parts[0]) != set(parts[1]):
        raise EvidenceError("one model's MLP has a gate, the other's has none: their neurons do not correspond")
    (base_names, is_live_base), (suspect_names, is_live_suspect) = live_rows(parts[0]), live_rows(parts[1])
    names = [name for name in base_names if name in suspect_names]
    if not names:
        raise EvidenceError("no part of the MLPs has numbers that a seed decided in both models")
    inner = inner or every_pair
    cosine = {name: inner(unit_rows(parts[0][name]), unit_rows(parts[1][name])) for name in names}
    zero = np.zeros_like(cosine[names[0]])
    gate, up, down = (cosine.get(name, zero) for name in ("gate", "up", "down"))
    if "gate" in parts[0]:
        second = np.abs(up + down)
        return NeuronScores(gate, second, gate + second, is_live_base, is_live_suspect)
    size: Callable[[np.ndarray], np.ndarray] = np.abs if shape.has_odd_activation else np.asarray
    return NeuronScores(size(up), size(down), size(up + down), is_live_base, is_live_suspect)


def neuron_terms(
    pairs: Sequence[NeuronPair], space: Space, shape: Shape, periods: Mapping[int, int] | None = None
) -> list[Term]:
    """Return a term for each MLP or expert: neurons with equal numbers in the two models on the diagonal.

    Args:
        pairs: MLPs whose scores are added under one permutation.
        space: which sketches.
        shape: of the base's component.
        periods: number of neurons in one repeat, by neurons of the MLP; empty where no pair repeats itself.

    Raises:
        Undefined: no pair has scores.
    """
    terms, reasons = [], []
    for pair in pairs:
        try:
            total_nn, is_live_n, size = None, None, 0
            for base, suspect in pair.pairs:
                scores = neuron_scores(base, suspect, space, shape)
                # MLPs of two sizes: the first neurons, which are exchangeable in either model.
                count = min(base.stored, suspect.stored) if total_nn is None else min(base.stored, suspect.stored, size)
                live_n = scores.is_live_base[:count] & scores.is_live_suspect[:count]
                before_nn = 0.0 if total_nn is None else total_nn[:count, :count]
                is_live_n = live_n if is_live_n is None else is_live_n[:count] & live_n
                total_nn, size = before_nn + scores.combined[:count, :count], count
            assert total_nn is not None and is_live_n is not None
            period = (periods or {}).get(min(pair.pairs[0][0].total, pair.pairs[0][1].total))
            terms.append(Term(permuted_labels(total_nn, is_live_n, period), pair.block))
        except EvidenceError as error:
            reasons.append(str(error))
    if not terms:
        raise EvidenceError(reasons[0] if reasons else "a model has no MLP, and so no neurons")
    return terms


# ---------------------------------------------------------------------------------------------------------------------
# Heads


def head_terms(pairs: Sequence[tuple[Heads, Heads]]) -> list[Term]:
    """Return a term for each pair of blocks: key/value groups are permuted, and query heads inside each.

    Raises:
        Undefined: no pair of blocks with as many heads and groups.
    """
    terms, reasons = [], []
    for base, suspect in pairs:
        if (len(base.query_key), base.num_groups) != (len(suspect.query_key), suspect.num_groups):
            reasons.append("the numbers of heads or of key/value groups differ")
            continue
        parts = [{"query_key": heads.query_key, "value_output": heads.value_output} for heads in (base, suspect)]
        (base_names, base_live_H), (suspect_names, suspect_live_H) = live_rows(parts[0]), live_rows(parts[1])
        names = [name for name in base_names if name in suspect_names]
        is_live_Gr = (base_live_H & suspect_live_H).reshape(base.num_groups, -1)
        if not names:
            reasons.append("the heads have no numbers that a seed decided")
            continue
        scores_HH = np.sum([unit_rows(parts[0][name]) @ unit_rows(parts[1][name]).T for name in names], axis=0)
        nested = 1 < base.num_groups < len(scores_HH)
        # A group with a pruned head leaves as a whole: groups that are permuted have one size.
        if nested:
            is_live_Gr = np.repeat(is_live_Gr.all(axis=1)[:, None], is_live_Gr.shape[1], axis=1)
        labels = np.flatnonzero(is_live_Gr.ravel())
        if len(labels) < 2:
            reasons.append("fewer than two heads have numbers in both models")
            continue
        groups = int(is_live_Gr.all(axis=1).sum()) if nested else None
        terms.append(Term(scores_HH[np.ix_(labels, labels)], base.block, groups))
    if not terms:
        raise EvidenceError(reasons[0] if reasons else "a model has no attention, and so no heads")
    kinds = {(term.is_nested, term.num_groups if term.is_nested else None) for term in terms}
    if len(kinds) > 1:
        raise EvidenceError("pruned heads leave blocks with different numbers of groups")
    return terms


# ---------------------------------------------------------------------------------------------------------------------
# Coordinates


def coordinate_scores(base: Sequence[np.ndarray], suspect: Sequence[np.ndarray], period: int | None) -> np.ndarray:
    """Score residual coordinates, summed over parts: [n, n] float32 over the coordinates that may be permuted.

    Args:
        base, suspect: sketches [D, k] of the same parts in the same order.
        period: see :func:`permuted_labels`.

    Raises:
        Undefined: the widths differ, or nothing is left.
    """
    first_DK, second_DK, is_live_D = _coordinate_rows(base, suspect)
    return permuted_labels(first_DK @ second_DK.T, is_live_D, period)


def _coordinate_rows(
    base: Sequence[np.ndarray], suspect: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return unit vectors of all parts in a row, [D, K] of either model, and which coordinates are labels."""
    present = [(first, second) for first, second in zip(base, suspect, strict=True) if first.any() and second.any()]
    if not present:
        raise EvidenceError("no matrix on the residual stream has numbers that a seed decided in both models")
    width = len(present[0][0])
    if any(len(rows) != width for pair in present for rows in pair):
        widths = f"{width} and {len(present[0][1])}"
        raise EvidenceError(f"the widths differ ({widths}): no coordinate of one model corresponds to one of the other")
    is_live_D = np.logical_and.reduce([rows.any(axis=1) for pair in present for rows in pair])
    first_DK = np.concatenate([unit_rows(first) for first, _ in present], axis=1)
    second_DK = np.concatenate([unit_rows(second) for _, second in present], axis=1)
    return first_DK, second_DK, is_live_D


def sketch_difference(base: Component, suspect: Component) -> float | None:
    """Return the largest difference of stored entries in units of the sketch's resolution; None where shapes differ."""
    largest = 0
    for first, second in zip(_sketches(base), _sketches(suspect), strict=False):
        if first.shape != second.shape:
            return None
        if first.size:
            largest = max(largest, int(np.abs(first.astype(np.int16) - second.astype(np.int16)).max()))
    if len(_sketches(base)) != len(_sketches(suspect)):
        return None
    return largest / 127


def _sketches(component: Component) -> list[np.ndarray]:
    arrays = [component.coordinates[name] for name in sorted(component.coordinates)]
    for neurons in component.neurons:
        for sketches in (neurons.token, neurons.coordinates):
            arrays += [sketches[name] for name in sorted(sketches)]
    for heads in component.heads:
        arrays += [heads.query_key, heads.value_output]
    return arrays
