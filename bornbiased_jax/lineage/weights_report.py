"""Report a comparison of two fingerprints: rows of JSON for its components and tests, and notes for a reader."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import TypedDict

from bornbiased_jax.checkpoints.roles import component_title, path_in_words
from bornbiased_jax.lineage.battery import ALL, ComponentTest, WeightsComparison
from bornbiased_jax.lineage.component_pair import TABLES
from bornbiased_jax.lineage.evidence import (
    COORDINATES,
    KINDS,
    MATCHED,
    OUTPUTS,
    RAW_NEURONS,
    SIGNLESS,
    TOKEN_HEADS,
    TOKEN_NEURONS,
)
from bornbiased_jax.lineage.fingerprints import Fingerprint
from bornbiased_jax.lineage.matching import Matching
from bornbiased_jax.lineage.verdict import Decision, Detail, format_p, probability, rests_on

SCOPE = (
    "The test finds a shared initialization, not theft: it cannot say who copied from whom, and two people who chose "
    "one seed of one program share it. 'unrelated' means that this test found none, not that there is none."
)
BLOCK_LABELS = (RAW_NEURONS, TOKEN_NEURONS, TOKEN_HEADS, MATCHED)
"""Evidence by labels that blocks have of their own."""
_PUBLIC_SIGNS = (
    "The sketches have public signs: a suspect may have rewritten what lies in their few directions. With both "
    "checkpoints they are made again under a fresh key (--sign-key)."
)
# Significant bits of storage types, but for those of which the name has their number.
_BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8, "float8": 5}
_SINGLE = 24
# Entries of two sketches rounded to 8 bits differ by a step, and by another where a sum was made in another order.
_STEPS = 1.5 / 127
# Deviations of the rounding of entries, beyond which the largest of a million does not lie.
_DEVIATIONS = 8
_SHOWN_NAMES = 6
_NUMBERED = {"blocks": "block {}", "quarters": "quarter {} of the depth", "experts": "expert {}"}
_GROUPS = {"other": "other matrices"}


# ---------------------------------------------------------------------------------------------------------------------
# JSON


class ComponentRow(TypedDict):
    """JSON of a component: the evidence that is strongest there, and its verdict by itself."""

    component: str
    evidence: str
    z: float | None
    log10_p: float | None
    verdict: Decision
    reason: str


def component_rows(comparison: WeightsComparison) -> list[ComponentRow]:
    """List every component with the evidence that is strongest there, and its verdict by itself."""
    rows: list[ComponentRow] = []
    for component in dict.fromkeys(cell.component for cell in comparison.cells):
        cells = [cell for cell in comparison.cells if cell.component == component]
        # The strongest evidence that is defined stands for the component.
        defined = [cell for cell in cells if cell.log10_p is not None]
        strongest = min(defined, key=lambda cell: (cell.log10_p, -(cell.z or 0.0)), default=cells[0])
        log10_p = comparison.adjusted(component=component) if defined else None
        rows.append(
            {
                "component": component,
                "evidence": strongest.evidence,
                "z": strongest.z,
                "log10_p": log10_p,
                "verdict": _row_verdict(comparison, log10_p),
                "reason": "" if defined else strongest.reason,
            }
        )
    return rows


def _row_verdict(comparison: WeightsComparison, log10_p: float | None) -> Decision:
    if log10_p is None:
        return "undefined"
    return "same-lineage" if comparison.is_significant(log10_p) else "unrelated"


def comparison_keys(comparison: WeightsComparison, null: str) -> Detail:
    """Return the keys that the comparison fills whatever decides."""
    matching = comparison.matching
    # A row for each piece of evidence over the language model, the vision tower …; their parts have other rows.
    tests = [_test_row(comparison, cell, null) for cell in comparison.cells if cell.component.rpartition("/")[2] == ALL]
    keys = ("labels", "z", "log10_p_bound", "reason")
    return {
        "by_module": module_rows(comparison.by_module),
        "by_part": [
            {"part": cell.component, "z": cell.z}
            for cell in comparison.cells
            if cell.evidence == COORDINATES and cell.component in (*TABLES, "blocks")
        ],
        "evidence": [{"test": row["name"], **{key: row[key] for key in keys}} for row in tests],
        "tests": tests,
        "blocks": [[pair.base, pair.suspect] for pair in comparison.pairs],
        "further_blocks": [block._asdict() for block in comparison.further_blocks],
        "agreement": None if matching is None else matching.agreement,
        "agreement_threshold": None if matching is None else matching.threshold,
        "largest_unrelated_agreement": None if matching is None else matching.largest_unrelated,
        "agreement_by_block": [
            {"module": f"blocks/{block}/mlp", "agreement": agreement}
            for block, agreement in ({} if matching is None else matching.by_block).items()
        ],
        "left_out": dict(comparison.left_out),
        "identical_tensors": len(comparison.equal),
        "num_tensors": comparison.num_tensors,
        "sketch_difference": comparison.sketch_difference,
    }


def _test_row(comparison: WeightsComparison, cell: ComponentTest, null: str) -> Detail:
    """Return a piece of evidence over a whole part of the model as the row of a test."""
    log10_p = None if cell.log10_p is None else cell.log10_adjusted
    return {
        "name": cell.evidence,
        "component": cell.component.rpartition("/")[0] or comparison.components[0],
        "verdict": _row_verdict(comparison, log10_p),
        "reason": cell.reason,
        "p_value": None if cell.log10_p is None else probability(cell.log10_p),
        "log10_p": cell.log10_p,
        "z": cell.z,
        "test": "weights",
        "p_adjusted": None if log10_p is None else probability(log10_p),
        "log10_p_adjusted": log10_p,
        "null": null,
        "align": "none",
        **kind_keys(cell.evidence),
        "agreement": None,
        "log10_p_bound": None if cell.certified is None else cell.certified.log10_p_bound,
        "log10_p_moments": None if cell.certified is None else cell.certified.log10_p_moments,
    }


def kind_keys(evidence: str) -> Detail:
    """Return the JSON of a kind of evidence: labels, permuted, invariant_to, evaded_by."""
    kind = KINDS[evidence]
    return {**dataclasses.asdict(kind), "invariant_to": list(kind.invariant_to)}


def module_rows(by_module: Mapping[str, float | None]) -> list[Detail]:
    """Return the JSON of z by matrix."""
    return [{"module": module, "z": z} for module, z in by_module.items()]


# ---------------------------------------------------------------------------------------------------------------------
# Notes


def write_notes(
    comparison: WeightsComparison,
    rows: Sequence[ComponentRow],
    deciding: ComponentTest | None,
    base: Fingerprint,
    suspect: Fingerprint,
    exactness: Sequence[str],
    *,
    is_stored: bool,
) -> list[str]:
    """Write what a verdict on weights rests on, point by point.

    The p of the ``deciding`` cell, None without one, stands behind the decision, under the condition ``exactness``. A
    model that ``is_stored`` is known by its fingerprint alone, which has no number of it.
    """
    notes = []
    if 0 < len(comparison.equal) < comparison.num_tensors:
        remainder = "" if is_stored else _other_tensors(comparison, base)
        notes.append(f"{identical_tensors(comparison)} identical, bit for bit, wherever they stand{remainder}.")
    if is_stored and not comparison.is_identical:
        notes += _within_rounding(comparison, base, suspect)
    for formula in dict.fromkeys(comparison.left_out.values()):
        kinds = ", ".join(kind for kind, name in comparison.left_out.items() if name == formula)
        notes.append(f"Left out, as no seed decided it: {kinds} agree with {formula} in either model by itself.")
    # The family, and the evidence that decides.
    evidence = dict.fromkeys(cell.evidence for cell in comparison.cells)
    compared = (
        f"Compared were {', '.join(evidence)}, over the whole model and its parts: {len(comparison.cells)} comparisons "
        "that were fixed beforehand."
    )
    if deciding is None:
        notes.append(compared)
    else:
        notes.append(f"{compared} The verdict's p-value is corrected for that number by Holm's method.")
        kind = KINDS[deciding.evidence]
        notes.append(
            f"The smallest p-value is that of {deciding.evidence}. "
            f"{rests_on(kind.permuted, kind.invariant_to, kind.evaded_by)}"
        )
    # What agrees, by part of the model, by block and table, by expert.
    notes += _by_component(comparison, rows) + _by_expert(comparison, rows)
    # Evidence that is undefined, and why.
    undefined = {
        cell.evidence: cell.reason for cell in comparison.cells if cell.component == ALL and cell.log10_p is None
    }
    notes += [f"Undefined: {name} ({reason})." for name, reason in undefined.items()]
    if comparison.matching is None:
        notes.append(f"Neurons were not matched: {comparison.matching_reason}.")
    else:
        notes.append(_matched(comparison.matching, comparison.components, len(comparison.pairs)))
    notes += _pairing(comparison)
    if deciding is not None:
        notes += exactness
    # Public signs and tensors without a role leave something open.
    if not base.settings.sign_key:
        notes.append(_PUBLIC_SIGNS)
    for name, model in (("base", base), ("suspect", suspect)):
        unread = model.source.unread
        if unread:
            more = f" and {len(unread) - _SHOWN_NAMES} more" if len(unread) > _SHOWN_NAMES else ""
            names = ", ".join(unread[:_SHOWN_NAMES])
            notes.append(f"Not understood in the {name}, and not compared: {names}{more} (--roles FILE).")
    return notes


def _other_tensors(comparison: WeightsComparison, base: Fingerprint) -> str:
    """Name the tensors of the base that the suspect has nowhere, where they are few."""
    equal = set(comparison.equal)
    unequal = [record.path for record in base.tensors if record.is_evidence and record.path not in equal]
    return f"; not {', '.join(map(path_in_words, unequal))}" if 0 < len(unequal) <= _SHOWN_NAMES else ""


def _matched(matching: Matching, components: Sequence[str], num_blocks: int) -> str:
    """Say how far two matchings of the first component agree, and what that is held against."""
    neurons = "neurons" if len(components) == 1 else f"{component_title(components[0])}'s neurons"
    is_beyond = "more" if matching.agreement > matching.threshold else "no more"
    of_blocks = f" in {len(matching.by_block)} of {num_blocks} blocks" if len(matching.by_block) < num_blocks else ""
    return (
        f"Two independent matchings of the {neurons}{of_blocks} agree on {matching.agreement:.1%} of them, {is_beyond} "
        f"than the {matching.threshold:.1%} from which on they decide; {matching.largest_unrelated_text}. This has no "
        "p-value."
    )


def _pairing(comparison: WeightsComparison) -> list[str]:
    """Say which block corresponds to which, where that is not number to number, and where the others come from."""
    pairs = [f"{pair.base} – {pair.suspect}" for pair in comparison.pairs if pair.base != pair.suspect]
    if not pairs and not comparison.further_blocks:
        return []
    same = [f"blocks/{pair.base}" for pair in comparison.pairs if pair.base == pair.suspect]
    listed = [f"{_ranges(same)} of either", *pairs] if same else pairs
    notes = [f"Corresponding blocks, base – suspect: {', '.join(listed)}."]
    for side in ("base", "suspect"):
        other = "suspect" if side == "base" else "base"
        rows = [row for row in comparison.further_blocks if row.side == side]
        origins = [f"{row.number} from {row.partner} (z = {row.z:.0f})" for row in rows if row.partner is not None]
        alone = [f"blocks/{row.number}" for row in rows if row.partner is None]
        if origins:
            notes.append(
                f"Further blocks of the {side}, and the {other}'s that have the same neurons: {', '.join(origins)}."
            )
        if alone:
            notes.append(f"Without a block of the {other} that they agree with: the {side}'s {_ranges(alone)}.")
    return notes


def _within_rounding(comparison: WeightsComparison, base: Fingerprint, suspect: Fingerprint) -> list[str]:
    """Write that sketches differ by no more than rounding to the coarser storage type explains; nothing otherwise."""
    types = {kind: _bits(kind) for model in (base, suspect) for kind in model.source.types}
    coarsest = min(types, key=lambda kind: types[kind], default="float32")
    bits, difference = types.get(coarsest, _SINGLE), comparison.sketch_difference
    # A weight moves by about 1.5 · 2^−bits of its size, and a unit vector of k entries by as much in all.
    if difference is None or difference > _STEPS + _DEVIATIONS * 1.5 * 2.0**-bits / math.sqrt(base.settings.dim):
        return []
    within = f"within what rounding to {coarsest} gives; " if bits < _SINGLE else ""
    return [f"Equal at the sketch's resolution ({difference:.1%}): {within}a smaller fine-tune is not excluded."]


def _bits(kind: str) -> int:
    number = re.search(r"\d+", kind)
    return _BITS.get(kind, 4 if number is None else int(number[0]))


def identical_tensors(comparison: WeightsComparison) -> str:
    """Count tensors that are equal: "6 of 20 tensors that a seed may have decided are"."""
    return f"{len(comparison.equal)} of {comparison.num_tensors} tensors that a seed may have decided are"


def evaded_by(comparison: WeightsComparison, *, has_strings: bool) -> str:
    """Describe what hides a shared initialization from all evidence that was defined, at once.

    Numbers of tokens may be given anew, strings (``has_strings``) may not.
    """
    # What each group of evidence needs to be hidden from.
    defined = {cell.evidence for cell in comparison.cells if cell.log10_p is not None}
    is_matched = comparison.matching is not None
    rotating = "rotating or permuting the residual coordinates"
    needed = [rotating] if defined & {COORDINATES, SIGNLESS, RAW_NEURONS, OUTPUTS} else []
    hidden = []
    if defined & {RAW_NEURONS, TOKEN_NEURONS} or is_matched:
        hidden.append("splitting, merging or retraining neurons" if is_matched else "permuting neurons")
    if TOKEN_HEADS in defined:
        hidden.append("permuting heads")
    evasions = [" together with ".join([*needed, *hidden])]
    if defined & {TOKEN_NEURONS, TOKEN_HEADS}:
        tables = "replacing the embeddings" if has_strings else "replacing the embeddings or reordering the vocabulary"
        evasions.append(" together with ".join([tables, *needed]))
    return "; or ".join(text for text in evasions if text)


def place(component: str) -> str:
    """Name a component of the family for a reader: "block 3", "expert 2", "block 1 of the vision tower"."""
    *model, group = component.split("/")
    if model and model[-1] in _NUMBERED:
        group = _NUMBERED[model.pop()].format(group)
    group = _GROUPS.get(group, group)
    if not model:
        return group
    return f"the {component_title(model[0])}" if group == ALL else f"{group} of the {component_title(model[0])}"


def _by_component(comparison: WeightsComparison, rows: Sequence[ComponentRow]) -> list[str]:
    """Name the blocks and tables that agree by themselves, where others do not."""
    parts = [row for row in rows if row["component"].startswith(("blocks/", "experts/"))]
    if comparison.is_significant(min(comparison.adjusted(evidence, ALL) for evidence in (COORDINATES, SIGNLESS))):
        # Coordinates alone distinguish tables and kinds of matrices.
        parts += [row for row in rows if "/" not in row["component"] and row["component"] not in (ALL, "blocks")]
    # Reordered neurons agree in no label of their own; that they were matched says that they do.
    matched = _matched_components(comparison)
    agreeing = [row["component"] for row in parts if row["verdict"] == "same-lineage" or row["component"] in matched]
    unrelated = [row["component"] for row in parts if row["verdict"] == "unrelated" and row["component"] not in matched]
    if not agreeing or not unrelated:
        return []
    return [f"Agreement shows in {_ranges(agreeing)}, and not in {_ranges(unrelated)}."]


def _matched_components(comparison: WeightsComparison) -> set[str]:
    """Return blocks and MLP matrices in which matchings agree beyond the threshold of their own."""
    matching = comparison.matching
    if matching is None or matching.agreement <= matching.threshold:
        return set()
    blocks = {f"blocks/{block}" for block, agreement in matching.by_block.items() if agreement > matching.threshold}
    return blocks | {"gate", "up", "down"}


def by_model_part(comparison: WeightsComparison, rows: Sequence[ComponentRow]) -> str:
    """Write of each part of models that have several, language model, vision tower, projector, whether it is shared.

    Returns:
        A sentence without its period; "" where models have one part, or where none is shared.
    """
    main, *further = comparison.components
    shared, unshared, undefined = [], [], []
    # Sort the parts: shared, not shared, undefined.
    for name in comparison.components:
        # Only the main part of the model has no prefix.
        prefixes = [row["component"].split("/")[0] for row in rows]
        parts = [prefix if prefix in further else main for prefix in prefixes]
        members = [row for row, part in zip(rows, parts, strict=True) if part == name]
        defined = [row["log10_p"] for row in members if row["log10_p"] is not None]
        if not defined:
            undefined.append(f"the {component_title(name)} is undefined ({members[0]['reason']})")
        elif comparison.is_significant(min(defined)):
            shared.append(
                f"the {component_title(name)} shares its initialization with the base's ({format_p(min(defined))})"
            )
        else:
            unshared.append(f"none was found in the {component_title(name)}")
    return "; ".join([*shared, *unshared, *undefined]) if further and shared else ""


def _by_expert(comparison: WeightsComparison, rows: Sequence[ComponentRow]) -> list[str]:
    """Name experts that agree with a dense MLP, or the order in which experts that agree stand in the suspect."""
    agreeing = [
        row["component"] for row in rows if row["component"].startswith("experts/") and row["verdict"] == "same-lineage"
    ]
    if not agreeing:
        return []
    if not comparison.experts:
        verb = "agrees" if len(agreeing) == 1 else "agree, each by itself,"
        text = _ranges(agreeing)
        return [f"{text[0].upper()}{text[1:]} {verb} with the dense MLP of the other model."]
    # By block the experts that stand at another index in the suspect.
    orders: dict[int, list[tuple[int, int]]] = {}
    for block, base, suspect in comparison.experts:
        if base != suspect and f"experts/{base}" in agreeing:
            orders.setdefault(block, []).append((base, suspect))
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
        # Join consecutive numbers.
        runs: list[list[int]] = []
        for number in numbers:
            if runs and runs[-1][1] == number - 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        texts += [f"{title} {first}" if first == last else f"{title}s {first} to {last}" for first, last in runs]
    return ", ".join(texts)
