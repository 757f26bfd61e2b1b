"""One component of two models: which of its labels correspond, and the scores of each piece of evidence.

Everything here is decided before a p is computed: blocks and experts are paired, what a formula decided is left out,
and labels that repeat in both models are permuted jointly. A piece of evidence that is undefined raises
:class:`.evidence.EvidenceError` with the reason.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

import numpy as np

from bornbiased_jax.lineage.component_sketches import MLP
from bornbiased_jax.lineage.evidence import (
    COORDINATES,
    MATCHED,
    RAW_NEURONS,
    SIGN_SCREEN,
    SIGNLESS,
    TOKEN_HEADS,
    TOKEN_NEURONS,
    EvidenceError,
    check_signs,
)
from bornbiased_jax.lineage.fingerprints import Component, Fingerprint, Neurons, RepeatLabels
from bornbiased_jax.lineage.matching import Matching, match_neurons
from bornbiased_jax.lineage.pairing import (
    BlockPair,
    FurtherBlock,
    NeuronPair,
    Space,
    by_block,
    nearest_blocks,
    nearest_mlps,
    pair_blocks,
    pair_neurons,
    unit_rows,
)
from bornbiased_jax.lineage.scores import (
    coordinate_terms,
    head_terms,
    neuron_terms,
    sampled_coordinates,
    sampled_neurons,
)
from bornbiased_jax.lineage.structure import REPEATING, SharedRepeats, formulas, shared_repeats
from bornbiased_jax.stats.terms import Term, z_of

TABLES = ("embedding", "positions", "head")
NEURON_SPACES: dict[str, Space] = {RAW_NEURONS: "coordinates", TOKEN_NEURONS: "token"}
_ATTENTION = ("query", "key", "value", "output", "output_gate", "value_gate")
MatrixCell = tuple[int | None, str]
"""A matrix by its block, counted from 1, and its kind; None outside blocks."""
# z from which on neurons of two blocks agree, in a description.
_AGREES = 6.0
# z of coordinates over the tables from which on neurons are matched in them; rotated models have some between −3 and 3.
_CORRESPONDS = 4.0
# Products have less power than squares: of a merge that is 30% the base they reach 3. By chance one pair in 160 reaches
# this.
_SIGNED_PRODUCTS = 2.5
# Coordinates that a matrix of the heat map takes: the first ones, which are exchangeable as all of them are.
_FEW_COORDINATES = 1024
# Experts of a block, of which each is held against the one that it is most alike.
_FEW_EXPERTS = 8


class ComponentPair:
    """A component that two models have, and the terms of every piece of evidence over it or over a part of it.

    Args:
        base, suspect: fingerprints made with one dimension and one sign key.
        name: of the component, in both.
        skipped: matrices that are no evidence, by block of the base and kind.
        finds_formulas: whether matrices that a formula decided are left out, as for a p; an estimate does without.
    """

    def __init__(
        self,
        base: Fingerprint,
        suspect: Fingerprint,
        name: str,
        skipped: Collection[MatrixCell] = (),
        *,
        finds_formulas: bool = True,
    ) -> None:
        # Each model is tested for formulas by itself: a formula in one alone makes no agreement.
        in_base, in_suspect = (formulas(model, name) if finds_formulas else {} for model in (base, suspect))
        self.left_out: dict[str, str] = {kind: formula for kind, formula in in_base.items() if kind in in_suspect}
        """Kinds of matrices that agree with a formula in both models by themselves, and the formula."""
        self.repeats: dict[RepeatLabels, SharedRepeats] = {
            labels: shared_repeats(base, suspect, name, labels)
            for labels in ("coordinates", "neurons", "heads", "experts")
        }
        # Labels that repeat in both models are permuted jointly, under which a diagonal shows that they do.
        kinds = set(self.left_out)
        kinds -= set(MLP) if self.repeats["neurons"].parts else set()
        kinds -= set(_ATTENTION) if self.repeats["heads"].parts else set()
        self.base, self.suspect = (_without(model.components[name], kinds) for model in (base, suspect))
        # Blocks by their Grams, then the MLPs and experts in them.
        self.blocks = pair_blocks(self.base, self.suspect)
        self.neurons = pair_neurons(self.base, self.suspect, self.blocks)
        self._skipped = frozenset(skipped)

    @cached_property
    def is_joint(self) -> bool:
        """True if labels of several blocks or experts repeat each other in both models."""
        return bool(self.repeats["experts"].parts) or all(map(_has_repeated_mlps, (self.base, self.suspect)))

    @property
    def parts(self) -> list[str]:
        """Tables that both models have, their blocks, and matrices outside blocks such as those of a projector."""
        common = self.base.coordinates.keys() & self.suspect.coordinates.keys()
        named = (*TABLES, "blocks")
        return [name for name in named if name in common] + sorted(common.difference(named))

    @property
    def kinds(self) -> list[str]:
        """Kinds of block matrices that both models have."""
        suspect = {matrix for block, matrix in self.suspect.heat_map if block is not None}
        kinds = dict.fromkeys(matrix for block, matrix in self.base.heat_map if block is not None)
        return [kind for kind in kinds if kind in suspect]

    @property
    def expert_pairs(self) -> Iterator[tuple[int, int, int]]:
        """Yield routed experts that correspond: block, number in the base, number in the suspect."""
        for pair in self.neurons:
            (base, suspect), *rest = pair.pairs
            if not rest and not base.is_shared and base.expert is not None and suspect.expert is not None:
                yield pair.block, base.expert, suspect.expert

    @property
    def further_blocks(self) -> list[FurtherBlock]:
        """Blocks of the deeper model without a place in the pairs, and where each may come from: description."""
        rows = []
        for side, number, partner in nearest_blocks(self.base, self.suspect, self.blocks):
            z_by_evidence: dict[str, float] = {}
            pair = BlockPair(number, partner) if side == "base" else BlockPair(partner, number)
            mlps = pair_neurons(self.base, self.suspect, [pair])
            for evidence in NEURON_SPACES:
                with contextlib.suppress(EvidenceError):
                    terms = self.terms(evidence, mlps)
                    z = z_of(terms)
                    check_signs(z, terms)
                    z_by_evidence[evidence] = z
            evidence = max(z_by_evidence, key=z_by_evidence.__getitem__, default="")
            z_or_none = z_by_evidence.get(evidence)
            is_found = z_or_none is not None and z_or_none >= _AGREES
            rows.append(FurtherBlock(side, number, partner if is_found else None, evidence, z_or_none))
        return rows

    @property
    def experts(self) -> dict[int, list[NeuronPair]]:
        """MLPs of each routed expert over all blocks, by its number in the model that has experts."""
        experts: dict[int, list[NeuronPair]] = {}
        for pair in self.neurons:
            for base, suspect in pair.pairs:
                number = base.expert if base.expert is not None else suspect.expert
                if number is not None and not base.is_shared:
                    experts.setdefault(number, []).append(NeuronPair(pair.block, ((base, suspect),)))
        return dict(sorted(experts.items()))

    def terms(self, evidence: str, mlps: Sequence[NeuronPair] | None = None) -> list[Term]:
        """Return the scores of one piece of evidence over the whole component.

        Args:
            evidence: a key of :data:`.evidence.KINDS`.
            mlps: those whose neurons are scored; all unless given.

        Raises:
            EvidenceError: it is undefined.
        """
        if evidence == COORDINATES:
            return self.part_terms(self.parts)
        if evidence == SIGNLESS:
            return self._signless_terms()
        if evidence == TOKEN_HEADS:
            return self._head_terms()
        if evidence == MATCHED:
            return list(self.matching.terms)
        # Neurons, in token space or in coordinates.
        space = NEURON_SPACES[evidence]
        self._check_neurons(space)
        pairs = self.neurons if mlps is None else mlps
        return neuron_terms(pairs, space, self.base.shape, self.repeats["neurons"].period)

    def screening_z(self) -> dict[str, float]:
        """Estimate z over the whole component where evidence is defined; what a formula decided counts too."""
        z_by_evidence: dict[str, float] = {}
        # Coordinates and neurons by a few random partners of each label; heads are few enough to score them all.
        with contextlib.suppress(EvidenceError):
            self._check_repeats("coordinates")
            sketches = ([model.coordinates[name] for name in self.parts] for model in (self.base, self.suspect))
            signed, signless = sampled_coordinates(*sketches)
            z_by_evidence |= {COORDINATES: signed.z, SIGNLESS: signless.z}
        # Neurons in both spaces.
        for evidence, space in NEURON_SPACES.items():
            with contextlib.suppress(EvidenceError):
                self._check_neurons(space)
                z_by_evidence[evidence] = sampled_neurons(self.neurons, space, self.base.shape).z
        with contextlib.suppress(EvidenceError):
            z_by_evidence[TOKEN_HEADS] = z_of(self._head_terms())
        return {evidence: z for evidence, z in z_by_evidence.items() if math.isfinite(z)}

    # Coordinates

    def part_terms(self, parts: Sequence[str]) -> list[Term]:
        """Return the scores of coordinates, summed over tables and blocks."""
        self._check_repeats("coordinates")
        is_cut = self._included_kinds < set(self.kinds) or any(block is not None for block, _ in self._skipped)
        return self._coordinate_terms(*self._part_sketches(parts, by_matrix=is_cut, limit=None))

    def _part_sketches(
        self, parts: Sequence[str], *, by_matrix: bool, limit: int | None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Pick tables and blocks; blocks matrix by matrix, so that a kind can be left out, or as they are stored."""
        base, suspect = [], []
        for name in parts:
            if name == "blocks" and by_matrix:
                first, second = self._map_sketches(self._included_kinds, None, limit=limit)
                base += first
                suspect += second
            elif name not in self.left_out and (None, name) not in self._skipped:
                base.append(self.base.coordinates[name][:limit])
                suspect.append(self.suspect.coordinates[name][:limit])
        return base, suspect

    def _signless_terms(self) -> list[Term]:
        """Return squares of scores, unless those of different matrices have signs of their own.

        A coordinate that is negated is so in every matrix: products of its scores in two of them are positive.
        """
        terms = [Term(np.square(term.scores_nn)) for term in self.part_terms(self.parts)]
        z = z_of(terms)
        if not z >= SIGN_SCREEN:
            return terms
        base, suspect = self._part_sketches(self.parts, by_matrix=True, limit=_FEW_COORDINATES)
        if len(base) > 1:
            total_DD, squares_DD = (np.zeros((len(base[0]), len(suspect[0])), np.float32) for _ in range(2))
            for first, second in zip(base, suspect, strict=True):
                # The longer a sketch, the less its scores vary: the more they count.
                scores_DD = first.shape[1] * (unit_rows(first) @ unit_rows(second).T)
                total_DD += scores_DD
                squares_DD += np.square(scores_DD)
            check_signs(z, [Term(np.square(total_DD) - squares_DD)], "different matrices", _SIGNED_PRODUCTS)
        return terms

    def kind_terms(self, kind: str) -> list[Term]:
        """Return the scores of coordinates over one kind of block matrices."""
        self._check_repeats("coordinates")
        if kind in self.left_out:
            raise EvidenceError(f"agrees with {self.left_out[kind]} in both models")
        # Rows of a router are experts: in another order they do not correspond.
        if kind == "router" and any(base != suspect for _, base, suspect in self.expert_pairs):
            raise EvidenceError("the experts stand in another order, and so do the rows of the router")
        return self._coordinate_terms(*self._map_sketches({kind}, None, limit=_FEW_COORDINATES))

    def block_terms(self, blocks: Collection[int]) -> list[Term]:
        """Return the scores of coordinates over some blocks of the base."""
        self._check_repeats("coordinates")
        return self._coordinate_terms(*self._map_sketches(self._included_kinds, blocks, limit=_FEW_COORDINATES))

    def by_module(self) -> dict[str, float | None]:
        """Compute z of every matrix of the heat map, from coordinates: description, no p."""
        # Matrices at corresponding places; those outside blocks have one place.
        partners = {pair.base: pair.suspect for pair in self._token_pairs}
        rows: dict[str, float | None] = {}
        for (block, kind), base_D2 in self.base.heat_map.items():
            suspect_D2 = self.suspect.heat_map.get((None if block is None else partners.get(block, -1), kind))
            if suspect_D2 is None:
                continue
            try:
                z = z_of(self._coordinate_terms([base_D2[:_FEW_COORDINATES]], [suspect_D2[:_FEW_COORDINATES]]))
            except EvidenceError:
                z = math.nan
            rows[_module(block, kind)] = z if math.isfinite(z) else None
        return rows

    @property
    def _included_kinds(self) -> set[str]:
        return set(self.kinds) - set(self.left_out)

    def _coordinate_terms(self, base: Sequence[np.ndarray], suspect: Sequence[np.ndarray]) -> list[Term]:
        return coordinate_terms(base, suspect, self.repeats["coordinates"].period(self.base.width))

    def _map_sketches(
        self, kinds: set[str], blocks: Collection[int] | None, *, limit: int | None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Pick matrices of these kinds from the heat map, in blocks paired without looking at coordinates."""
        # Matrices of equal kind in corresponding blocks.
        base, suspect = [], []
        for pair in self._token_pairs:
            if blocks is not None and pair.base not in blocks:
                continue
            for kind in sorted(kinds):
                base_D2 = self.base.heat_map.get((pair.base, kind))
                suspect_D2 = self.suspect.heat_map.get((pair.suspect, kind))
                is_skipped = (pair.base, kind) in self._skipped
                if base_D2 is not None and suspect_D2 is not None and not is_skipped:
                    base.append(base_D2[:limit])
                    suspect.append(suspect_D2[:limit])
        return base, suspect

    @cached_property
    def _token_pairs(self) -> list[BlockPair]:
        return pair_blocks(self.base, self.suspect, tokens_only=True)

    # Neurons and heads

    def _head_terms(self) -> list[Term]:
        self._check_repeats("heads")
        if self.repeats["heads"].parts:
            raise EvidenceError("both models repeat their heads")
        self._check_tokens()
        # Blocks without attention in one model have no partner.
        base, suspect = ({heads.block: heads for heads in model.heads} for model in (self.base, self.suspect))
        pairs = [(base[p.base], suspect[p.suspect]) for p in self.blocks if p.base in base and p.suspect in suspect]
        return head_terms(pairs)

    @cached_property
    def matching(self) -> Matching:
        """Neurons of all blocks matched twice."""
        return self.match()

    def match(self, num_blocks: int | None = None) -> Matching:
        """Match neurons twice: in coordinates where both models have the same, else in token space.

        Token space sees through rotations, and sees less: only as many directions as tokens spread over.

        Args:
            num_blocks: so many blocks alone, from the first to the last; all unless given.

        Raises:
            EvidenceError: they cannot be matched.
        """
        space: Space = "coordinates"
        if not self._has_common_coordinates:
            try:
                self._check_tokens()
                space = "token"
            except EvidenceError:
                # Without a token space coordinates are all there is, of models of one width.
                if self.base.width != self.suspect.width:
                    raise
        if self.repeats["neurons"].parts:
            raise EvidenceError("both models repeat their neurons")
        count = len(self.neurons) if num_blocks is None else min(num_blocks, len(self.neurons))
        indices = np.linspace(0, len(self.neurons) - 1, count).round().astype(int).tolist()
        return match_neurons([self.neurons[index] for index in indices], space, self.base.shape)

    @property
    def _has_common_coordinates(self) -> bool:
        """Return whether the tables show that residual coordinates of one number correspond, with one sign.

        Neurons have no part in the tables: a choice by them leaves permutations of neurons as likely as they were.
        """
        tables = [name for name in self.parts if name in TABLES]
        try:
            terms = self.part_terms(tables)
            return z_of(terms) >= _CORRESPONDS and _have_one_sign(terms)
        except EvidenceError:
            return False

    def _check_repeats(self, labels: RepeatLabels) -> None:
        if self.repeats[labels].reason:
            raise EvidenceError(self.repeats[labels].reason)

    def _check_neurons(self, space: Space) -> None:
        self._check_repeats("neurons")
        if space == "token":
            self._check_tokens()
        elif self.base.width != self.suspect.width:
            raise EvidenceError(f"the widths differ ({self.base.width} and {self.suspect.width})")

    def _check_tokens(self) -> None:
        labels = {component.token_labels for component in (self.base, self.suspect)}
        if None in labels:
            raise EvidenceError("a model has no vocabulary, and so no token space")
        if len(labels) > 1:
            raise EvidenceError("one fingerprint names tokens by their strings, the other by their numbers")


def _have_one_sign(terms: Sequence[Term]) -> bool:
    """Check that labels resemble their own more than their own negated: most are not negated.

    In standard deviations of all scores, the mean of own ones is held against half of their root mean square beyond
    the 1 of chance. Of coordinates negated at random the mean is small, though larger than chance allows.
    """
    total = squares = count = 0.0
    for scores_nn in (term.scores_nn.astype(np.float64) for term in terms):
        centered_nn = scores_nn - scores_nn.mean(axis=0) - scores_nn.mean(axis=1)[:, None] + scores_nn.mean()
        own_n = np.diagonal(centered_nn) / max(float(centered_nn.std()), np.finfo(np.float64).tiny)
        total, squares, count = total + own_n.sum(), squares + float(own_n @ own_n), count + len(own_n)
    return bool(total / count >= math.sqrt(max(squares / count - 1.0, 0.0)) / 2)


def _without(component: Component, kinds: Collection[str]) -> Component:
    """Put zeros, which leave the labels, for matrices of these kinds in the sketches of neurons and heads."""
    if not kinds:
        return component

    def emptied(sketch: np.ndarray, *factors: str) -> np.ndarray:
        # A product of which one factor is no evidence is none.
        return np.zeros_like(sketch) if any(factor in kinds for factor in factors) else sketch

    neurons = [
        dataclasses.replace(
            mlp,
            token={name: emptied(rows, name) for name, rows in mlp.token.items()},
            coordinates={name: emptied(rows, name) for name, rows in mlp.coordinates.items()},
        )
        for mlp in component.neurons
    ]
    heads = [
        dataclasses.replace(
            head,
            query_key=emptied(head.query_key, "query", "key"),
            value_output=emptied(head.value_output, "value", "output"),
        )
        for head in component.heads
    ]
    return dataclasses.replace(component, neurons=tuple(neurons), heads=tuple(heads))


def _module(block: int | None, kind: str) -> str:
    """Name a matrix as parameters are named: "blocks/3/mlp/up", "embed"."""
    if block is None:
        return "embed" if kind == "embedding" else kind
    sublayer = "attention" if kind in _ATTENTION else "mlp"
    return f"blocks/{block}/{sublayer}/{kind}"


def _has_repeated_mlps(component: Component) -> bool:
    """Return whether blocks of one model, or experts of its blocks, repeat each other neuron by neuron."""
    # Neighboring blocks, every block with the first one, and whatever looks alike to Grams, at any distance.
    blocks = list(by_block(component).values())
    first = [mlps[0] for mlps in blocks]
    of_blocks = [
        *zip(first, first[1:], strict=False),
        *((first[0], later) for later in first[2:]),
        *nearest_mlps(first, len(first)),
    ]
    # Experts that began as copies of one MLP: where few repeat, it matters little.
    of_experts = [
        pair for mlps in blocks for pair in nearest_mlps([mlp for mlp in mlps if not mlp.is_shared], _FEW_EXPERTS)
    ]

    def repeats(pairs: Sequence[tuple[Neurons, Neurons]]) -> bool:
        of_one_size = [
            NeuronPair(first.block, ((first, second),)) for first, second in pairs if first.total == second.total
        ]
        return sampled_neurons(of_one_size, "coordinates", component.shape).z >= REPEATING

    return repeats(of_blocks) or repeats(of_experts)
