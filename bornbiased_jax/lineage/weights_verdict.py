"""From a comparison of two fingerprints of weights to a verdict: its words, its components, and what would evade it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from bornbiased_jax.lineage.battery import (
    ALL,
    COORDINATES,
    KINDS,
    LARGEST_UNRELATED_AGREEMENT,
    MATCHED,
    RAW_NEURONS,
    SIGNLESS,
    TOKEN_HEADS,
    TOKEN_NEURONS,
    Cell,
    Comparison,
    Kind,
    Options,
    compare_weights,
    whole_cell,
)
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.matching import AGREEMENT
from bornbiased_jax.lineage.summary import probability
from bornbiased_jax.lineage.verdict import WORD, Decision, Verdict, rests_on

SCOPE = (
    "The test finds a shared initialization, not theft: it cannot say who copied from whom, and two people who chose "
    "one seed of one program share theirs. 'unrelated' means that this test found none, not that there is none."
)
BLOCKWISE = (
    "Both models are quantized in contiguous blocks, which are labels too: the p-value is approximate. Compare with "
    "an unquantized base."
)
EXACT_IF = (
    "Exact if one of the two models still carries the labels it was initialized and trained with; approximate if both "
    "were reordered by a rule that reads their numbers (a PCA basis, neurons sorted by norm), quantized in contiguous "
    "blocks or trained with numbers scaled by tiles, of which a file need not tell."
)
PUBLIC_SIGNS = (
    "The sketches have public signs: a suspect may have rewritten what lies in their few directions. With both "
    "checkpoints they are made again under a fresh key (--sign-key)."
)
_SHARED_EMBEDDINGS = (
    "Shared embeddings: the token embedding or the head agrees and nothing of the blocks does by its own labels; "
    "coordinates may agree because of them alone."
)
_FLOATS = {"float16", "bfloat16", "float32", "float64"}
_BLOCKS_OF_LABELS = (RAW_NEURONS, TOKEN_NEURONS, TOKEN_HEADS, MATCHED)
# Sketches that differ by no more than this are called equal at their resolution.
_RESOLUTION = 0.03
_PARTS = ("embedding", "positions", "head", "blocks")
_FEW_KINDS, _MANY_KINDS = 2, 4
_SHOWN_NAMES = 6
_NUMBERED = {"blocks": "block {}", "quarters": "quarter {} of the depth", "experts": "expert {}"}


@dataclasses.dataclass(frozen=True)
class Identity:
    """In what way two models are known to be one, from more than their fingerprints.

    Attributes:
        kind: "files", "tensors", "rounded" or "logits".
        sentence: what is the same.
    """

    kind: str
    sentence: str


def auto_verdict(
    base: Fingerprint,
    suspect: Fingerprint,
    options: Options | None = None,
    *,
    identity: Identity | None = None,
    outputs: Verdict | None = None,
    near: str = "",
) -> Verdict:
    """Decide by everything that two fingerprints hold.

    Args:
        base, suspect: made with one dimension and one sign key.
        options: level, permutations, and whether one model is an initialization.
        identity: what is known of the two models beyond their fingerprints.
        outputs: verdict of the permutation test of outputs, where it joins the family.
        near: sentence about weights that are nearly equal, and so about no identity.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    options = options or Options()
    further: list[Cell] = []
    if outputs is not None:
        # An undefined verdict may come with numbers, as on vectors that both models shared: they are no evidence.
        is_defined = outputs.verdict != "undefined"
        z, log10_p = (outputs.z, outputs.log10_p) if is_defined else (None, None)
        further = [Cell("outputs", ALL, z, log10_p, outputs.reason)]
    comparison = compare_weights(base, suspect, options, further=further)
    if comparison.is_identical and (identity is None or identity.kind == "logits"):
        identity = Identity("tensors", "the two models have the same weights, tensor by tensor")
    log10_alpha = math.log10(options.alpha)
    best = _best(comparison)
    # Identity first, then the smallest adjusted p, then agreement of matchings.
    kinds = _kinds_alone(comparison, log10_alpha)
    # A formula that both models trained on leaves no tensor equal bit for bit; a copy does.
    copied = {path.split("/")[-2] for path in comparison.equal}
    is_formula = bool(kinds) and not copied & set(kinds)
    shared_embeddings = _embeddings_alone(comparison, log10_alpha)
    agreement = comparison.matching.agreement if comparison.matching is not None else None
    decision: Decision = "same-lineage"
    deciding: Cell | None = best
    if identity is not None:
        reason = identity.sentence
    elif best is not None and comparison.adjusted(best.evidence, best.component) <= log10_alpha and is_formula:
        decision = "undefined"
        reason = (
            f"the models agree in {' and '.join(kinds)} alone, and in no other kind of matrix: a structure that both "
            "were given without a seed would do that"
        )
    elif best is not None and comparison.adjusted(best.evidence, best.component) <= log10_alpha:
        reason = (
            f"the weights agree more than chance allows under permutations of {_kind(best.evidence).permuted}"
            f"{_where(best)} (p ≤ {options.alpha:g} by {best.evidence}, after Holm's correction for "
            f"{len(comparison.cells)} cells of evidence)"
        )
        reason = f"{near}; {reason}" if near else reason
    elif agreement is not None and agreement > AGREEMENT:
        deciding = None
        reason = (
            f"two independent matchings of the neurons agree on {agreement:.1%} of them, more than {AGREEMENT:.0%}; "
            f"unrelated models were seen to agree on {LARGEST_UNRELATED_AGREEMENT:.1%} at most"
        )
    elif best is None:
        decision = "undefined"
        reason = "; ".join(dict.fromkeys(cell.reason for cell in comparison.cells if cell.component == ALL))
    elif comparison.equal:
        decision = "undefined"
        reason = f"{_counted(comparison)} identical, while the others agree no more than chance allows"
    else:
        defined = dict.fromkeys(cell.evidence for cell in comparison.cells if cell.log10_p is not None)
        reason = f"none of the evidence finds a shared initialization ({', '.join(defined)})"
        decision = "unrelated"
    verdict = Verdict(
        decision,
        reason,
        *_numbers(comparison, deciding),
        "auto",
        None if outputs is None else outputs.num_inputs,
        options.alpha,
        _detail(comparison, deciding, decision, options, null=_null(base, suspect, options)),
    )
    detail: dict[str, Any] = {
        "identity": None if identity is None else identity.kind,
        "shared_embeddings": shared_embeddings,
        "tokens_matched_by": _token_labels(base),
        "sign_key": base.settings.sign_key.hex(),
    }
    notes = _notes(comparison, base, suspect, deciding, options)
    if shared_embeddings:
        notes.insert(0, _SHARED_EMBEDDINGS)
    if kinds:
        notes.insert(0, f"Agreement shows in {' and '.join(kinds)} alone, and in no other kind of matrix.")
    return dataclasses.replace(verdict, detail={**verdict.detail, **detail, "notes": notes, "scope": SCOPE})


def single_verdict(base: Fingerprint, suspect: Fingerprint, evidence: str, options: Options | None = None) -> Verdict:
    """Decide by one piece of evidence over the whole model, named beforehand; nothing is corrected for.

    Args:
        base, suspect: made with one dimension and one sign key.
        evidence: a key of :data:`.battery.KINDS`.
        options: level and permutations.

    Raises:
        InputError: fingerprints that cannot be compared.
    """
    options = options or Options()
    cell, modules = whole_cell(base, suspect, evidence, options)
    kind = _kind(evidence)
    about = {"permuted": kind.permuted, "invariant_to": list(kind.invariant_to), "evaded_by": kind.evaded_by}
    null = _null(base, suspect, options)
    notes = [rests_on(about), *_exactness(null, options), WORD]
    detail: dict[str, Any] = {"null": null, "labels": kind.labels, "align": "none", **about}
    detail["statistic_form"] = "squares" if evidence == SIGNLESS else "trace"
    detail["by_module"] = [{"module": row.module, "z": row.z} for row in modules]
    detail["num_tokens"] = min(_num_tokens(base), _num_tokens(suspect))
    detail |= {"tokens_matched_by": _token_labels(base), "sign_key": base.settings.sign_key.hex()}
    detail |= {"notes": notes, "scope": SCOPE}
    if cell.certified is None or cell.log10_p is None:
        return Verdict("undefined", cell.reason, None, None, None, "weights", None, options.alpha, detail)
    detail |= _certified_keys(cell)
    same = cell.certified.p_value <= options.alpha
    reason = (
        f"the weights agree {'more' if same else 'no more'} than chance allows under permutations of {kind.permuted} "
        f"(p {'≤' if same else '>'} {options.alpha:g})"
    )
    decision: Decision = "same-lineage" if same else "unrelated"
    return Verdict(
        decision,
        reason,
        cell.certified.p_value,
        cell.certified.log10_p,
        cell.z,
        "weights",
        None,
        options.alpha,
        detail,
    )


def _best(comparison: Comparison) -> Cell | None:
    """Return the cell with the least p, the whole model before its parts and ties by z."""
    defined = [cell for cell in comparison.cells if cell.log10_p is not None]
    return min(defined, key=lambda cell: (cell.log10_p, cell.component != ALL, -(cell.z or 0.0)), default=None)


def _numbers(comparison: Comparison, deciding: Cell | None) -> tuple[float | None, float | None, float | None]:
    """Return Holm's p, its logarithm and z of the cell that decides."""
    if deciding is None:
        return None, None, None
    log10_p = comparison.adjusted(deciding.evidence, deciding.component)
    return 10.0**log10_p, log10_p, deciding.z


def _kind(evidence: str) -> Kind:
    if evidence in KINDS:
        return KINDS[evidence]
    return dataclasses.replace(KINDS[COORDINATES], invariant_to=("what the outputs do not show",))


def _where(cell: Cell) -> str:
    if cell.component == ALL:
        return ""
    return f", in {_place(cell.component)}"


def _place(component: str) -> str:
    """Name a component of the family for a reader: "block 3", "expert 2", "block 1 of the vision tower"."""
    *model, group = component.split("/")
    number = ""
    if model and model[-1] in _NUMBERED:
        number, group = group, model.pop()
    name = _NUMBERED[group].format(number) if number else group
    if not model:
        return name
    return f"the {_title(model[0])}" if name == ALL else f"{name} of the {_title(model[0])}"


def _title(component: str) -> str:
    """Name a component of a model: "vision tower"."""
    return {"language": "language model", "vision": "vision tower"}.get(component, component.replace("_", " "))


def _kinds_alone(comparison: Comparison, log10_alpha: float) -> list[str]:
    """Return the one or two kinds of block matrices in which alone the models agree; none where more speaks."""
    tables = {"embedding", "positions", "head"}
    kinds = {row.module.rpartition("/")[2] for row in comparison.by_module if row.module.startswith("blocks/")}
    agreeing = {
        (cell.evidence, cell.component)
        for cell, log10_p in zip(comparison.cells, comparison.log10_adjusted, strict=True)
        if log10_p <= log10_alpha
    }
    labels = {evidence for evidence, _ in agreeing}
    if labels & {*_BLOCKS_OF_LABELS, "outputs"} or any(component in tables for _, component in agreeing):
        return []
    alone = sorted(component for _, component in agreeing if component in kinds)
    return alone if 0 < len(alone) <= _FEW_KINDS and len(kinds) >= _MANY_KINDS else []


def _embeddings_alone(comparison: Comparison, log10_alpha: float) -> bool:
    """Return whether the tables of the vocabulary agree, and no labels that blocks have of their own."""
    in_blocks = min((comparison.adjusted(evidence) for evidence in _BLOCKS_OF_LABELS), default=0.0) <= log10_alpha
    equal = [path.split("/")[1] for path in comparison.equal]
    in_tables = min(comparison.adjusted(COORDINATES, name) for name in ("embedding", "head")) <= log10_alpha
    return not in_blocks and "blocks" not in equal and (in_tables or "embedding" in equal)


def _num_tokens(model: Fingerprint) -> int:
    """Count the tokens in a model's token space."""
    used = [component.is_token_used_V for component in model.components.values()]
    return sum(int(is_used_V.sum()) for is_used_V in used if is_used_V is not None)


def _token_labels(base: Fingerprint) -> str:
    labels = {component.token_labels for component in base.components.values()} - {None}
    return "strings" if "strings" in labels else "ids"


def _null(base: Fingerprint, suspect: Fingerprint, options: Options) -> str:
    blocked = all(set(model.source.storage) - _FLOATS for model in (base, suspect))
    return "approximate" if blocked and not options.has_untrained else "exact"


def _exactness(null: str, options: Options) -> list[str]:
    if options.has_untrained:
        return []
    return [BLOCKWISE if null == "approximate" else EXACT_IF]


def _certified_keys(cell: Cell) -> dict[str, Any]:
    certified = cell.certified
    if certified is None:
        return {"log10_p_bound": cell.log10_p, "log10_p_moments": None, "null_histogram": None}
    return {
        "log10_p_bound": certified.log10_p_bound,
        "log10_p_moments": certified.log10_p_moments,
        "statistic": certified.statistic,
        "null_mean": certified.mean,
        "null_std": certified.std,
        "num_permutations": certified.num_permutations,
        "enumerated": certified.enumerated,
        "null_histogram": certified.histogram,
    }


def _detail(
    comparison: Comparison, deciding: Cell | None, decision: Decision, options: Options, *, null: str
) -> dict[str, Any]:
    """Return the keys of the JSON that the comparison decides."""
    log10_alpha = math.log10(options.alpha)
    population = deciding is None and decision == "same-lineage"
    detail: dict[str, Any] = {"null": "population" if population else null, "align": "none"}
    if deciding is not None:
        kind = _kind(deciding.evidence)
        detail |= {"labels": kind.labels, "permuted": kind.permuted, "invariant_to": list(kind.invariant_to)}
        detail |= {"evaded_by": kind.evaded_by, **_certified_keys(deciding)}
    elif population:
        kind = KINDS[MATCHED]
        detail |= {"labels": "units", "permuted": "nothing", "invariant_to": list(kind.invariant_to)}
        detail |= {"evaded_by": kind.evaded_by}
    if decision == "unrelated":
        detail["evaded_by"] = _evaded_by(comparison)
    matching = comparison.matching
    return {
        **detail,
        "by_module": [{"module": row.module, "z": row.z} for row in comparison.by_module],
        "by_part": [
            {"part": cell.component, "z": cell.z}
            for cell in comparison.cells
            if cell.evidence == COORDINATES and cell.component in _PARTS
        ],
        "components": component_rows(comparison, log10_alpha),
        "evidence": _evidence(comparison),
        "tests": _tests(comparison, options, null),
        "blocks": [[pair.base, pair.suspect] for pair in comparison.pairs],
        "agreement": None if matching is None else matching.agreement,
        "agreement_threshold": AGREEMENT,
        "largest_unrelated_agreement": LARGEST_UNRELATED_AGREEMENT,
        "agreement_by_block": []
        if matching is None
        else [{"module": f"blocks/{block}/mlp", "agreement": value} for block, value in matching.by_block.items()],
        "left_out": dict(comparison.left_out),
        "identical_tensors": len(comparison.equal),
        "num_tensors": comparison.num_tensors,
        "sketch_difference": comparison.sketch_difference,
    }


def component_rows(comparison: Comparison, log10_alpha: float) -> list[dict[str, Any]]:
    """List every component with the evidence that is strongest there, and what it says by itself."""
    rows = []
    for component in dict.fromkeys(cell.component for cell in comparison.cells):
        cells = [cell for cell in comparison.cells if cell.component == component]
        defined = [cell for cell in cells if cell.log10_p is not None]
        strongest = min(defined, key=lambda cell: (cell.log10_p, -(cell.z or 0.0)), default=cells[0])
        log10_p = comparison.adjusted(component=component)
        verdict = "undefined" if not defined else "same-lineage" if log10_p <= log10_alpha else "unrelated"
        rows.append(
            {
                "component": component,
                "evidence": strongest.evidence,
                "z": strongest.z,
                "log10_p": log10_p if defined else None,
                "verdict": verdict,
                "reason": "" if defined else strongest.reason,
            }
        )
    return rows


def _evidence(comparison: Comparison) -> list[dict[str, Any]]:
    return [
        {
            "test": cell.evidence,
            "labels": _kind(cell.evidence).labels,
            "z": cell.z,
            "log10_p_bound": None if cell.certified is None else cell.certified.log10_p_bound,
            "reason": cell.reason,
        }
        for cell in comparison.cells
        if cell.component.rpartition("/")[2] == ALL
    ]


def _tests(comparison: Comparison, options: Options, null: str) -> list[dict[str, Any]]:
    """List the evidence over the whole model as rows of tests."""
    rows = []
    for cell in comparison.cells:
        if cell.component.rpartition("/")[2] != ALL:
            continue
        kind = _kind(cell.evidence)
        log10_p = None if cell.log10_p is None else comparison.adjusted(cell.evidence, cell.component)
        verdict = "undefined" if log10_p is None else "unrelated"
        if log10_p is not None and log10_p <= math.log10(options.alpha):
            verdict = "same-lineage"
        rows.append(
            {
                "name": cell.evidence,
                "verdict": verdict,
                "reason": cell.reason,
                "p_value": None if cell.log10_p is None else 10.0**cell.log10_p,
                "log10_p": cell.log10_p,
                "z": cell.z,
                "test": "weights",
                "p_adjusted": None if log10_p is None else 10.0**log10_p,
                "log10_p_adjusted": log10_p,
                "null": null,
                "labels": kind.labels,
                "align": "none",
                "permuted": kind.permuted,
                "invariant_to": list(kind.invariant_to),
                "evaded_by": kind.evaded_by,
                "agreement": None,
                "log10_p_bound": None if cell.certified is None else cell.certified.log10_p_bound,
                "log10_p_moments": None if cell.certified is None else cell.certified.log10_p_moments,
            }
        )
    return rows


def _evaded_by(comparison: Comparison) -> str:
    """Describe what hides a shared initialization from all evidence that was defined, at once."""
    defined = {cell.evidence for cell in comparison.cells if cell.log10_p is not None}
    rotating = "rotating or permuting the residual coordinates"
    in_order = "splitting, merging or retraining neurons" if comparison.matching is not None else "permuting neurons"
    needed = [rotating] if defined & {COORDINATES, SIGNLESS, RAW_NEURONS, "outputs"} else []
    hidden = [in_order] if defined & {RAW_NEURONS, TOKEN_NEURONS} or comparison.matching is not None else []
    hidden += ["permuting heads"] if TOKEN_HEADS in defined else []
    evasions = [" together with ".join([*needed, *hidden])]
    if defined & {TOKEN_NEURONS, TOKEN_HEADS}:
        evasions.append(" together with ".join(["replacing the embeddings", *needed]))
    return "; or ".join(text for text in evasions if text)


def _counted(comparison: Comparison) -> str:
    return f"{len(comparison.equal)} of {comparison.num_tensors} tensors are"


def _notes(
    comparison: Comparison, base: Fingerprint, suspect: Fingerprint, deciding: Cell | None, options: Options
) -> list[str]:
    """Write what the verdict rests on, point by point."""
    notes = []
    if 0 < len(comparison.equal) < comparison.num_tensors:
        notes.append(f"{_counted(comparison)} identical, bit for bit, wherever they stand.")
    elif not comparison.is_identical and (comparison.sketch_difference or 1.0) <= _RESOLUTION:
        notes.append(
            f"Equal at the sketch's resolution ({comparison.sketch_difference:.1%}): what rounding to a storage type "
            "gives; a smaller fine-tune is not excluded."
        )
    for formula in dict.fromkeys(comparison.left_out.values()):
        kinds = ", ".join(kind for kind, name in comparison.left_out.items() if name == formula)
        notes.append(f"Left out, as no seed decided it: {kinds} agree with {formula} in either model by itself.")
    evidence = dict.fromkeys(cell.evidence for cell in comparison.cells)
    notes.append(
        f"The battery: {', '.join(evidence)}, over the whole model and its parts; p-values are Holm's over "
        f"{len(comparison.cells)} cells fixed beforehand."
    )
    if deciding is not None:
        kind = _kind(deciding.evidence)
        about = {"permuted": kind.permuted, "invariant_to": kind.invariant_to, "evaded_by": kind.evaded_by}
        notes.append(f"In {deciding.evidence}: {rests_on(about)}")
    notes += _by_model_part(comparison) + _by_component(comparison, math.log10(options.alpha))
    notes += _by_expert(comparison)
    notes += _undefined(comparison.cells)
    if comparison.matching is None:
        notes.append(f"Neurons were not matched: {comparison.matching_reason}.")
    else:
        notes.append(
            f"Two independent matchings of the neurons agree on {comparison.matching.agreement:.1%} of them: held "
            "against unrelated models, without a p."
        )
    if deciding is not None:
        notes += _exactness(_null(base, suspect, options), options)
    if not base.settings.sign_key:
        notes.append(PUBLIC_SIGNS)
    notes += _unread("base", base) + _unread("suspect", suspect)
    return [*notes, WORD]


def _unread(side: str, model: Fingerprint) -> list[str]:
    """List tensors that were not compared, since no convention of names knows them."""
    names = model.source.unread
    if not names:
        return []
    more = f" and {len(names) - _SHOWN_NAMES} more" if len(names) > _SHOWN_NAMES else ""
    return [f"Not understood in the {side}, and not compared: {', '.join(names[:_SHOWN_NAMES])}{more} (--roles FILE)."]


def _by_component(comparison: Comparison, log10_alpha: float) -> list[str]:
    """Say which blocks and tables agree by themselves, where some do and others do not."""
    rows = component_rows(comparison, log10_alpha)
    parts = [row for row in rows if row["component"].startswith(("blocks/", "experts/"))]
    if min(comparison.adjusted(evidence, ALL) for evidence in (COORDINATES, SIGNLESS)) <= log10_alpha:
        # Coordinates alone tell tables and kinds of matrices apart.
        parts += [row for row in rows if "/" not in row["component"] and row["component"] not in (ALL, "blocks")]
    agreeing = [row["component"] for row in parts if row["verdict"] == "same-lineage"]
    others = [row["component"] for row in parts if row["verdict"] == "unrelated"]
    if not agreeing or not others:
        return []
    return [f"Agreement shows in {_ranges(agreeing)}, and not in {_ranges(others)}."]


def _by_model_part(comparison: Comparison) -> list[str]:
    """Say of each part of models that have several, language model, vision tower, projector, whether it is shared."""
    if len(comparison.components) < 2:
        return []
    rows = component_rows(comparison, comparison.log10_alpha)
    shared, others, undefined = [], [], []
    for name in comparison.components:
        prefix = "" if name == comparison.components[0] else f"{name}/"
        inside = [row for row in rows if _is_inside(row["component"], prefix, comparison.components)]
        defined = [row["log10_p"] for row in inside if row["log10_p"] is not None]
        if not defined:
            undefined.append(f"the {_title(name)} is undefined ({inside[0]['reason']})")
        elif min(defined) <= comparison.log10_alpha:
            shared.append(f"the {_title(name)} shares its initialization with the base's ({_below(min(defined))})")
        else:
            others.append(f"nothing of the {_title(name)} does")
    sentence = "; ".join([*shared, *(others if shared else []), *undefined])
    return [f"{sentence[0].upper()}{sentence[1:]}."] if shared else []


def _is_inside(component: str, prefix: str, names: Sequence[str]) -> bool:
    return component.startswith(prefix) if prefix else component.split("/")[0] not in names[1:]


def _below(log10_p: float) -> str:
    return "p < 10^-300" if log10_p < -300 else f"p = {probability(log10_p)}"


def _by_expert(comparison: Comparison) -> list[str]:
    """Say which experts agree with a dense MLP, or in which order experts that agree stand in the suspect."""
    rows = {row["component"]: row for row in component_rows(comparison, comparison.log10_alpha)}
    agreeing = [name for name, row in rows.items() if name.startswith("experts/") and row["verdict"] == "same-lineage"]
    if not agreeing:
        return []
    if not comparison.experts:
        verb = "agrees" if len(agreeing) == 1 else "agree, each by itself,"
        text = _ranges(agreeing)
        return [f"{text[0].upper()}{text[1:]} {verb} with the dense MLP of the other model."]
    orders: dict[int, list[tuple[int, int]]] = {}
    for block, first, second in comparison.experts:
        if first != second and f"experts/{first}" in agreeing:
            orders.setdefault(block, []).append((first, second))
    if not orders:
        return []
    block, moved = next(iter(orders.items()))
    of_base, of_suspect = (", ".join(map(str, numbers)) for numbers in zip(*moved[:_SHOWN_NAMES], strict=True))
    more = f" (and {len(moved) - _SHOWN_NAMES} more)" if len(moved) > _SHOWN_NAMES else ""
    return [
        f"The suspect has its experts in another order in {_ranges([f'blocks/{block}' for block in orders])}: in block "
        f"{block} the base's {of_base} are its {of_suspect}{more}."
    ]


def _ranges(components: Sequence[str]) -> str:
    """Write components with consecutive numbers joined: "embedding, blocks 1 to 3, expert 2"."""
    texts = [name for name in components if "/" not in name]
    for group, title in (("blocks", "block"), ("experts", "expert")):
        numbers = sorted(int(name.removeprefix(f"{group}/")) for name in components if name.startswith(f"{group}/"))
        runs: list[list[int]] = []
        for number in numbers:
            if runs and runs[-1][1] == number - 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        texts += [f"{title} {first}" if first == last else f"{title}s {first} to {last}" for first, last in runs]
    return ", ".join(texts)


def _undefined(cells: Sequence[Cell]) -> list[str]:
    reasons = {cell.evidence: cell.reason for cell in cells if cell.component == ALL and cell.log10_p is None}
    return [f"Undefined: {evidence} ({reason})." for evidence, reason in reasons.items()]
