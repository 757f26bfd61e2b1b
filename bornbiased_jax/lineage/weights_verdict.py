"""Decide on two fingerprints of weights: identity first, then the battery or one piece of evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bornbiased_jax.lineage.battery import (
    ALL,
    ComponentTest,
    Options,
    WeightsComparison,
    compare_weights,
    main_pair,
    single_cell,
)
from bornbiased_jax.lineage.component_pair import TABLES
from bornbiased_jax.lineage.evidence import COORDINATES, KINDS, MATCHED, OUTPUTS, SIGNLESS
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.same_model import SAME_WEIGHTS, Identity
from bornbiased_jax.lineage.verdict import Decision, Detail, Verdict, certified_keys, probability, rests_on
from bornbiased_jax.lineage.weights_report import (
    BLOCK_LABELS,
    SCOPE,
    by_model_part,
    comparison_keys,
    component_rows,
    evaded_by,
    identical_tensors,
    kind_keys,
    module_rows,
    place,
    write_notes,
)

_BLOCKWISE = (
    "The p-value is approximate: both models are quantized in contiguous blocks of numbers, and permutations would "
    "break these blocks. Compare with an unquantized base."
)
_EXACT_IF = (
    "The p-value is exact if one of the two models still has its neurons and coordinates in the order in which it was "
    "initialized and trained. It is approximate if both were reordered by a rule that looks at the weights (principal "
    "axes, neurons sorted by norm), quantized in contiguous blocks, or trained with numbers scaled by tiles; files do "
    "not always say so."
)
_FLOATS = {"float16", "bfloat16", "float32", "float64"}
_FEW_KINDS, _MANY_KINDS = 2, 4


def auto_verdict(
    base: Fingerprint,
    suspect: Fingerprint,
    options: Options = Options(),
    *,
    identity: Identity | None = None,
    outputs: Verdict | None = None,
    near: str = "",
    is_stored: bool = True,
    foreign_numbers: Callable[[], str] = str,
) -> Verdict:
    """Decide by everything that two fingerprints hold.

    Args:
        base: of one model.
        suspect: of the other one, made with the same dimension and sign key.
        options: level, permutations, and whether one model is an initialization.
        identity: of the two models, from more than their fingerprints.
        outputs: verdict of the permutation test of outputs, where it joins the family.
        near: sentence about weights that are nearly equal, and so about no identity.
        is_stored: whether a model is known by its fingerprint alone; of two checkpoints more is said elsewhere.
        foreign_numbers: says why token numbers mean other tokens in the two models, "" if they may be the same; asked
            where nothing is found and tokens are matched by numbers.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    further: list[ComponentTest] = []
    if outputs is not None:
        # An undefined verdict may come with numbers, as on vectors that both models shared: they are no evidence.
        is_defined = outputs.verdict != "undefined"
        z, log10_p = (outputs.z, outputs.log10_p) if is_defined else (None, None)
        further = [ComponentTest(OUTPUTS, ALL, z, log10_p, outputs.reason)]
    # Run the battery; equal tensors are an identity of their own.
    comparison = compare_weights(base, suspect, options, further=further)
    if comparison.is_identical and (identity is None or identity.kind == "logits"):
        identity = Identity("tensors", SAME_WEIGHTS)
    kinds = _kinds_alone(comparison)
    rows = component_rows(comparison)
    decision, reason, deciding = _decide(comparison, identity, kinds, by_model_part(comparison, rows), near)
    if decision == "unrelated" and _token_labels(base) == "ids":
        # Evidence that sees through rotations was asked of the same tokens only if their numbers are.
        clause = foreign_numbers()
        decision, reason = ("undefined", f"{reason}, {clause}") if clause else (decision, reason)
    null = _null(base, suspect, options)
    # What the verdict rests on, for readers and for JSON. No chance enters an identity.
    explained = deciding if identity is None else None
    exactness = _exactness(null, options)
    notes = write_notes(comparison, rows, explained, base, suspect, exactness, is_stored=is_stored)
    has_shared_embeddings = _has_shared_embeddings(comparison)
    if has_shared_embeddings:
        notes.insert(
            0,
            "Shared embeddings: the token embedding or the head agrees, and in the blocks neither neurons nor heads "
            "do; coordinates may agree because of the embeddings alone.",
        )
    if kinds:
        notes.insert(0, f"Agreement shows in {_alone(kinds, comparison)}.")
    detail = {
        **_evidence_keys(comparison, deciding, decision, null, has_strings=_token_labels(base) == "strings"),
        "components": rows,
        **comparison_keys(comparison, null),
        "identity": None if identity is None else identity.kind,
        "shared_embeddings": has_shared_embeddings,
        "tokens_matched_by": _token_labels(base),
        "sign_key": base.settings.sign_key.hex(),
        "notes": notes,
        "scope": SCOPE,
    }
    log10_p = None if deciding is None else deciding.log10_adjusted
    return Verdict(
        verdict=decision,
        reason=reason,
        p_value=None if log10_p is None else probability(log10_p),
        log10_p=log10_p,
        z=None if deciding is None else deciding.z,
        test="auto",
        num_inputs=None if outputs is None else outputs.num_inputs,
        alpha=options.alpha,
        detail=detail,
    )


def single_verdict(
    base: Fingerprint,
    suspect: Fingerprint,
    evidence: str,
    options: Options = Options(),
) -> Verdict:
    """Decide by one of :data:`.evidence.KINDS` over the whole model, named beforehand; nothing is corrected for.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    # One piece of evidence over the whole model, without correction.
    pair = main_pair(base, suspect)
    cell = single_cell(pair, evidence, options)
    kind = KINDS[evidence]
    null = _null(base, suspect, options)
    rests = rests_on(kind.permuted, kind.invariant_to, kind.evaded_by)
    detail: Detail = {
        "null": null,
        "align": "none",
        **kind_keys(evidence),
        "statistic_form": "squares" if evidence == SIGNLESS else "trace",
        "by_module": module_rows(pair.by_module()),
        "num_tokens": min(_num_tokens(base), _num_tokens(suspect)),
        "tokens_matched_by": _token_labels(base),
        "sign_key": base.settings.sign_key.hex(),
        "notes": [rests, *_exactness(null, options)],
        "scope": SCOPE,
    }
    # Nothing corresponds: the reason stands in place of a p.
    if cell.certified is None:
        return Verdict("undefined", cell.reason, None, None, None, "weights", None, options.alpha, detail)
    # Decide at the level itself: p at most alpha.
    log10_p = cell.certified.log10_p
    p_value = max(cell.certified.p_value, probability(log10_p))
    is_same = p_value <= options.alpha
    reason = (
        f"the weights agree {'more' if is_same else 'no more'} than chance allows under permutations of "
        f"{kind.permuted} (p {'≤' if is_same else '>'} {options.alpha:g})"
    )
    decision: Decision = "same-lineage" if is_same else "unrelated"
    detail |= _certified_keys(cell)
    return Verdict(decision, reason, p_value, log10_p, cell.z, "weights", None, options.alpha, detail)


# ---------------------------------------------------------------------------------------------------------------------
# The decision


def _decide(
    comparison: WeightsComparison, identity: Identity | None, kinds: Sequence[str], parts: str, near: str
) -> tuple[Decision, str, ComponentTest | None]:
    """Decide by identity, then the smallest adjusted p, then the agreement of matchings.

    Args:
        comparison: the battery's result.
        identity: of the two models.
        kinds: the few kinds of matrices in which alone the models agree.
        parts: which parts of the models share an initialization, where they have several.
        near: how equal the weights are, where that is no identity.

    Returns:
        The decision, its reason, and the cell whose p stands behind it.
    """
    # The smallest p; the whole model before its parts, and ties by z.
    defined = [cell for cell in comparison.cells if cell.log10_p is not None]
    best = min(defined, key=lambda cell: (cell.log10_p, cell.component != ALL, -(cell.z or 0.0)), default=None)
    if identity is not None:
        return "same-lineage", identity.sentence, best
    if best is not None and comparison.is_significant(best.log10_adjusted):
        if is_without_seed(comparison):
            reason = (
                f"the models agree in {_alone(kinds, comparison)}: a structure that both were given without a seed, or "
                "a table that both took from elsewhere, would do that"
            )
            return "undefined", reason, best
        # A part is named where the whole by itself does not agree.
        all_cells = (cell for cell in comparison.cells if cell.component == ALL)
        is_whole = any(comparison.is_significant(cell.log10_adjusted) for cell in all_cells)
        where = "" if is_whole else f", in {place(best.component)}"
        reason = parts or f"the two models share an initialization: the weights agree more than chance allows{where}"
        return "same-lineage", f"{near}; {reason}" if near else reason, best
    # Matchings have no p: beyond the threshold they decide alone.
    matching = comparison.matching
    if matching is not None and matching.agreement > matching.threshold:
        reason = (
            f"two independent matchings of the neurons agree on {matching.agreement:.1%} of them, more than "
            f"{matching.threshold:.0%}; {matching.largest_unrelated_text}"
        )
        return "same-lineage", reason, None
    # Nothing is defined, or tensors were copied and nothing else agrees.
    if best is None:
        reasons = dict.fromkeys(cell.reason for cell in comparison.cells if cell.component == ALL)
        return "undefined", "; ".join(reasons), None
    if comparison.equal:
        reason = f"{identical_tensors(comparison)} identical, while the others agree no more than chance allows"
        return "undefined", reason, best
    names = ", ".join(dict.fromkeys(cell.evidence for cell in defined))
    return "unrelated", f"none of the evidence finds a shared initialization ({names})", best


def is_without_seed(comparison: WeightsComparison) -> bool:
    """Return whether all that agrees may have been given to both models without a seed: it decides nothing."""
    kinds = _kinds_alone(comparison)
    return bool(kinds) and not _is_copied(comparison, kinds)


def _kinds_alone(comparison: WeightsComparison) -> list[str]:
    """Return the one or two tables or kinds of block matrices in which alone the models agree; [] if others do too."""
    agreeing = [cell for cell in comparison.cells if comparison.is_significant(cell.log10_adjusted)]
    if any(cell.evidence in (*BLOCK_LABELS, OUTPUTS) for cell in agreeing):
        return []
    alone: list[str] = []
    for number, name in enumerate(comparison.components):
        # The language model, the vision tower …, each by itself.
        prefix = f"{name}/" if number else ""
        other_prefixes = tuple(f"{other}/" for other in comparison.components[1:] if other != name)
        components, kinds, measured = (
            {
                text.removeprefix(prefix)
                for text in texts
                if text.startswith(prefix) and not text.startswith(other_prefixes)
            }
            for texts in (
                [cell.component for cell in agreeing],
                comparison.kinds,
                [cell.component for cell in comparison.cells],
            )
        )
        if not components:
            continue
        tables = measured & {*TABLES}
        few = sorted(components & (kinds | tables))
        # Blocks as a whole may agree where no kind of matrix does by itself.
        is_whole = not components & kinds and "blocks" in components
        if not few or is_whole or len(kinds | tables) < _MANY_KINDS:
            return []
        alone += [prefix + kind for kind in few]
    return alone if len(alone) <= _FEW_KINDS else []


def _alone(kinds: Sequence[str], comparison: WeightsComparison) -> str:
    """Name the kinds that agree, and which others do not."""
    suffix = " that is evidence" if comparison.left_out else ""
    return f"{' and '.join(map(place, kinds))} alone, and in no other kind of matrix{suffix}"


def _is_copied(comparison: WeightsComparison, kinds: Sequence[str]) -> bool:
    """Return whether one model has a tensor of these kinds from the other.

    A formula that both models trained on leaves no tensor equal bit for bit; a copy does. Positions may follow a
    formula and never be trained.
    """
    main = comparison.components[0]
    copied = ((path.split("/")[0], path.split("/")[-2]) for path in comparison.equal)
    names = {kind if name == main else f"{name}/{kind}" for name, kind in copied if kind != "positions"}
    return not names.isdisjoint(kinds)


def _has_shared_embeddings(comparison: WeightsComparison) -> bool:
    """Return whether the tables of the vocabulary agree, and no labels that blocks have of their own."""
    equal = [path.split("/")[1] for path in comparison.equal]
    matching = comparison.matching
    if matching is not None and matching.agreement > matching.threshold:
        return False
    if "blocks" in equal or comparison.is_significant(min(map(comparison.adjusted, BLOCK_LABELS))):
        return False
    in_tables = min(comparison.adjusted(COORDINATES, name) for name in ("embedding", "head"))
    return comparison.is_significant(in_tables) or "embedding" in equal


def _null(base: Fingerprint, suspect: Fingerprint, options: Options) -> str:
    has_blocked_storage = all(model.source.types - _FLOATS for model in (base, suspect))
    return "approximate" if has_blocked_storage and not options.has_untrained else "exact"


def _exactness(null: str, options: Options) -> list[str]:
    """Write under which condition the p is exact, where that depends on the models."""
    if options.has_untrained:
        return []
    return [_BLOCKWISE if null == "approximate" else _EXACT_IF]


# ---------------------------------------------------------------------------------------------------------------------
# JSON


def _evidence_keys(
    comparison: WeightsComparison, deciding: ComponentTest | None, decision: Decision, null: str, *, has_strings: bool
) -> Detail:
    """Return the keys of the evidence that decides."""
    detail: Detail = {"null": null, "align": "none"}
    if deciding is not None:
        detail |= {**kind_keys(deciding.evidence), **_certified_keys(deciding)}
    elif decision == "same-lineage":
        # Matchings are held against unrelated models: no labels are permuted.
        detail |= {**kind_keys(MATCHED), "null": "population", "permuted": "nothing"}
    if decision == "unrelated":
        detail["evaded_by"] = evaded_by(comparison, has_strings=has_strings)
    return detail


def _certified_keys(cell: ComponentTest) -> Detail:
    if cell.certified is None:
        return {"log10_p_bound": cell.log10_p, "log10_p_moments": None, "null_histogram": None}
    return certified_keys(cell.certified)


def _num_tokens(model: Fingerprint) -> int:
    """Count the tokens in a model's token space."""
    used = [component.is_token_used_V for component in model.components.values()]
    return sum(int(is_used_V.sum()) for is_used_V in used if is_used_V is not None)


def _token_labels(base: Fingerprint) -> str:
    return "strings" if "strings" in {component.token_labels for component in base.components.values()} else "ids"
