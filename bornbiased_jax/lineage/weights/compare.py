"""``--test weights``: coordinates or hidden units as labels, with and without an alignment."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
from typing_extensions import TypedDict

from bornbiased_jax.checkpoints import Checkpoint
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.verdict import Decision, Verdict
from bornbiased_jax.lineage.weights.align import Aligned, Unaligned
from bornbiased_jax.lineage.weights.align import align as align_models
from bornbiased_jax.lineage.weights.coordinates import BLOCKS, EMBEDDINGS, Module, coordinate_scores
from bornbiased_jax.lineage.weights.matching import match_units
from bornbiased_jax.lineage.weights.outcome import ALPHA, Basis, check_level, unstated
from bornbiased_jax.lineage.weights.tokens import SharedTokens, shared_tokens
from bornbiased_jax.lineage.weights.units import UnitScores, form_a, unit_scores
from bornbiased_jax.stats.certified import Certified, Group, certified_p, certify, permuted_group
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

Align = Literal["none", "rotation", "units"]
Labels = Literal["coordinates", "units"]
ALIGNS: tuple[Align, ...] = ("none", "rotation", "units")
LABELS: tuple[Labels, ...] = ("coordinates", "units")

AGREEMENT = 0.2
"""Two independent matchings that agree on more of the units than this mean a shared birth."""
LARGEST_UNRELATED_AGREEMENT = 0.036
"""The largest agreement measured between unrelated models: 800 pairs of 64 trained models and 64 births, 4 blocks of
128 or 192 units (``reproduce court``; a test holds them together). Wider models agree less (``birth_in_weights``).
"""
# Every pair of blocks is matched while that takes this many steps of the assignment; blocks paired by Gram otherwise.
_ALL_PAIRS = 4e9


class ModuleRow(TypedDict):
    """A row of ``by_module`` in JSON: "blocks/3/mlp/up" (blocks from 1), and its z; None where it cannot vary."""

    module: str
    z: float | None


class PartRow(TypedDict):
    """A row of ``by_part`` in JSON: "embeddings" or "blocks", and its z; None where it cannot vary."""

    part: str
    z: float | None


# Where a birth is left, from whether the embeddings and whether the blocks alone tell of it.
_WHERE = {
    (True, True): ": in the embeddings and in the blocks",
    (True, False): ": in the embeddings and the head alone, and not in the blocks (shared embeddings)",
    (False, True): ": in the blocks, and not in the embeddings",
    (False, False): "",
}

_SCALES = "scales moved between matrices of a norm, a head or a hidden unit"
_STREAM = ("rotations, signs and permutations of the residual stream", _SCALES, "changes inside attention",
           "inserted blocks", "a vector added to every column of the head")  # fmt: skip
_RENUMBERED = "renumbering a vocabulary whose tokenizer is not there"
_SIZES = (
    "Births of one seed at two sizes share numbers, because each matrix is drawn from its beginning: they share a "
    "birth, and are found to."
)
_BASES: dict[tuple[Align, Labels], tuple[str, tuple[str, ...], str]] = {
    ("none", "coordinates"): (
        "the residual coordinates",
        ("signs of residual coordinates", _SCALES, "a vector added to every column of the head"),
        "rotating or renumbering the residual coordinates",
    ),
    ("none", "units"): (
        "the hidden units of each MLP",
        (_SCALES, "changes inside attention and of the vocabulary"),
        "rotating, renumbering or negating the residual coordinates; reordering hidden units",
    ),
    ("rotation", "units"): (
        "the hidden units of each MLP",
        _STREAM,
        f"reordering hidden units (rolling them by one is enough: align units then); {_RENUMBERED}",
    ),
    ("units", "units"): (
        "the birth's up and down rows against its gate rows (its down rows against its up rows without a gate)",
        (*_STREAM, "the order of hidden units"),
        f"hidden units split, merged or trained anew; {_RENUMBERED}",
    ),
}


def weights_test(
    base: Checkpoint,
    suspect: Checkpoint,
    *,
    align: str = "none",
    labels: str | None = None,
    signed: bool = False,
    ids: Iterable[int] | None = None,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
) -> Verdict:
    """Test whether two models share initial weights, by their weights alone; two tensors are in memory at a time.

    Args:
        base: the model whose labelling was fixed first.
        suspect: the other.
        align: "none"; "rotation": Procrustes on the vocabulary's rows; "units": the same, then hidden units matched.
        labels: "coordinates" (the default without an alignment) or "units" (the only one with an alignment).
        signed: with coordinates, the plain trace Σ C[j, j] instead of Σ C[j, j]².
        ids: tokens to compare vocabularies on (those of some text); all that both have by default.
        alpha: the level asked for; same lineage where p ≤ alpha.
        num_permutations: drawn; p below 1/(1 + these) comes from the certified bound.
        seed: of the permutations.

    Returns:
        A verdict; ``undefined`` with the reason where the models have nothing of equal size to compare.

    Raises:
        InputError: an unknown alignment or labels, coordinates with an alignment, a bad level, or weights that are
            damaged or not finite.
    """
    kind = _kind(align, labels)
    check_level(alpha, num_permutations)
    tokens = shared_tokens(base, suspect, ids)
    basis = _basis(kind, alpha, tokens, signed)
    draw = {"num_permutations": num_permutations, "seed": seed}
    # Undefined where the initialization does not leave the labels exchangeable.
    reason = unstated(kind[1], base, suspect)
    if reason is not None:
        return basis.undefined(reason)
    if kind[1] == "coordinates":
        return _by_coordinates(basis, base, suspect, tokens, signed, draw)
    # Hidden units: align residual streams and blocks first.
    try:
        aligned = align_models(base, suspect, tokens, rotated=kind[0] != "none")
    except Unaligned as error:
        return basis.undefined(str(error))
    if kind[0] == "units":
        return _by_matching(basis, aligned, draw)
    return _by_units(basis, aligned, draw)


def both_unit_tests(
    base: Checkpoint,
    suspect: Checkpoint,
    *,
    aligned: Aligned | Unaligned,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
) -> tuple[Verdict, Verdict]:
    """Run :func:`weights_test` aligned by rotation and by units: the same two verdicts, each block read once.

    Args:
        base, suspect: the models.
        aligned: by rotation, on all token ids that both have; or why they cannot be.
        alpha, num_permutations, seed: as of :func:`weights_test`.

    Raises:
        InputError: as :func:`weights_test`.
    """
    check_level(alpha, num_permutations)
    tokens = shared_tokens(base, suspect)
    rotated, matched = (_basis((align, "units"), alpha, tokens) for align in ("rotation", "units"))
    draw = {"num_permutations": num_permutations, "seed": seed}
    # Both are undefined for the same reasons.
    reason = unstated("units", base, suspect) or (str(aligned) if isinstance(aligned, Unaligned) else None)
    if isinstance(aligned, Unaligned) or reason is not None:
        return rotated.undefined(str(reason)), matched.undefined(str(reason))
    outcomes: dict[tuple[int, int], tuple[float, Certified | None]] = {}
    has_birth = base.is_initial or suspect.is_initial

    def match_and_keep(pair: tuple[int, int], scores: UnitScores) -> None:
        """Match the units while their scores are there."""
        units = match_units(scores)
        outcomes[pair] = units.agreement, certified_p(units.scores_KK, **draw) if has_birth else None

    # The scores of a block serve both tests while they are in memory.
    by_rotation = _by_units(rotated, aligned, draw, match_and_keep)
    return by_rotation, _by_matching(matched, aligned, draw, outcomes)


def _kind(align: str, labels: str | None) -> tuple[Align, Labels]:
    if align not in ALIGNS:
        raise InputError(f"unknown alignment {align!r}: choose from {', '.join(ALIGNS)}")
    labels = labels or ("coordinates" if align == "none" else "units")
    if labels not in LABELS:
        raise InputError(f"unknown labels {labels!r}: choose from {', '.join(LABELS)}")
    if align != "none" and labels == "coordinates":
        raise InputError(
            f"align={align!r} looks at coordinates, so they cannot be the labels: permute units, or align nothing"
        )
    return next((a, b) for a, b in _BASES if (a, b) == (align, labels))


def _basis(kind: tuple[Align, Labels], alpha: float, tokens: SharedTokens, signed: bool = False) -> Basis:
    permuted, invariant_to, evaded_by = _BASES[kind]
    facts: dict[str, Any] = {"align": kind[0], "labels": kind[1], "num_tokens": len(tokens)}
    facts["tokens_matched_by"] = tokens.matched_by
    if kind[1] == "coordinates":
        facts["statistic_form"] = "sum of C[j, j]" if signed else "sum of C[j, j] squared"
        if signed:
            invariant_to = invariant_to[1:]
    elif signed:
        raise InputError("a signed statistic goes with labels coordinates: leave it out")
    return Basis("weights", alpha, permuted, invariant_to, evaded_by, facts)


def _by_coordinates(
    basis: Basis,
    base: Checkpoint,
    suspect: Checkpoint,
    tokens: SharedTokens,
    signed: bool,
    draw: dict[str, int],
) -> Verdict:
    widths = base.cfg.d_model, suspect.cfg.d_model
    if widths[0] != widths[1]:
        return basis.undefined(
            f"the widths differ ({widths[0]} and {widths[1]}): no coordinate of one model corresponds to one of the "
            "other; align by rotation"
        )
    scores_DD, by_module, by_part = coordinate_scores(base, suspect, tokens, signed=signed)
    if not by_module:
        return basis.undefined("no matrix of the two models has the same shape and holds other numbers than zeros")
    certified = certified_p(scores_DD, **draw)
    parts = {part.name for part in by_part if part.z > -NormalDist().inv_cdf(basis.alpha)}
    return basis.decide(
        certified,
        base,
        suspect,
        where=_WHERE[EMBEDDINGS in parts, BLOCKS in parts],
        by_module=_json(by_module),
        by_part=[PartRow(part=part.name, z=_finite(part.z)) for part in by_part],
        shared_embeddings=certified.p_value <= basis.alpha and parts == {EMBEDDINGS},
        notes=_about_sizes(base, suspect),
    )


def _scores(aligned: Aligned, pair: tuple[int, int]) -> UnitScores:
    return unit_scores(aligned.base, aligned.suspect, pair, aligned.turn_DD)


def _about_sizes(base: Checkpoint, suspect: Checkpoint, units: str = "") -> list[str]:
    """List the notes on models of two sizes.

    Args:
        base, suspect: the models.
        units: which hidden units are compared.
    """
    sizes = [(reader.cfg.d_model, reader.cfg.d_ff) for reader in (base, suspect)]
    unequal = units and sizes[0][1] != sizes[1][1]
    notes = [f"The MLPs have {sizes[0][1]} and {sizes[1][1]} hidden units: {units}."] if unequal else []
    return [*notes, _SIZES] if base.is_initial and suspect.is_initial and sizes[0] != sizes[1] else notes


def _by_units(
    basis: Basis,
    aligned: Aligned,
    draw: dict[str, int],
    on_scores: Callable[[tuple[int, int], UnitScores], None] | None = None,
) -> Verdict:
    by_module: list[Module] = []

    def groups() -> Iterator[Group]:
        for index, pair in enumerate(aligned.pairs):
            scores = _scores(aligned, pair)
            by_module.extend(scores.by_module)
            if on_scores is not None:
                on_scores(pair, scores)
            scores_FF = form_a(scores)
            del scores
            yield permuted_group(scores_FF, index=index, **draw)

    certified = certify(groups())
    blocks = _blocks(aligned.pairs)
    return basis.decide(
        certified,
        aligned.base,
        aligned.suspect,
        by_module=_json(by_module),
        blocks=blocks,
        notes=_about_sizes(aligned.base, aligned.suspect, "the first of each are compared, as many as both have"),
    )


def _by_matching(
    basis: Basis,
    aligned: Aligned,
    draw: dict[str, int],
    outcomes: dict[tuple[int, int], tuple[float, Certified | None]] | None = None,
) -> Verdict:
    """Test matched hidden units, block by block; of a birth by the best pair of blocks.

    Args:
        basis: what the test rests on.
        aligned: the models, with their pairs of blocks.
        draw: number of permutations and their seed.
        outcomes: of some pairs of blocks the agreement, and of births the p, where they are known already.
    """
    base, suspect, paired = aligned.base, aligned.suspect, aligned.pairs
    outcome_of = {} if outcomes is None else outcomes
    has_birth = base.is_initial or suspect.is_initial
    about = _about_sizes(base, suspect, "each of the smaller is matched with one of the larger")

    def matched(pair: tuple[int, int]) -> tuple[float, Certified | None]:
        if pair not in outcome_of:
            units = match_units(_scores(aligned, pair))
            outcome_of[pair] = units.agreement, certified_p(units.scores_KK, **draw) if has_birth else None
        return outcome_of[pair]

    if not has_birth:
        return _by_agreement(basis, paired, [matched(pair)[0] for pair in paired], about)
    # Try every pair of blocks where that is cheap, else the aligned ones.
    all_pairs = [
        (base_layer, suspect_layer)
        for base_layer in range(base.cfg.num_layers)
        for suspect_layer in range(suspect.cfg.num_layers)
    ]
    steps = len(all_pairs) * float(base.cfg.d_ff) * suspect.cfg.d_ff * min(base.cfg.d_ff, suspect.cfg.d_ff)
    tried = all_pairs if steps <= _ALL_PAIRS else paired
    # Keep the pair with the smallest p, ties by z.
    best: tuple[tuple[int, int], Certified] | None = None
    by_module = []
    for pair in tried:
        certified = matched(pair)[1]
        assert certified is not None
        if pair in paired:
            by_module.append(Module(f"blocks/{pair[0] + 1}/mlp", certified.z))
        if math.isfinite(certified.z) and (best is None or _rank(certified) < _rank(best[1])):
            best = pair, certified
    if best is None:
        return basis.undefined("every pairing of hidden units gives the same statistic")
    pair, certified = best
    return basis.decide(
        certified,
        base,
        suspect,
        tries=len(tried),
        by_module=_json(by_module),
        blocks=_blocks([pair]),
        num_pairs=len(tried),
        agreement=matched(pair)[0],
        notes=[*about, f"p is that of the best of {len(tried)} pairs of blocks, times their number."],
    )


def _by_agreement(basis: Basis, pairs: list[tuple[int, int]], agreements: list[float], about: list[str]) -> Verdict:
    """Compare trained models by how often two independent matchings of hidden units agree; never gives a p."""
    agreement = float(np.mean(agreements))
    same = agreement > AGREEMENT
    decision: Decision = "same-lineage" if same else "unrelated"
    reason = (
        f"two independent matchings of the hidden units agree on {agreement:.1%} of them, "
        f"{'more' if same else 'not more'} than {AGREEMENT:.0%}; independently trained models were seen to agree on "
        f"{LARGEST_UNRELATED_AGREEMENT:.1%} at most"
    )
    by_block = [
        {"module": f"blocks/{pair[0] + 1}/mlp", "agreement": value}
        for pair, value in zip(pairs, agreements, strict=True)
    ]
    nothing = "nothing: between trained models no order of hidden units is exchangeable once they were matched"
    detail = dataclasses.replace(basis, permuted=nothing).detail(
        "population",
        agreement=agreement,
        largest_unrelated_agreement=LARGEST_UNRELATED_AGREEMENT,
        agreement_threshold=AGREEMENT,
        agreement_by_block=by_block,
        blocks=_blocks(pairs),
        notes=[*about, "No p-value exists here: the agreement is held against a population of unrelated models."],
    )
    return Verdict(decision, reason, None, None, None, basis.test, None, basis.alpha, detail)


def _rank(certified: Certified) -> tuple[float, float]:
    return certified.log10_p, -certified.z


def _blocks(pairs: list[tuple[int, int]]) -> list[list[int]]:
    """Number pairs of blocks as a reader counts them, from 1."""
    return [[base_layer + 1, suspect_layer + 1] for base_layer, suspect_layer in pairs]


def _json(by_module: list[Module]) -> list[ModuleRow]:
    return [ModuleRow(module=module.name, z=_finite(module.z)) for module in by_module]


def _finite(z: float) -> float | None:
    return z if math.isfinite(z) else None
