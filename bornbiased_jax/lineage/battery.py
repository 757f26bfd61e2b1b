"""The battery: every piece of evidence on two fingerprints, over every component, with one Holm correction.

The family is fixed by the sizes of the two models before a number is compared: each piece of evidence over the whole
model, and over each kind of matrix, each block and each quarter of the depth for which it is defined. What is
identical is named first; what a formula decided in both models is left out and reported.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from bornbiased_jax import progress
from bornbiased_jax.checkpoints.roles import component_title
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.component_pair import NEURON_SPACES, ComponentPair
from bornbiased_jax.lineage.evidence import (
    COORDINATES,
    MATCHED,
    RAW_NEURONS,
    SIGNLESS,
    TOKEN_HEADS,
    TOKEN_NEURONS,
    EvidenceError,
    check_signs,
)
from bornbiased_jax.lineage.fingerprints import LARGE, Component, Fingerprint, TensorRecord
from bornbiased_jax.lineage.matching import Matching
from bornbiased_jax.lineage.pairing import BlockPair, FurtherBlock
from bornbiased_jax.stats.certified import Certified
from bornbiased_jax.stats.multiple import holm_log10
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS
from bornbiased_jax.stats.terms import SCREEN, Term, bound_of, certified_sum, join_terms, z_of

ALPHA = 1e-4
"""Level of a verdict on weights unless another is given."""
ALL = "all"
# Blocks whose neurons are matched where MLPs are wide: an assignment of 11,008 takes half a minute.
_WIDE_BLOCKS = 4
# Shallower models have no quarters alongside their blocks.
_MIN_QUARTERED = 8


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of a run of the battery.

    Attributes:
        alpha: level of the decision.
        num_permutations, seed: of the permutations.
        has_untrained: whether one model is known to be an untrained initialization, named beforehand.
        matches_neurons: whether neurons are matched, where all of them are stored.
        is_quick: whether to stop at quick bounds: no permutations, and no z of single matrices.
        neurons: of each MLP that the tests look at, the first ones; all that are stored unless given. Those of wider
            MLPs are matched in a few blocks, and where nothing else agrees.
    """

    alpha: float = ALPHA
    num_permutations: int = NUM_PERMUTATIONS
    seed: int = 0
    has_untrained: bool = False
    matches_neurons: bool = True
    is_quick: bool = False
    neurons: int | None = None


@dataclasses.dataclass(frozen=True)
class ComponentTest:
    """One member of the family: a piece of evidence over a component.

    Attributes:
        evidence: a key of :data:`.evidence.KINDS`.
        component: "all", "embedding", "up", "blocks/3", "quarters/2", "experts/5" …; of a component of the model other
            than its first one with the name before it: "vision/all".
        z: of the summed traces; None where undefined.
        log10_p: a valid p; None where undefined.
        reason: why it is undefined.
        certified: of the cells over the whole model, all that was measured.
        log10_adjusted: Holm's p over the family, 0 where undefined.
    """

    evidence: str
    component: str
    z: float | None
    log10_p: float | None
    reason: str = ""
    certified: Certified | None = None
    log10_adjusted: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class WeightsComparison:
    """The result of the battery on two fingerprints.

    Attributes:
        cells: the family.
        by_module: z of the coordinates of single matrices, "blocks/3/mlp/up" or "embed", None where nothing varies:
            description.
        components: parts of a model that both have: "language", "vision" …; the first has no prefix in cells.
        kinds: kinds of block matrices that both have, named as in cells.
        pairs: blocks that correspond.
        further_blocks: blocks of the deeper model that are in no pair.
        experts: experts that correspond, (block, base, suspect); empty where a model has none.
        matching: of the neurons; None where it is undefined.
        matching_reason: why it is.
        left_out: kinds of matrices that agree with a formula in both models, and the formula.
        equal: tensors of the base that the suspect has, bit for bit, at any place.
        num_tensors: tensors of the base that a seed may have decided.
        is_identical: whether all tensors of both are equal.
        sketch_difference: the largest difference of sketches where shapes agree.
        alpha: level of the decision.
    """

    cells: tuple[ComponentTest, ...]
    by_module: Mapping[str, float | None]
    components: tuple[str, ...]
    kinds: tuple[str, ...]
    pairs: tuple[BlockPair, ...]
    further_blocks: tuple[FurtherBlock, ...]
    experts: tuple[tuple[int, int, int], ...]
    matching: Matching | None
    matching_reason: str
    left_out: Mapping[str, str]
    equal: tuple[str, ...]
    num_tensors: int
    is_identical: bool
    sketch_difference: float | None
    alpha: float

    def is_significant(self, log10_p: float) -> bool:
        """Return whether a corrected p reaches the level."""
        return log10_p <= math.log10(self.alpha)

    def adjusted(self, evidence: str | None = None, component: str | None = None) -> float:
        """Return the least adjusted log₁₀ p of the cells with this evidence and component; 0 without any."""
        return min(
            (
                cell.log10_adjusted
                for cell in self.cells
                if evidence in (None, cell.evidence) and component in (None, cell.component)
            ),
            default=0.0,
        )


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
    base: Fingerprint,
    suspect: Fingerprint,
    options: Options = Options(),
    *,
    further: Sequence[ComponentTest] = (),
) -> WeightsComparison:
    """Compare two fingerprints of weights by everything they hold; ``further`` cells of other tests join the family.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    first, second = (
        model if options.neurons is None else model.first_neurons(options.neurons) for model in (base, suspect)
    )
    pairs = {name: ComponentPair(first, second, name) for name in _shared_components(base, suspect)}
    quiet = sum(math.prod(record.array_shape) for record in base.tensors) < LARGE
    (main_name, main), *further_pairs = pairs.items()
    prefixed = {"": main, **{f"{name}/": pair for name, pair in further_pairs}}
    cells: list[ComponentTest] = []
    for prefix, pair in prefixed.items():
        # Pair labels of this component, and measure all its cells.
        # Counted apart: jobs that were made before would hold the terms of those that are done.
        count = sum(1 for _ in _jobs(pair, options))
        title = component_title(prefix.rstrip("/") or main_name)
        with progress.bar(count, f"comparing the {title}s", "comparisons", quiet) as advance:
            for job in _jobs(pair, options):
                cell = _cell(pair, job, options)
                cells.append(dataclasses.replace(cell, component=prefix + cell.component))
                advance()
    cells += further
    # One Holm correction over all; undefined cells count as p = 1.
    adjusted = holm_log10([cell.log10_p or 0.0 for cell in cells])
    by_module = {} if options.is_quick else {prefix: pair.by_module() for prefix, pair in prefixed.items()}
    left_out = {prefix + kind: formula for prefix, pair in prefixed.items() for kind, formula in pair.left_out.items()}
    matching, matching_reason = None, "not asked for"
    if options.matches_neurons:
        is_wide = any(not mlp.is_complete for model in (main.base, main.suspect) for mlp in model.neurons)
        try:
            if not is_wide or options.neurons is None:
                matching = main.matching
            elif min(adjusted, default=0.0) <= math.log10(options.alpha):
                raise EvidenceError("other evidence decides; --neurons all matches them all the same")
            else:
                matching = main_pair(base, suspect).match(_WIDE_BLOCKS)
            matching_reason = ""
        except EvidenceError as error:
            matching_reason = str(error)
    # What is the same bit for bit.
    equal, num_tensors, is_identical = _equal_tensors(base, suspect, left_out)
    return WeightsComparison(
        cells=tuple(
            dataclasses.replace(cell, log10_adjusted=float(log10_p))
            for cell, log10_p in zip(cells, adjusted, strict=True)
        ),
        by_module={prefix + module: z for prefix, modules in by_module.items() for module, z in modules.items()},
        components=tuple(pairs),
        kinds=tuple(prefix + kind for prefix, pair in prefixed.items() for kind in pair.kinds),
        pairs=tuple(main.blocks),
        further_blocks=tuple(main.further_blocks),
        experts=tuple(main.expert_pairs),
        matching=matching,
        matching_reason=matching_reason,
        left_out=left_out,
        equal=equal,
        num_tensors=num_tensors,
        is_identical=is_identical,
        sketch_difference=_sketch_difference(base.components[main_name], suspect.components[main_name]),
        alpha=options.alpha,
    )


def screening_z(base: Fingerprint, suspect: Fingerprint) -> dict[str, float]:
    """Estimate z of every piece of evidence over the whole model from few pairs of labels, where it is defined.

    Matrices that a formula decided are looked for where any z reaches the screen: they would only raise it.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    check_comparable(base, suspect)
    z_by_evidence = _screening_z(base, suspect, finds_formulas=False)
    if max(z_by_evidence.values(), default=-math.inf) < SCREEN:
        return z_by_evidence
    return _screening_z(base, suspect, finds_formulas=True)


def _screening_z(base: Fingerprint, suspect: Fingerprint, *, finds_formulas: bool) -> dict[str, float]:
    z_by_evidence: dict[str, float] = {}
    for name in base.components:
        if name in suspect.components:
            pair = ComponentPair(base, suspect, name, finds_formulas=finds_formulas)
            for evidence, z in pair.screening_z().items():
                z_by_evidence[evidence] = max(z, z_by_evidence.get(evidence, -math.inf))
    return z_by_evidence


def main_pair(base: Fingerprint, suspect: Fingerprint) -> ComponentPair:
    """Pair the labels of the first component that both models have, once for every piece of evidence over it.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    return ComponentPair(base, suspect, _shared_components(base, suspect)[0])


def single_cell(pair: ComponentPair, evidence: str, options: Options) -> ComponentTest:
    """Measure one piece of evidence over the whole of a component."""
    return _cell(pair, _Job(evidence, ALL, partial(pair.terms, evidence)), options)


def _shared_components(base: Fingerprint, suspect: Fingerprint) -> list[str]:
    check_comparable(base, suspect)
    names = [name for name in base.components if name in suspect.components]
    if not names:
        raise InputError("the models have no component in common: name models of one kind")
    return names


# ---------------------------------------------------------------------------------------------------------------------
# Cells


class _Job(NamedTuple):
    """A cell that is to be measured."""

    evidence: str
    component: str
    make_terms: Callable[[], list[Term]]


def _jobs(pair: ComponentPair, options: Options) -> Iterator[_Job]:
    """Yield the family's cells of one component, in an order fixed by sizes alone."""
    ranges = _block_ranges(pair)
    # Coordinates: the whole model, tables, kinds of matrices, blocks.
    for evidence in (COORDINATES, SIGNLESS):
        yield _Job(evidence, ALL, partial(pair.terms, evidence))
    for part in pair.parts:
        yield _Job(COORDINATES, part, partial(pair.part_terms, [part]))
    for kind in pair.kinds:
        yield _Job(COORDINATES, kind, partial(pair.kind_terms, kind))
    for component, blocks in ranges.items():
        yield _Job(COORDINATES, component, partial(pair.block_terms, blocks))
    # Neurons and heads: scored once, for the whole model and for its blocks.
    for evidence in (RAW_NEURONS, TOKEN_NEURONS, TOKEN_HEADS):
        make_terms = cache(partial(pair.terms, evidence))
        yield _Job(evidence, ALL, make_terms)
        for component, blocks in ranges.items():
            yield _Job(evidence, component, partial(_terms_of_blocks, make_terms, blocks))
    if len(pair.experts) > 1:
        # Each routed expert over all blocks.
        for number, mlps in pair.experts.items():
            for evidence in NEURON_SPACES:
                yield _Job(evidence, f"experts/{number}", partial(pair.terms, evidence, mlps))
    if options.has_untrained:
        yield _Job(MATCHED, ALL, partial(pair.terms, MATCHED))


def _block_ranges(pair: ComponentPair) -> dict[str, frozenset[int]]:
    """Return each block of the shallower model, and quarters of the depth, with the blocks of the base in each."""
    numbers = [blocks.base for blocks in pair.blocks]
    ranges = {f"blocks/{number}": frozenset([number]) for number in numbers}
    if len(numbers) >= _MIN_QUARTERED:
        quarters = np.array_split(np.array(numbers), 4)
        ranges |= {f"quarters/{i}": frozenset(quarter.tolist()) for i, quarter in enumerate(quarters, 1)}
    return ranges


def _terms_of_blocks(make_terms: Callable[[], list[Term]], blocks: frozenset[int]) -> list[Term]:
    return [term for term in make_terms() if term.block in blocks]


def _cell(pair: ComponentPair, job: _Job, options: Options) -> ComponentTest:
    """Measure one cell: with permutations over the whole model, by the bound alone over a part of it."""
    try:
        # Labels that correspond, with enough orders for a p at this level.
        terms = job.make_terms()
        if not terms:
            raise EvidenceError("no labels correspond")
        if pair.is_joint:
            # Labels that repeat each other in several blocks have one permutation.
            terms = join_terms(terms, is_joint=True)
        order = math.fsum(term.log_order for term in terms)
        if order < -math.log(options.alpha):
            raise EvidenceError(f"only {math.exp(order):.6g} orders of the labels: fewer than 1/alpha")
        z = z_of(terms)
        if not math.isfinite(z):
            raise EvidenceError("every order of the labels gives the same statistic")
        # Coordinates up to sign have their signs asked across matrices.
        if job.evidence != SIGNLESS:
            check_signs(z, terms)
    except EvidenceError as error:
        return ComponentTest(job.evidence, job.component, None, None, str(error))
    # A part of the model has the bound alone: permutations are counted over the whole.
    if job.component != ALL or options.is_quick:
        return ComponentTest(job.evidence, job.component, z, bound_of(terms, is_quick=options.is_quick))
    certified = certified_sum(terms, options.num_permutations, options.seed)
    return ComponentTest(job.evidence, job.component, z, certified.log10_p, certified=certified)


# ---------------------------------------------------------------------------------------------------------------------
# Tensors and sketches


def _equal_tensors(
    base: Fingerprint, suspect: Fingerprint, left_out: Mapping[str, str]
) -> tuple[tuple[str, ...], int, bool]:
    """List tensors of the base that the suspect has at any place, bit for bit.

    Constant tensors and those of two repeated numbers are no evidence, and neither is what a formula decided.

    Returns:
        Their paths; how many tensors of the base are evidence; whether all tensors of both models are equal.
    """
    # Tensors that a seed may have decided, in both models.
    kinds = {kind.rpartition("/")[2] for kind in left_out}

    def evidence(model: Fingerprint) -> list[TensorRecord]:
        return [record for record in model.tensors if record.is_evidence and record.path.split("/")[-2] not in kinds]

    digests = {record.digest for record in evidence(suspect)}
    base_evidence = evidence(base)
    paths = tuple(record.path for record in base_evidence if record.digest in digests)
    base_tensors, suspect_tensors = (
        sorted((record.path, record.digest) for record in model.tensors) for model in (base, suspect)
    )
    return paths, len(base_evidence), base_tensors == suspect_tensors and bool(paths)


def _sketch_difference(base: Component, suspect: Component) -> float | None:
    """Return the largest difference of stored entries in units of the sketch's resolution; None where shapes differ."""
    pairs = _sketches(base), _sketches(suspect)
    if [sketch.shape for sketch in pairs[0]] != [sketch.shape for sketch in pairs[1]]:
        return None
    differences = (
        np.abs(first.astype(np.int16) - second.astype(np.int16)) for first, second in zip(*pairs, strict=True)
    )
    return max((int(difference.max()) for difference in differences if difference.size), default=0) / 127


def _sketches(component: Component) -> list[np.ndarray]:
    arrays = [component.coordinates[name] for name in sorted(component.coordinates)]
    for neurons in component.neurons:
        for sketches in (neurons.token, neurons.coordinates):
            arrays += [sketches[name] for name in sorted(sketches)]
    for heads in component.heads:
        arrays += [heads.query_key, heads.value_output]
    return arrays
