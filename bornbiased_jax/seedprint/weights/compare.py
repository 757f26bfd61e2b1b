"""``--test weights``: coordinates or hidden units as labels, with and without an alignment."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import numpy as np

from bornbiased_jax.checkpoints.reader import WeightsReader
from bornbiased_jax.errors import InputError
from bornbiased_jax.seedprint.verdict import Decision, Verdict
from bornbiased_jax.seedprint.weights.align import Unaligned, match_layers, mlp_modules, rotation
from bornbiased_jax.seedprint.weights.coordinates import Module, coordinate_scores
from bornbiased_jax.seedprint.weights.matching import Matched, match_units
from bornbiased_jax.seedprint.weights.outcome import ALPHA, Basis, check_level
from bornbiased_jax.seedprint.weights.tokens import shared_ids
from bornbiased_jax.seedprint.weights.units import form_a, unit_cosines
from bornbiased_jax.stats.certified import Certified, Group, certified_p, certify, permuted_group
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS

Align = Literal["none", "rotation", "units"]
Labels = Literal["coordinates", "units"]
ALIGNS: tuple[Align, ...] = ("none", "rotation", "units")
LABELS: tuple[Labels, ...] = ("coordinates", "units")

AGREEMENT = 0.2
"""Two independent matchings that agree on more of the units than this mean a shared birth."""
LARGEST_UNRELATED_AGREEMENT = 0.03
"""The largest agreement measured between independently trained models (4 blocks of 256 units, the same text)."""
# Every pair of blocks is matched while that takes this many steps of the assignment; blocks paired by Gram otherwise.
_ALL_PAIRS = 4e9

_SCALES = "scales moved between matrices of a norm, a head or a hidden unit"
_STREAM = ("rotations, signs and permutations of the residual stream", _SCALES, "changes inside attention",
           "inserted blocks", "a vector added to every column of the head")  # fmt: skip
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
        "reordering hidden units (rolling them by one is enough: align units then)",
    ),
    ("units", "units"): (
        "the birth's up and down rows against its gate rows (its down rows against its up rows without a gate)",
        (*_STREAM, "the order of hidden units"),
        "hidden units split, merged or trained anew",
    ),
}


def weights_test(
    base: WeightsReader,
    suspect: WeightsReader,
    *,
    align: str = "none",
    labels: str | None = None,
    signed: bool = False,
    ids: Iterable[int] | None = None,
    alpha: float = ALPHA,
    num_permutations: int = NUM_PERMUTATIONS,
    seed: int = 0,
) -> Verdict:
    """Test whether two models share a birth, by their weights alone; two tensors are in memory at a time.

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
    ids_I = shared_ids(base, suspect, ids)
    permuted, invariant_to, evaded_by = _BASES[kind]
    facts: dict[str, Any] = {"align": kind[0], "labels": kind[1], "num_tokens": len(ids_I)}
    if kind[1] == "coordinates":
        facts["statistic_form"] = "sum of C[j, j]" if signed else "sum of C[j, j] squared"
        if signed:
            invariant_to = invariant_to[1:]
    elif signed:
        raise InputError("a signed statistic goes with labels coordinates: leave it out")
    basis = Basis("weights", alpha, permuted, invariant_to, evaded_by, facts)
    draw = {"num_permutations": num_permutations, "seed": seed}
    if kind[1] == "coordinates":
        return _by_coordinates(basis, base, suspect, ids_I, signed, draw)
    reason = _unfit(base, suspect, kind[0])
    if reason is not None:
        return basis.undefined(reason)
    turn_DD = None
    try:
        if kind[0] != "none":
            turn_DD = rotation(base, suspect, ids_I)
    except Unaligned as error:
        return basis.undefined(str(error))
    if kind[0] == "units":
        return _by_matching(basis, base, suspect, turn_DD, draw)
    return _by_units(basis, base, suspect, turn_DD, draw)


def _kind(align: str, labels: str | None) -> tuple[Align, Labels]:
    if align not in ALIGNS:
        raise InputError(f"unknown alignment {align!r}: choose from {', '.join(ALIGNS)}")
    labels = labels or ("coordinates" if align == "none" else "units")
    if labels not in LABELS:
        raise InputError(f"unknown labels {labels!r}: choose from {', '.join(LABELS)}")
    if align != "none" and labels == "coordinates":
        raise InputError(
            f"--align {align} looks at coordinates, so they cannot be the labels: use --labels units, or no alignment"
        )
    return next((a, b) for a, b in _BASES if (a, b) == (align, labels))


def _by_coordinates(
    basis: Basis, base: WeightsReader, suspect: WeightsReader, ids_I: np.ndarray, signed: bool, draw: dict[str, int]
) -> Verdict:
    widths = base.cfg.d_model, suspect.cfg.d_model
    if widths[0] != widths[1]:
        return basis.undefined(
            f"the widths differ ({widths[0]} and {widths[1]}): no coordinate of one model corresponds to one of the "
            "other; align by rotation"
        )
    scores_DD, by_module = coordinate_scores(base, suspect, ids_I, signed=signed)
    if not by_module:
        return basis.undefined("no matrix of the two models has the same shape and holds other numbers than zeros")
    certified = certified_p(scores_DD, **draw)
    return basis.decide(certified, base, suspect, by_module=_json(by_module))


def _unfit(base: WeightsReader, suspect: WeightsReader, align: Align) -> str | None:
    for name, reader in (("base", base), ("suspect", suspect)):
        if not mlp_modules(reader):
            return f"the {name} has no MLP, and so no hidden units to permute"
    if mlp_modules(base) != mlp_modules(suspect):
        return "one model's MLP is gated, the other's is not: their hidden units do not correspond"
    if base.cfg.d_ff != suspect.cfg.d_ff:
        return (
            f"the MLPs have {base.cfg.d_ff} and {suspect.cfg.d_ff} hidden units: no unit of one model corresponds to "
            "one of the other"
        )
    if align == "none" and base.cfg.d_model != suspect.cfg.d_model:
        return f"the widths differ ({base.cfg.d_model} and {suspect.cfg.d_model}): align by rotation"
    return None


def _by_units(
    basis: Basis, base: WeightsReader, suspect: WeightsReader, turn_DD: np.ndarray | None, draw: dict[str, int]
) -> Verdict:
    identity_DD = np.eye(base.cfg.d_model, dtype=np.float32)
    pairs = match_layers(base, suspect, identity_DD if turn_DD is None else turn_DD)
    by_module: list[Module] = []

    def groups() -> Iterator[Group]:
        for index, pair in enumerate(pairs):
            scores_FF, modules = form_a(base, suspect, pair, turn_DD)
            by_module.extend(modules)
            yield permuted_group(scores_FF, index=index, **draw)

    certified = certify(groups())
    return basis.decide(certified, base, suspect, by_module=_json(by_module), blocks=_blocks(pairs))


def _by_matching(
    basis: Basis, base: WeightsReader, suspect: WeightsReader, turn_DD: np.ndarray | None, draw: dict[str, int]
) -> Verdict:
    assert turn_DD is not None
    paired = match_layers(base, suspect, turn_DD)
    found: dict[tuple[int, int], Matched] = {}

    def matched(pair: tuple[int, int]) -> Matched:
        return match_units(unit_cosines(base, suspect, pair, turn_DD))

    if not (base.is_birth or suspect.is_birth):
        found = {pair: matched(pair) for pair in paired}
        return _by_agreement(basis, paired, [found[pair].agreement for pair in paired])
    every = [(ours, theirs) for ours in range(base.cfg.num_layers) for theirs in range(suspect.cfg.num_layers)]
    tried = every if len(every) * float(base.cfg.d_ff) ** 3 <= _ALL_PAIRS else paired
    best: tuple[tuple[int, int], Certified] | None = None
    agreements: dict[tuple[int, int], float] = {}
    by_module = []
    for pair in tried:
        units = matched(pair)
        agreements[pair] = units.agreement
        certified = certified_p(units.scores_FF, **draw)
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
        agreement=agreements[pair],
        notes=[f"p is that of the best of {len(tried)} pairs of blocks, times their number."],
    )


def _by_agreement(basis: Basis, pairs: list[tuple[int, int]], agreements: list[float]) -> Verdict:
    """Between trained models: how often two independent matchings of hidden units say the same, and never a p."""
    agreement = float(np.mean(agreements))
    same = agreement > AGREEMENT
    decision: Decision = "same-lineage" if same else "unrelated"
    reason = (
        f"two independent matchings of the hidden units agree on {agreement:.1%} of them, "
        f"{'more' if same else 'not more'} than {AGREEMENT:.0%}; independently trained models were seen to agree on "
        f"{LARGEST_UNRELATED_AGREEMENT:.0%} at most"
    )
    by_block = [
        {"module": f"blocks/{pair[0] + 1}/mlp", "agreement": value}
        for pair, value in zip(pairs, agreements, strict=True)
    ]
    nothing = "nothing: between trained models no order of hidden units is exchangeable once they were matched"
    detail = dataclasses.replace(basis, permuted=nothing).detail(
        "population",
        log10_p_bound=None,
        log10_p_moments=None,
        agreement=agreement,
        largest_unrelated_agreement=LARGEST_UNRELATED_AGREEMENT,
        agreement_threshold=AGREEMENT,
        agreement_by_block=by_block,
        blocks=_blocks(pairs),
        by_module=[],
        notes=["No p-value exists here: the agreement is held against a population of unrelated models."],
    )
    return Verdict(decision, reason, None, None, None, basis.test, None, basis.alpha, detail)


def _rank(certified: Certified) -> tuple[float, float]:
    return certified.log10_p, -certified.z


def _blocks(pairs: list[tuple[int, int]]) -> list[list[int]]:
    """Pairs of blocks as a reader counts them, from 1."""
    return [[ours + 1, theirs + 1] for ours, theirs in pairs]


def _json(by_module: list[Module]) -> list[dict[str, Any]]:
    return [{"module": module.name, "z": module.z if math.isfinite(module.z) else None} for module in by_module]
