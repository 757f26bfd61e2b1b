"""Scores of labels of two models from their sketches: neurons, heads and residual coordinates.

Labels without numbers of their own in either model (rows of zeros) leave both: under the null the suspect's other
labels stay exchangeable. Coordinates that have numbers in some matrices alone are permuted among those that have them
in the same ones. Where both models repeat themselves at one period, the labels of one period are permuted jointly, the
same in every repeat.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from bornbiased_jax.checkpoints.roles import Shape
from bornbiased_jax.hardware import cores
from bornbiased_jax.lineage.evidence import EvidenceError
from bornbiased_jax.lineage.fingerprints import HeadSketches, Neurons
from bornbiased_jax.lineage.pairing import NeuronPair, Space, Units, neuron_units, unit_rows, units_of
from bornbiased_jax.stats.terms import Term

# Labels of a random group where the null is sampled: each meets the others of its group.
_GROUP = 8


# ---------------------------------------------------------------------------------------------------------------------
# Labels


def permuted_labels(scores_nn: np.ndarray, is_live_n: np.ndarray, period: int | None) -> np.ndarray:
    """Reduce scores to the labels that may be permuted.

    Args:
        scores_nn: scores of all stored labels.
        is_live_n: labels that have numbers in both models.
        period: labels of one repeat where both models repeat themselves, summed over repeats; None where they do not.

    Raises:
        EvidenceError: fewer than two labels are left.
    """
    labels_nR = _labels(len(scores_nn), period)
    # Labels without numbers leave.
    labels_nR = labels_nR[is_live_n[labels_nR].all(axis=1)]
    if len(labels_nR) < 2:
        raise EvidenceError("fewer than two labels have numbers in both models")
    if len(labels_nR) == len(scores_nn):
        return scores_nn
    # Label i of every repeat with label j of the same repeat.
    return functools.reduce(np.add, (scores_nn[np.ix_(repeat_n, repeat_n)] for repeat_n in labels_nR.T))


def _labels(size: int, period: int | None) -> np.ndarray:
    """Return which places have each label: [n, R] with a row for each label of a repeat, one for each place without.

    Raises:
        EvidenceError: a repeat is one label, as where every label resembles the next one.
    """
    if period == 1:
        raise EvidenceError("in both models every label resembles the next one, so that none can be permuted")
    period = max(1, size) if period is None or size < period else period
    return np.arange(size // period * period).reshape(-1, period).T


def _term_or_reason(make: Callable[[], Term]) -> Term | str:
    """Make a term, and what every cell that it is in needs of it; or say why it is undefined."""
    try:
        term = make()
        _ = term.facts
        return term
    except EvidenceError as error:
        return str(error)


def _defined(results: Sequence[Term | str], if_none: str) -> list[Term]:
    """Keep the terms that are defined.

    Raises:
        EvidenceError: none is; the first reason.
    """
    terms = [result for result in results if isinstance(result, Term)]
    if not terms:
        reasons = [result for result in results if isinstance(result, str)]
        raise EvidenceError(reasons[0] if reasons else if_none)
    return terms


# ---------------------------------------------------------------------------------------------------------------------
# Neurons


@dataclasses.dataclass(frozen=True, eq=False)
class NeuronScores:
    """Scores of neurons of one MLP with those of another: [..., n, n'] float32 each.

    Attributes:
        first: ⟨gate⟩, or ⟨up⟩ where there is no gate: what neurons are matched on.
        second: |⟨up⟩ + ⟨down⟩|, or ⟨down⟩ where there is no gate: what a matching is compared with.
        combined: the score of the permutation test.
        signed: a score whose sign is that of the agreement: of gates, of up and down multiplied where their sign is
            free, or the combined one.
        is_live_base, is_live_suspect: neurons with numbers in every part used, bool [..., n] and [..., n'].
    """

    first: np.ndarray
    second: np.ndarray
    combined: np.ndarray
    signed: np.ndarray
    is_live_base: np.ndarray
    is_live_suspect: np.ndarray


def neuron_scores(base_units: Units | None, suspect_units: Units | None, shape: Shape) -> NeuronScores:
    """Score neurons of two MLPs by their unit vectors: ⟨gate⟩ + |⟨up⟩ + ⟨down⟩|, and ⟨up⟩ + ⟨down⟩ without a gate.

    A gated neuron may change the sign of up and down together, one with an odd activation too: its absolute value
    counts.

    Raises:
        EvidenceError: no sketch in this space, or a part that only one model has.
    """
    # Parts that both MLPs have in this space.
    if base_units is None or suspect_units is None:
        raise EvidenceError("a model has no vocabulary, and so no token space")
    if base_units.rows.keys() != suspect_units.rows.keys():
        raise EvidenceError("one model's MLP has a gate, the other's has none: their neurons do not correspond")
    names = [name for name in base_units.present if name in suspect_units.present]
    if not names:
        raise EvidenceError("no part of the MLPs has numbers that a seed decided in both models")
    # Cosines of each part: the gate by itself, up and down together.
    cosine = {name: base_units.rows[name] @ suspect_units.rows[name].swapaxes(-1, -2) for name in names}
    is_live_base, is_live_suspect = base_units.is_live, suspect_units.is_live
    zero = np.zeros_like(cosine[names[0]])
    gate, up, down = (cosine.get(name, zero) for name in ("gate", "up", "down"))
    if "gate" in base_units.rows:
        second = up + down
        np.abs(second, out=second)
        signed = gate if "gate" in names else up * down
        return NeuronScores(gate, second, gate + second, signed, is_live_base, is_live_suspect)
    if shape.has_odd_activation:
        return NeuronScores(np.abs(up), np.abs(down), np.abs(up + down), up * down, is_live_base, is_live_suspect)
    combined = up + down
    return NeuronScores(up, down, combined, combined, is_live_base, is_live_suspect)


def neuron_terms(
    pairs: Sequence[NeuronPair],
    space: Space,
    shape: Shape,
    period_of: Callable[[int], int | None] = lambda _total: None,
) -> list[Term]:
    """Return a term for each MLP or expert: neurons with equal numbers in the two models on the diagonal.

    ``period_of`` gives how many neurons of an MLP are in one repeat, where both models repeat themselves.

    Raises:
        EvidenceError: no pair has scores.
    """

    def term(pair: NeuronPair) -> Term:
        # MLPs of two sizes: the first neurons, exchangeable in either model; where they repeat, those of one repeat.
        size = min(mlp.stored for mlps in pair.pairs for mlp in mlps)
        totals = {mlp.total for mlps in pair.pairs for mlp in mlps}
        period = period_of(max(totals))
        if len(totals) > 1 and period is not None:
            size, period = min(size, period), None
        units = ((neuron_units(base, space), neuron_units(suspect, space)) for base, suspect in pair.pairs)
        scored = (neuron_scores(*both, shape) for both in units)
        # One MLP's scores are not copied: reading wide ones takes as long as making them.
        first = next(scored)
        total_nn, signed_nn = first.combined[:size, :size], first.signed[:size, :size]
        is_live_n = first.is_live_base[:size] & first.is_live_suspect[:size]
        for scores in scored:
            total_nn = total_nn + scores.combined[:size, :size]
            signed_nn = signed_nn + scores.signed[:size, :size]
            is_live_n = is_live_n & scores.is_live_base[:size] & scores.is_live_suspect[:size]
        total_nn, signed_nn = (permuted_labels(each_nn, is_live_n, period) for each_nn in (total_nn, signed_nn))
        return Term(total_nn, pair.block, signed_n=np.diagonal(signed_nn) - signed_nn.mean())

    # Wide scores are made by several threads sooner than by one.
    with ThreadPoolExecutor(cores()) as pool:
        results = list(pool.map(_term_or_reason, (partial(term, pair) for pair in pairs)))
    return _defined(results, "a model has no MLP, and so no neurons")


# ---------------------------------------------------------------------------------------------------------------------
# Heads


def head_terms(pairs: Sequence[tuple[HeadSketches, HeadSketches]]) -> list[Term]:
    """Return a term for each pair of blocks: key/value groups are permuted, and query heads inside each.

    Raises:
        EvidenceError: no pair of blocks with as many heads and groups.
    """
    results = [_term_or_reason(partial(_head_term, base, suspect)) for base, suspect in pairs]
    terms = _defined(results, "a model has no attention, and so no heads")
    if len({term.num_groups for term in terms}) > 1:
        raise EvidenceError("pruned heads leave blocks with different numbers of groups")
    return terms


def _head_term(base: HeadSketches, suspect: HeadSketches) -> Term:
    if (len(base.query_key), base.num_groups) != (len(suspect.query_key), suspect.num_groups):
        raise EvidenceError("the numbers of heads or of key/value groups differ")
    base_units, suspect_units = (
        units_of({"query_key": heads.query_key, "value_output": heads.value_output}) for heads in (base, suspect)
    )
    names = [name for name in base_units.present if name in suspect_units.present]
    if not names:
        raise EvidenceError("the heads have no numbers that a seed decided")
    # Cosines of both products, summed.
    scores_HH = np.sum([base_units.rows[name] @ suspect_units.rows[name].T for name in names], axis=0)
    is_live_Gr = (base_units.is_live & suspect_units.is_live).reshape(base.num_groups, -1)
    # A group with a pruned head leaves with all its heads: groups that are permuted have one size.
    is_nested = 1 < base.num_groups < len(scores_HH)
    if is_nested:
        is_live_Gr = np.repeat(is_live_Gr.all(axis=1)[:, None], is_live_Gr.shape[1], axis=1)
    labels = np.flatnonzero(is_live_Gr.ravel())
    if len(labels) < 2:
        raise EvidenceError("fewer than two heads have numbers in both models")
    num_groups = int(is_live_Gr.all(axis=1).sum()) if is_nested else 1
    return Term(scores_HH[np.ix_(labels, labels)], base.block, num_groups if num_groups > 1 else None)


# ---------------------------------------------------------------------------------------------------------------------
# Coordinates


def coordinate_terms(base: Sequence[np.ndarray], suspect: Sequence[np.ndarray], period: int | None) -> list[Term]:
    """Score residual coordinates, summed over parts: a term for each stratum of coordinates that may be permuted.

    A part weighs the less the more its scores vary between any coordinates: training on one text gives tables a
    structure in common that would hide what the blocks show. No permutation of coordinates changes the weights.

    A stratum holds the coordinates that have numbers in the same parts of the base, and in the same parts of the
    suspect: pruning may empty most rows of one table, which then takes no label from the other parts. The p is exact.
    Which parts have numbers at coordinate j is read off each model's own coordinate j, so that the strata depend on how
    the coordinates of the two models are paired; but a permutation of the suspect's coordinates inside the strata puts
    a coordinate in the place of one with the same parts. It leaves every stratum and every weight as they are, and
    under the null it leaves the suspect as likely as before. Permutations are thus drawn from a group that all
    pairings within reach share, as a permutation test needs it. Permuting across strata would not do: padding at equal
    places of both models would count, and a choice of parts by how many coordinates *both* models have in them would
    be a choice by the pairing that is tested.

    Args:
        base: sketches [D, k] of parts.
        suspect: those of the same parts in the same order.
        period: coordinates of one repeat where both models repeat themselves, which are permuted jointly; None where
            they do not.

    Raises:
        EvidenceError: the widths differ, or nothing is left.
    """
    base_DK, suspect_DK, strata = _coordinate_rows(base, suspect, period)
    # Label i of every repeat with label j of the same repeat.
    return [
        Term(functools.reduce(np.add, (base_DK[repeat_n] @ suspect_DK[repeat_n].T for repeat_n in labels_nR.T)))
        for labels_nR in strata
    ]


def _coordinate_rows(
    base: Sequence[np.ndarray], suspect: Sequence[np.ndarray], period: int | None = None
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return weighted unit vectors of all parts in a row, [D, K] of either model, and strata of coordinates.

    A stratum is an array [n, R] of coordinates: those of a row are one label, which every repeat has.
    """
    present = [(first, second) for first, second in zip(base, suspect, strict=True) if first.any() and second.any()]
    if not present:
        raise EvidenceError("no matrix on the residual stream has numbers that a seed decided in both models")
    width = len(present[0][0])
    if any(len(rows) != width for pair in present for rows in pair):
        widths = f"{width} and {len(present[0][1])}"
        raise EvidenceError(f"the widths differ ({widths}): no coordinate of one model corresponds to one of the other")
    is_live_DP2 = np.stack([np.stack([rows.any(axis=1) for rows in pair], axis=1) for pair in present], axis=1)
    strata = _strata(is_live_DP2, period)
    # All parts in one row, so that one product sums their scores.
    units = [(unit_rows(first), unit_rows(second)) for first, second in present]
    is_live_PD: np.ndarray = np.logical_and.reduce(is_live_DP2, axis=2).T
    weights = [
        _weight(first[is_live_D], second[is_live_D])
        for (first, second), is_live_D in zip(units, is_live_PD, strict=True)
    ]
    base_DK = np.concatenate([first * weight for (first, _), weight in zip(units, weights, strict=True)], axis=1)
    return base_DK, np.concatenate([second for _, second in units], axis=1), strata


def _strata(is_live_DP2: np.ndarray, period: int | None) -> list[np.ndarray]:
    """Group coordinates by the parts in which each model has numbers there: arrays [n, R], the widest stratum first.

    Args:
        is_live_DP2: by coordinate, part and model.
        period: see :func:`coordinate_terms`.

    Raises:
        EvidenceError: no two coordinates may be permuted.
    """
    labels_nR = _labels(len(is_live_DP2), period)
    is_live_nRP2 = is_live_DP2[labels_nR]
    packed_nB = np.packbits(is_live_nRP2.reshape(len(labels_nR), -1), axis=1)
    # Mostly all are alike, which is seen sooner than they are sorted.
    is_uniform = bool((packed_nB == packed_nB[0]).all())
    place_n = np.zeros(len(labels_nR), int) if is_uniform else np.unique(packed_nB, axis=0, return_inverse=True)[1]
    # Coordinates without a part that has numbers in both models score nothing and leave.
    has_score_n = np.logical_or.reduce(np.logical_and.reduce(is_live_nRP2, axis=-1), axis=(1, 2))
    place_n = np.where(has_score_n, place_n.ravel(), -1)
    strata = [labels_nR[place_n == place] for place in range(place_n.max() + 1)]
    strata = sorted((stratum for stratum in strata if len(stratum) > 1), key=len, reverse=True)
    if not strata:
        raise EvidenceError("fewer than two coordinates have numbers in the same matrices of both models")
    return strata


def _weight(base_nK: np.ndarray, suspect_nK: np.ndarray) -> np.float32:
    """Return one over the variance of the scores of a part over all pairs of labels, their means taken out."""
    if len(base_nK) < 2:
        return np.float32(1)
    grams = []
    for rows_nK in (base_nK, suspect_nK):
        centered_nK = rows_nK - rows_nK.mean(axis=0, dtype=np.float64)
        grams.append(centered_nK.T @ centered_nK)
    # ‖B Sᵀ‖² of the centered rows is the trace of the product of their Gram matrices.
    variance = float(np.vdot(*grams)) / len(base_nK) ** 2
    return np.float32(1 / variance if variance > 0 else 1)


# ---------------------------------------------------------------------------------------------------------------------
# Screening


@dataclasses.dataclass
class SampledZ:
    """z of summed traces without a score matrix, its moments estimated in small random groups of labels.

    The screen needs no more: a p that is set to 1 below any threshold on anything is valid.
    """

    excess: float = 0.0
    variance: float = 0.0

    def add(self, scores_Gmm: np.ndarray, is_live_Gm: np.ndarray) -> None:
        """Add one set of labels: scores of each with itself, on the diagonals, and with the others of its group."""
        is_live_Gmm = is_live_Gm[:, :, None] & is_live_Gm[:, None, :]
        size = int(is_live_Gm.sum())
        num_others = int(is_live_Gmm.sum()) - size
        if not num_others:
            return
        # Means and variances of either kind of scores, from their sums and sums of squares.
        live_Gmm = np.where(is_live_Gmm, scores_Gmm, 0)
        own_Gm = np.diagonal(live_Gmm, axis1=1, axis2=2).astype(np.float64)
        own_sum, own_square = float(own_Gm.sum()), float(np.vdot(own_Gm, own_Gm))
        own_mean, other_mean = own_sum / size, (float(live_Gmm.sum(dtype=np.float64)) - own_sum) / num_others
        own_variance = own_square / size - own_mean**2
        other_variance = (float(np.vdot(live_Gmm, live_Gmm)) - own_square) / num_others - other_mean**2
        # A permutation gives a label itself once in n times.
        variance = (
            other_variance + (own_variance - other_variance + (own_mean - other_mean) ** 2 * (1 - 1 / size)) / size
        )
        self.excess += (size - 1) * (own_mean - other_mean)
        self.variance += variance * size * (1 + size / num_others)

    @property
    def z(self) -> float:
        """The z; NaN where nothing varies."""
        return self.excess / math.sqrt(self.variance) if self.variance > 0 else math.nan


def sampled_neurons(pairs: Sequence[NeuronPair], space: Space, shape: Shape) -> SampledZ:
    """Estimate z of neurons; see :func:`neuron_terms`, whose pairs without scores are left out here too."""
    sampled = SampledZ()
    for pair in pairs:
        size = min(mlp.stored for mlps in pair.pairs for mlp in mlps)
        _, is_label_Gm = _groups(size)
        with contextlib.suppress(EvidenceError):
            scores = [
                neuron_scores(_grouped_units(base, space, size), _grouped_units(suspect, space, size), shape)
                for base, suspect in pair.pairs
            ]
            is_live = [live_Gm for score in scores for live_Gm in (score.is_live_base, score.is_live_suspect)]
            scores_Gmm = np.sum([score.combined for score in scores], axis=0)
            sampled.add(scores_Gmm, np.logical_and.reduce([is_label_Gm, *is_live]))
    return sampled


def sampled_coordinates(base: Sequence[np.ndarray], suspect: Sequence[np.ndarray]) -> tuple[SampledZ, SampledZ]:
    """Estimate z of coordinates, and of coordinates up to sign; see :func:`coordinate_terms`."""
    base_DK, suspect_DK, strata = _coordinate_rows(base, suspect)
    signed, signless = SampledZ(), SampledZ()
    for labels_n in (labels_nR[:, 0] for labels_nR in strata):
        groups_Gm, is_label_Gm = _groups(len(labels_n))
        base_GmK, suspect_GmK = (rows_DK.take(labels_n[groups_Gm], axis=0) for rows_DK in (base_DK, suspect_DK))
        scores_Gmm = base_GmK @ suspect_GmK.swapaxes(1, 2)
        signed.add(scores_Gmm, is_label_Gm)
        signless.add(np.square(scores_Gmm), is_label_Gm)
    return signed, signless


@functools.lru_cache(maxsize=64)
def _groups(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return labels in random groups, [G, m], and which of them count: the last group is filled up from the first."""
    order_n = np.random.default_rng(size).permutation(size)
    groups_Gm = np.resize(order_n, (math.ceil(size / _GROUP), min(size, _GROUP)))
    return groups_Gm, np.arange(groups_Gm.size).reshape(groups_Gm.shape) < size


def _grouped_units(mlp: Neurons, space: Space, size: int) -> Units | None:
    """Put the first neurons of an MLP in random groups, as unit vectors [G, m, k]; None without sketches."""
    units, groups_Gm = neuron_units(mlp, space), _groups(size)[0]
    if units is None:
        return None
    # Rows are taken much faster than they are indexed.
    rows = {name: rows_nk.take(groups_Gm, axis=0) for name, rows_nk in units.rows.items()}
    return Units(rows, units.present, units.is_live[groups_Gm])
