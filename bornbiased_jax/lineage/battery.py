"""The verdict on two fingerprints: every piece of evidence, over every component, with one Holm correction.

The family is fixed by the sizes of the two models before a number is compared: each piece of evidence over the whole
model, and over each kind of matrix, each block and each quarter of the depth for which it is defined. What is
identical is named first; what a formula decided in both models is left out and said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Literal

import numpy as np

from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.evidence import (
    Draws,
    EvidenceError,
    Space,
    Term,
    bound_of,
    certified_sum,
    coordinate_scores,
    head_terms,
    joined,
    neuron_scores,
    neuron_terms,
    sampled_coordinates,
    sampled_neurons,
    sketch_difference,
    z_of,
)
from bornbiased_jax.lineage.fingerprints import Component, Fingerprint, MatrixSketch, TensorRecord
from bornbiased_jax.lineage.matching import Matching, match_neurons
from bornbiased_jax.lineage.pairing import BlockPair, NeuronPair, by_block, paired_blocks, paired_neurons
from bornbiased_jax.lineage.structure import REPEATING, SharedRepeats, formulas, shared_repeats
from bornbiased_jax.stats.certified import Certified
from bornbiased_jax.stats.multiple import holm_log10
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

Labels = Literal["coordinates", "units", "heads"]

ALPHA = 1e-4
"""Level of a verdict on weights unless another is given."""
LARGEST_UNRELATED_AGREEMENT = 0.036
"""The largest agreement of two matchings measured between unrelated models of 128 or 192 neurons a block."""
ALL = "all"
# Coordinates that a cell of the heat map takes: the first ones, which are exchangeable as all of them are.
_CELL_COORDINATES = 1024
# Shallower models have no quarters beside their blocks.
_MIN_QUARTERED = 8
_TABLES = ("embedding", "positions", "head")
_ATTENTION = ("query", "key", "value", "output", "output_gate", "value_gate")


@dataclasses.dataclass(frozen=True)
class Kind:
    """What one piece of evidence permutes, and what its statistic does not see.

    Attributes:
        labels: the axis whose labels are permuted; "units" are neurons.
        permuted: the same for a reader.
        invariant_to: changes of a model that leave the statistic as it is.
        evaded_by: what hides a shared initialization from it.
    """

    labels: Labels
    permuted: str
    invariant_to: tuple[str, ...]
    evaded_by: str


_BLOCK_CHANGES = ("inserted, dropped and repeated blocks", "the order of heads")
_ROTATIONS = ("rotations, permutations and signs of the residual stream", "scales moved between norms and matrices")
_VOCABULARY = "a vocabulary that was cut, extended or, with its tokenizer, reordered"
COORDINATES, SIGNLESS = "coordinates", "coordinates up to sign"
RAW_NEURONS, TOKEN_NEURONS, TOKEN_HEADS = "neurons in coordinates", "neurons in token space", "heads in token space"
MATCHED = "matched neurons"
KINDS: Mapping[str, Kind] = {
    COORDINATES: Kind(
        "coordinates",
        "the residual coordinates",
        ("the order and scales of neurons", *_BLOCK_CHANGES),
        "rotating, permuting or negating the residual coordinates",
    ),
    SIGNLESS: Kind(
        "coordinates",
        "the residual coordinates",
        ("signs of the residual coordinates", "the order and scales of neurons", *_BLOCK_CHANGES),
        "rotating or permuting the residual coordinates",
    ),
    RAW_NEURONS: Kind(
        "units",
        "the neurons of each MLP",
        ("new embeddings and vocabularies", "scales and signs of neurons", *_BLOCK_CHANGES),
        "rotating or permuting the residual coordinates, or permuting neurons",
    ),
    TOKEN_NEURONS: Kind(
        "units",
        "the neurons of each MLP",
        (*_ROTATIONS, "scales and signs of neurons", *_BLOCK_CHANGES, _VOCABULARY),
        "permuting the neurons of each MLP, or replacing the embeddings",
    ),
    TOKEN_HEADS: Kind(
        "heads",
        "key/value groups and the query heads inside each",
        (*_ROTATIONS, "bases inside each head", "the order and scales of neurons", _VOCABULARY),
        "permuting the heads of each block, or replacing the embeddings",
    ),
    MATCHED: Kind(
        "units",
        "rows of up and down of the untrained model against its rows of gate",
        (*_ROTATIONS, "the order, scales and signs of neurons", *_BLOCK_CHANGES),
        "splitting, merging or retraining neurons",
    ),
}


@dataclasses.dataclass(frozen=True)
class Options:
    """How the battery is run.

    Attributes:
        alpha: level of the decision.
        num_permutations, seed: of the permutations.
        has_untrained: whether one model is known to be an untrained initialization, named beforehand.
        matches_neurons: whether neurons are matched, where all of them are stored.
    """

    alpha: float = ALPHA
    num_permutations: int = NUM_PERMUTATIONS
    seed: int = 0
    has_untrained: bool = False
    matches_neurons: bool = True


@dataclasses.dataclass(frozen=True)
class Cell:
    """One member of the family: a piece of evidence over a component.

    Attributes:
        evidence: a key of :data:`KINDS`.
        component: "all", "embedding", "up", "blocks/3", "quarters/2", "experts/5" …; of a component of the model beside
            its first one with the name before it: "vision/all".
        z: of the summed traces; None where undefined.
        log10_p: a valid p; None where undefined.
        reason: why it is undefined.
        certified: of the cells over the whole model, all that was measured.
    """

    evidence: str
    component: str
    z: float | None
    log10_p: float | None
    reason: str = ""
    certified: Certified | None = None


@dataclasses.dataclass(frozen=True)
class ModuleZ:
    """z of the coordinates of one matrix, "blocks/3/mlp/up" or "embed"; None where nothing varies."""

    module: str
    z: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """All that two fingerprints say about each other.

    Attributes:
        cells: the family.
        log10_adjusted: Holm's p of each cell that is defined, 0 of the others.
        by_module: z of single matrices: description.
        components: parts of a model that both have: "language", "vision" …; the first has no prefix in cells.
        pairs: blocks that stand for each other.
        experts: experts that stand for each other, (block, base, suspect); empty where one side has none.
        matching: of the neurons; None where it is undefined.
        matching_reason: why it is.
        left_out: kinds of matrices that agree with a formula in both models, and the formula.
        equal: tensors that are equal bit for bit, wherever they stand.
        num_tensors: tensors of the base that a seed may have decided.
        is_identical: whether all tensors of both are.
        sketch_difference: the largest difference of sketches where shapes agree.
        alpha: level of the decision.
    """

    cells: tuple[Cell, ...]
    log10_adjusted: tuple[float, ...]
    by_module: tuple[ModuleZ, ...]
    components: tuple[str, ...]
    pairs: tuple[BlockPair, ...]
    experts: tuple[tuple[int, int, int], ...]
    matching: Matching | None
    matching_reason: str
    left_out: Mapping[str, str]
    equal: tuple[str, ...]
    num_tensors: int
    is_identical: bool
    sketch_difference: float | None
    alpha: float

    @property
    def log10_alpha(self) -> float:
        """The level in base 10 logarithms."""
        return math.log10(self.alpha)

    def adjusted(self, evidence: str | None = None, component: str | None = None) -> float:
        """Return the least adjusted log₁₀ p of the cells with this evidence and component; 0 without any."""
        values = [
            log10_p
            for cell, log10_p in zip(self.cells, self.log10_adjusted, strict=True)
            if evidence in (None, cell.evidence) and component in (None, cell.component)
        ]
        return min(values, default=0.0)


def check_comparable(base: Fingerprint, suspect: Fingerprint) -> None:
    """Refuse fingerprints that were made with different sign vectors.

    Raises:
        InputError: their dimensions or keys differ.
    """
    if base.settings.dim != suspect.settings.dim:
        raise InputError(
            f"the fingerprints have {base.settings.dim} and {suspect.settings.dim} numbers in each vector: make both "
            "with one --dim"
        )
    if base.settings.sign_key != suspect.settings.sign_key:
        raise InputError("the fingerprints were made with different sign keys: make both with one --sign-key")


def compare_weights(
    base: Fingerprint, suspect: Fingerprint, options: Options | None = None, *, further: Sequence[Cell] = ()
) -> Comparison:
    """Compare two fingerprints of weights by everything they hold.

    Args:
        base, suspect: made with one dimension and one sign key.
        options: level, permutations, and whether one model is an initialization.
        further: cells of other tests that join the family.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    check_comparable(base, suspect)
    options = options or Options()
    names = [name for name in base.components if name in suspect.components]
    if not names:
        raise InputError("the models have no component in common: name models of one kind")
    cells: list[Cell] = []
    modules: list[ModuleZ] = []
    left_out: dict[str, str] = {}
    main, matching, reason = None, None, ""
    for name in names:
        measured = _Measured(base, suspect, name, options)
        prefix = "" if name == names[0] else f"{name}/"
        cells += [dataclasses.replace(cell, component=prefix + cell.component) for cell in measured.cells()]
        modules += [ModuleZ(prefix + row.module, row.z) for row in measured.by_module()]
        left_out |= {prefix + kind: formula for kind, formula in measured.left_out.items()}
        if main is None:
            main, (matching, reason) = measured, measured.matching
    assert main is not None
    cells += further
    # One Holm correction over all; undefined cells count as p = 1.
    adjusted = holm_log10([cell.log10_p or 0.0 for cell in cells])
    equal, num_tensors, is_identical = equal_tensors(base, suspect, left_out)
    return Comparison(
        cells=tuple(cells),
        log10_adjusted=tuple(float(value) for value in adjusted),
        by_module=tuple(modules),
        components=tuple(names),
        pairs=tuple(main.pairs),
        experts=tuple(main.expert_pairs),
        matching=matching,
        matching_reason=reason,
        left_out=left_out,
        equal=equal,
        num_tensors=num_tensors,
        is_identical=is_identical,
        sketch_difference=sketch_difference(base.components[names[0]], suspect.components[names[0]]),
        alpha=options.alpha,
    )


def screening_z(base: Fingerprint, suspect: Fingerprint) -> dict[str, float]:
    """Estimate z of every piece of evidence over the whole model from few pairs of labels, where it is defined.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    check_comparable(base, suspect)
    z_by_evidence: dict[str, float] = {}
    for name in base.components:
        if name in suspect.components:
            for evidence, z in _Measured(base, suspect, name, Options()).screening_z().items():
                z_by_evidence[evidence] = max(z, z_by_evidence.get(evidence, -math.inf))
    return z_by_evidence


def whole_cell(base: Fingerprint, suspect: Fingerprint, evidence: str, options: Options) -> tuple[Cell, list[ModuleZ]]:
    """Measure one piece of evidence over the whole of the first component that both models have, and z by matrix.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    check_comparable(base, suspect)
    names = [name for name in base.components if name in suspect.components]
    if not names:
        raise InputError("the models have no component in common: name models of one kind")
    measured = _Measured(base, suspect, names[0], options)
    return measured.whole(evidence), measured.by_module()


def equal_tensors(
    base: Fingerprint, suspect: Fingerprint, left_out: Mapping[str, str]
) -> tuple[tuple[str, ...], int, bool]:
    """List tensors of the base that the suspect has somewhere, bit for bit.

    Constant tensors and those of two repeated numbers are no evidence, and neither is what a formula decided.

    Returns:
        Their paths; how many tensors of the base are evidence; whether all tensors of both models are equal.
    """

    def evidence(model: Fingerprint) -> list[TensorRecord]:
        kinds = {kind.rpartition("/")[2] for kind in left_out}
        return [entry for entry in model.tensors if entry.is_evidence and entry.path.split("/")[-2] not in kinds]

    digests = {entry.digest for entry in evidence(suspect)}
    of_base = evidence(base)
    paths = tuple(entry.path for entry in of_base if entry.digest in digests)
    same = sorted((entry.path, entry.digest) for entry in base.tensors) == sorted(
        (entry.path, entry.digest) for entry in suspect.tensors
    )
    return paths, len(of_base), same and bool(paths)


class _Measured:
    """Cells of one component of two models, each score matrix made once."""

    def __init__(self, base: Fingerprint, suspect: Fingerprint, name: str, options: Options) -> None:
        self.base, self.suspect = base.components[name], suspect.components[name]
        self.options = options
        self.draws = Draws(options.num_permutations, options.seed)
        self.repeats: dict[str, SharedRepeats] = {
            labels: shared_repeats(base, suspect, name, labels)
            for labels in ("coordinates", "neurons", "heads", "experts")
        }
        self.pairs = paired_blocks(self.base, self.suspect)
        self.neuron_pairs = paired_neurons(self.base, self.suspect, self.pairs)
        self._fingerprints = base, suspect

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Kinds of matrices that agree with a formula in both models by themselves."""
        in_base, in_suspect = (formulas(model.components[self.base.name], model) for model in self._fingerprints)
        return {kind: formula for kind, formula in in_base.items() if kind in in_suspect}

    @cached_property
    def is_joint(self) -> bool:
        """Whether labels of several blocks or experts repeat each other in both models."""
        return self.repeats["experts"].is_shared or all(map(_blocks_repeat, (self.base, self.suspect)))

    @property
    def expert_pairs(self) -> Iterator[tuple[int, int, int]]:
        """Yield routed experts that stand for each other: block, number in the base, number in the suspect."""
        for pair in self.neuron_pairs:
            (first, second), *others = pair.pairs
            if not others and not first.is_shared and first.expert is not None and second.expert is not None:
                yield pair.block, first.expert, second.expert

    # Components of the family

    @property
    def blocks(self) -> list[tuple[str, frozenset[int]]]:
        """Each block of the shallower model, and quarters of the depth, with the blocks of the base in each."""
        numbers = [pair.base for pair in self.pairs]
        single = [(f"blocks/{number}", frozenset([number])) for number in numbers]
        if len(numbers) < _MIN_QUARTERED:
            return single
        quarters = np.array_split(np.array(numbers), 4)
        return single + [(f"quarters/{i}", frozenset(part.tolist())) for i, part in enumerate(quarters, 1)]

    @property
    def kinds(self) -> list[str]:
        """Kinds of block matrices that both models have."""
        suspect = {cell.matrix for cell in self.suspect.heat_map if cell.block is not None}
        kinds = dict.fromkeys(cell.matrix for cell in self.base.heat_map if cell.block is not None)
        return [kind for kind in kinds if kind in suspect]

    def cells(self) -> Iterator[Cell]:
        """Yield the family's cells of this component, in an order fixed by sizes alone."""
        yield from self._coordinate_cells()
        labelled: list[tuple[str, Callable[[], list[Term]], str]] = [
            (RAW_NEURONS, lambda: self._neuron_terms("coordinates"), self.repeats["neurons"].reason),
            (TOKEN_NEURONS, lambda: self._neuron_terms("token"), self.repeats["neurons"].reason),
            (TOKEN_HEADS, self._head_terms, self._heads_reason()),
        ]
        for evidence, terms, reason in labelled:
            yield from self._block_cells(evidence, terms, reason)
        yield from self._expert_cells()
        if self.options.has_untrained:
            yield self._repaired_cell()

    def whole(self, evidence: str) -> Cell:
        """Measure one piece of evidence over the whole component, and nothing else."""
        if evidence == MATCHED:
            return self._repaired_cell()
        coordinates, neurons = (self.repeats[labels].reason for labels in ("coordinates", "neurons"))
        makers: dict[str, tuple[Callable[[], list[Term]], str]] = {
            COORDINATES: (lambda: self._part_terms(self._parts), coordinates),
            SIGNLESS: (lambda: [Term(np.square(self._scores(self._parts)))], coordinates),
            RAW_NEURONS: (lambda: self._neuron_terms("coordinates"), neurons),
            TOKEN_NEURONS: (lambda: self._neuron_terms("token"), neurons),
            TOKEN_HEADS: (self._head_terms, self._heads_reason()),
        }
        make, reason = makers[evidence]
        return self._cell(evidence, ALL, make, reason, is_whole=True)

    def screening_z(self) -> dict[str, float]:
        """Estimate z over the whole model where evidence is defined; what a formula decided counts too."""
        z_by_evidence: dict[str, float] = {}
        if not self.repeats["coordinates"].reason:
            with contextlib.suppress(EvidenceError):
                sketches = ([model.coordinates[name] for name in self._parts] for model in (self.base, self.suspect))
                signed, signless = sampled_coordinates(*sketches)
                z_by_evidence |= {COORDINATES: signed.z, SIGNLESS: signless.z}
        if not self.repeats["neurons"].reason:
            spaces: dict[str, Space] = {RAW_NEURONS: "coordinates", TOKEN_NEURONS: "token"}
            for evidence, space in spaces.items():
                with contextlib.suppress(EvidenceError):
                    self._check_space(space)
                    z_by_evidence[evidence] = sampled_neurons(self.neuron_pairs, space, self.base.shape).z
        if not self._heads_reason():
            with contextlib.suppress(EvidenceError):
                z_by_evidence[TOKEN_HEADS] = z_of(self._head_terms())
        return {evidence: z for evidence, z in z_by_evidence.items() if math.isfinite(z)}

    # Coordinates

    @property
    def _parts(self) -> list[str]:
        """Tables that both models have, their blocks, and matrices outside blocks such as those of a projector."""
        common = self.base.coordinates.keys() & self.suspect.coordinates.keys()
        named = (*_TABLES, "blocks")
        return [name for name in named if name in common] + sorted(common.difference(named))

    def _scores(self, parts: Sequence[str]) -> np.ndarray:
        """Score coordinates, summed over parts."""
        base, suspect = [], []
        for name in parts:
            first, second = self._part(name)
            base += first
            suspect += second
        return coordinate_scores(base, suspect, self._coordinate_period())

    def _coordinate_cells(self) -> Iterator[Cell]:
        reason = self.repeats["coordinates"].reason
        parts = self._parts
        yield self.whole(COORDINATES)
        yield self.whole(SIGNLESS)
        for name in parts:
            yield self._cell(COORDINATES, name, partial(self._part_terms, [name]), reason)
        # Kinds and blocks come from the heat map.
        for kind in self.kinds:
            why = reason or (f"agrees with {self.left_out[kind]} in both models" if kind in self.left_out else "")
            if kind == "router" and any(first != second for _, first, second in self.expert_pairs):
                why = why or "the experts stand in another order, and so do the rows of the router"
            yield self._cell(COORDINATES, kind, partial(self._map_terms, {kind}, None), why)
        kept = set(self.kinds) - set(self.left_out)
        for component, numbers in self.blocks:
            yield self._cell(COORDINATES, component, partial(self._map_terms, kept, numbers), reason)

    def _part_terms(self, parts: Sequence[str]) -> list[Term]:
        return [Term(self._scores(parts))]

    def _map_terms(self, kinds: set[str], numbers: frozenset[int] | None) -> list[Term]:
        return [Term(self._map_scores(kinds, numbers))]

    def _coordinate_period(self) -> int | None:
        return self.repeats["coordinates"].periods.get(self.base.width)

    def _part(self, name: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Return the sketches of a part; of the blocks matrix by matrix where a kind is left out."""
        if name in self.left_out:
            return [], []
        if name == "blocks" and any(kind in self.left_out for kind in self.kinds):
            return self._map_sketches(set(self.kinds) - set(self.left_out), None, limit=None)
        return [self.base.coordinates[name]], [self.suspect.coordinates[name]]

    def _map_scores(self, kinds: set[str], numbers: frozenset[int] | None) -> np.ndarray:
        base, suspect = self._map_sketches(kinds, numbers, limit=_CELL_COORDINATES)
        return coordinate_scores(base, suspect, self._coordinate_period())

    def _map_sketches(
        self, kinds: set[str], numbers: frozenset[int] | None, *, limit: int | None
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Pick matrices of these kinds from the heat map, in blocks paired without looking at coordinates."""
        places = [_by_place(component.heat_map) for component in (self.base, self.suspect)]
        base, suspect = [], []
        for pair in self._token_pairs:
            if numbers is not None and pair.base not in numbers:
                continue
            for kind in sorted(kinds):
                first, second = places[0].get((pair.base, kind)), places[1].get((pair.suspect, kind))
                if first is not None and second is not None:
                    base.append(first[:limit])
                    suspect.append(second[:limit])
        return base, suspect

    @cached_property
    def _token_pairs(self) -> list[BlockPair]:
        return paired_blocks(self.base, self.suspect, tokens_only=True)

    def by_module(self) -> list[ModuleZ]:
        """Compute z of every matrix of the heat map, from coordinates: description, no p."""
        places = [_by_place(component.heat_map) for component in (self.base, self.suspect)]
        partner = {pair.base: pair.suspect for pair in self._token_pairs}
        rows = []
        for (block, kind), sketch_D2 in places[0].items():
            other = places[1].get((None if block is None else partner.get(block, -1), kind))
            if other is None:
                continue
            try:
                pair = [sketch_D2[:_CELL_COORDINATES]], [other[:_CELL_COORDINATES]]
                z = z_of([Term(coordinate_scores(*pair, self._coordinate_period()))])
            except EvidenceError:
                z = math.nan
            rows.append(ModuleZ(_module(block, kind), z if math.isfinite(z) else None))
        return rows

    # Neurons and heads

    def _check_space(self, space: Space) -> None:
        if space == "token":
            self._check_tokens()
        elif self.base.width != self.suspect.width:
            raise EvidenceError(f"the widths differ ({self.base.width} and {self.suspect.width})")

    def _neuron_terms(self, space: Space, pairs: Sequence[NeuronPair] | None = None) -> list[Term]:
        self._check_space(space)
        pairs = self.neuron_pairs if pairs is None else pairs
        return neuron_terms(pairs, space, self.base.shape, self.repeats["neurons"].periods)

    def _head_terms(self) -> list[Term]:
        self._check_tokens()
        base, suspect = ({heads.block: heads for heads in model.heads} for model in (self.base, self.suspect))
        pairs = [(base[p.base], suspect[p.suspect]) for p in self.pairs if p.base in base and p.suspect in suspect]
        return head_terms(pairs)

    def _check_tokens(self) -> None:
        labels = {component.token_labels for component in (self.base, self.suspect)}
        if None in labels:
            raise EvidenceError("a model has no vocabulary, and so no token space")
        if len(labels) > 1:
            raise EvidenceError("one fingerprint names tokens by their strings, the other by their numbers")

    def _heads_reason(self) -> str:
        shared = self.repeats["heads"]
        return shared.reason or ("both models repeat their heads" if shared.is_shared else "")

    def _block_cells(self, evidence: str, terms: Callable[[], list[Term]], reason: str) -> Iterator[Cell]:
        """Yield the cells of one piece of evidence: the whole model, each block, each quarter."""
        made: list[Term] = []
        why = reason
        if not why:
            try:
                made = terms()
            except EvidenceError as error:
                why = str(error)
        yield self._cell(evidence, ALL, lambda: made, why, is_whole=True)
        for component, numbers in self.blocks:
            chosen = [term for term in made if term.block in numbers]
            yield self._cell(evidence, component, partial(list, chosen), why)

    def _expert_cells(self) -> Iterator[Cell]:
        """Yield the cells of each routed expert over all blocks, by its number in the model whose experts are told."""
        experts: dict[int, list[NeuronPair]] = {}
        for pair in self.neuron_pairs:
            for first, second in pair.pairs:
                number = first.expert if first.expert is not None else second.expert
                if number is not None and not first.is_shared:
                    experts.setdefault(number, []).append(NeuronPair(pair.block, ((first, second),)))
        if len(experts) < 2:
            return
        spaces: tuple[tuple[str, Space], ...] = ((RAW_NEURONS, "coordinates"), (TOKEN_NEURONS, "token"))
        for number, pairs in sorted(experts.items()):
            for evidence, space in spaces:
                terms = partial(self._neuron_terms, space, pairs)
                yield self._cell(evidence, f"experts/{number}", terms, self.repeats["neurons"].reason)

    @cached_property
    def matching(self) -> tuple[Matching | None, str]:
        """Neurons matched in token space, in coordinates where there is none; or why they are not."""
        if not self.options.matches_neurons:
            return None, "not asked for"
        try:
            self._check_tokens()
            space: Space = "token"
        except EvidenceError as error:
            if self.base.width != self.suspect.width:
                return None, str(error)
            space = "coordinates"
        if self.repeats["neurons"].is_shared:
            return None, "both models repeat their neurons"
        try:
            return match_neurons(self.neuron_pairs, space, self.base.shape), ""
        except EvidenceError as error:
            return None, str(error)

    def _repaired_cell(self) -> Cell:
        matching, reason = self.matching
        return self._cell(MATCHED, ALL, lambda: list(matching.terms) if matching else [], reason, is_whole=True)

    def _cell(
        self, evidence: str, component: str, terms: Callable[[], list[Term]], reason: str, *, is_whole: bool = False
    ) -> Cell:
        """Measure one cell: with permutations over the whole model, by the bound alone over a part of it."""
        if reason:
            return Cell(evidence, component, None, None, reason)
        try:
            made = terms()
            if not made:
                raise EvidenceError("no labels correspond")
            if self.is_joint:
                # Labels that repeat each other in several blocks have one permutation.
                made = joined(made, is_joint=True)
            order = math.fsum(term.log_order for term in made)
            if order < -math.log(self.options.alpha):
                raise EvidenceError(f"only {math.exp(order):.0f} orders of the labels: fewer than 1/alpha")
            z = z_of(made)
            if not math.isfinite(z):
                raise EvidenceError("every order of the labels gives the same statistic")
            if is_whole:
                certified = certified_sum(made, self.draws)
                return Cell(evidence, component, z, certified.log10_p, certified=certified)
            return Cell(evidence, component, z, bound_of(made))
        except EvidenceError as error:
            return Cell(evidence, component, None, None, str(error))


def _module(block: int | None, kind: str) -> str:
    """Name a matrix as parameters are named: "blocks/3/mlp/up", "embed"."""
    if block is None:
        return "embed" if kind == "embedding" else kind
    sublayer = "attention" if kind in _ATTENTION else "mlp"
    return f"blocks/{block}/{sublayer}/{kind}"


def _by_place(heat_map: Sequence[MatrixSketch]) -> dict[tuple[int | None, str], np.ndarray]:
    return {(cell.block, cell.matrix): cell.coordinates_D2 for cell in heat_map}


def _blocks_repeat(component: Component) -> bool:
    """Return whether blocks of one model repeat each other neuron by neuron."""
    blocks = by_block(component)
    first = [neurons[0] for neurons in blocks.values()]
    terms = []
    for left, right in [*zip(first, first[1:], strict=False), *((first[0], other) for other in first[2:])]:
        if left.total != right.total:
            continue
        try:
            terms.append(Term(neuron_scores(left, right, "coordinates", component.shape).combined))
        except EvidenceError:
            continue
    return bool(terms) and z_of(terms) >= REPEATING
