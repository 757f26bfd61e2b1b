"""Checkpoints that hold the same numbers under different labels: whole, or in part."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping

from bornbiased_jax.lineage.audit.finding import Finding, listed
from bornbiased_jax.lineage.audit.labels import Label, by_run, last_part

# So many checkpoints of a run that share a tensor show a frozen one, not a copy.
_FROZEN = 3


@dataclasses.dataclass(frozen=True)
class Copies:
    """The digests in which duplicates are searched.

    Attributes:
        labels: what each checkpoint's name claims.
        digests: by checkpoint, a digest for each part that is evidence (a file, or a tensor that is not constant).
        unit: what the parts are, in the plural.
        aliases: checkpoints without content of their own: "main", or the model above a trainer's checkpoints.
        file_digests: by checkpoint, one digest of its files; those without are left out.
        initial_seeds: by run, the seed that its record says it was initialized from.
        part_name: names a part for a reader, from the checkpoint and the part.
    """

    labels: Mapping[str, Label]
    digests: Mapping[str, Mapping[str, str]]
    unit: str
    aliases: Collection[str] = ()
    file_digests: Mapping[str, str] = dataclasses.field(default_factory=dict)
    initial_seeds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    part_name: Callable[[str, str], str] = lambda _name, part: part


def find_copies(copies: Copies, reported: Iterable[Finding] = ()) -> list[Finding]:
    """Find duplicates, shared initializations, and checkpoints that share some parts.

    Equal step 0 of different runs is a shared initialization, which is no defect unless run records say that they were
    initialized from different seeds. A name without content of its own ("main") may be a copy of another.

    Args:
        copies: where to look.
        reported: findings that say of pairs what they share: their parts are not listed again.
    """
    copies = dataclasses.replace(copies, aliases=[*copies.aliases, *_final_models(copies)])
    complete = _equal_checkpoints(copies) + _stale_aliases(copies)
    findings_of: defaultdict[str, set[int]] = defaultdict(set)
    for number, finding in enumerate((*complete, *reported)):
        for name in finding.subjects:
            findings_of[name].add(number)
    return complete + _parts(copies, findings_of)


def find_near_copies(
    forms: Mapping[str, Mapping[str, Mapping[str, str]]], aliases: Collection[str] = ()
) -> list[Finding]:
    """Find pairs whose tensors are equal but for signed zeros, or once one is stored in the other's number format.

    Args:
        forms: by checkpoint, digests of its tensors as they are ("exact"), without signs of zeros ("unsigned"), and
            rounded ("bfloat16", "float16").
        aliases: as of :class:`Copies`.
    """
    findings = []
    for first, second in itertools.combinations(forms, 2):
        if first in aliases or second in aliases:
            continue
        # Exact copies are found by their digests already.
        first_forms, second_forms = forms[first], forms[second]
        if not first_forms["exact"] or first_forms["exact"] == second_forms["exact"]:
            continue
        if first_forms["unsigned"] == second_forms["unsigned"]:
            findings.append(_near(first, second, "but for the signs of zeros"))
            continue
        # A cast: equal after rounding, and one of them is stored so, but for tensors that are equal as they are: GGUF
        # files keep vectors in single precision.
        equal = dict(first_forms["unsigned"].items() & second_forms["unsigned"].items()).keys()
        for form in ("bfloat16", "float16"):
            stored = [
                (name, len(unrounded))
                for name, digests in ((first, first_forms), (second, second_forms))
                if (unrounded := _not_stored_in(form, digests)) <= equal
            ]
            if first_forms[form] == second_forms[form] and len(stored) == 1:
                name, count = stored[0]
                but = f", but for {count} tensors that are equal as they are" if count else ""
                findings.append(_near(first, second, f"once both are in {form}, in which {name} is stored{but}"))
                break
    return findings


def _not_stored_in(form: str, digests: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Return the tensors of a checkpoint that rounding to a number format changes."""
    return {path for path, digest in digests["unsigned"].items() if digests[form][path] != digest}


def _near(first: str, second: str, manner: str) -> Finding:
    return Finding("near-duplicate", (first, second), f"{first} and {second} hold the same numbers {manner}.")


def frozen_parts(labels: Mapping[str, Label], digests: Mapping[str, Mapping[str, str]]) -> dict[str, set[str]]:
    """List by run the parts with one digest in each of its checkpoints, of which there are at least three."""
    # Checkpoints by run; a part is frozen where all of a run have one digest of it.
    members: dict[str, list[str]] = defaultdict(list)
    for name, label in labels.items():
        if digests.get(name) and label.step is not None:
            members[label.run].append(name)
    frozen: dict[str, set[str]] = {}
    for run, names in members.items():
        first = digests[names[0]]
        equal = {part for part, digest in first.items() if all(digests[name].get(part) == digest for name in names)}
        frozen[run] = equal if len(names) >= _FROZEN else set()
    return frozen


def _equal_checkpoints(copies: Copies) -> list[Finding]:
    # Checkpoints by their content: the set of all digests.
    groups: dict[frozenset[str], list[str]] = defaultdict(list)
    for name, parts in copies.digests.items():
        if parts and name not in copies.aliases:
            groups[frozenset(parts.values())].append(name)
    findings = []
    for names in groups.values():
        if len(names) < 2:
            continue
        labels = [copies.labels[name] for name in names]
        # Equal initializations of several runs are one initialization, unless records name other seeds.
        are_initial = all(label.step == 0 for label in labels) and len({label.run for label in labels}) == len(labels)
        seeds = {copies.initial_seeds[label.run] for label in labels if label.run in copies.initial_seeds}
        file_digests = {copies.file_digests.get(name) for name in names}
        files = len(file_digests) == 1 and None not in file_digests
        count = len(copies.digests[names[0]])
        content = "the same files, byte for byte" if files else f"the same {copies.unit}, all {count} of them"
        if are_initial and len(seeds) < 2:
            text = f"{listed(names)} are one initialization: {content}. These runs differ in something else."
            findings.append(Finding("shared-birth", tuple(names), text))
        elif len(names) == 2 and {*labels} == {Label(labels[0].run, step) for step in (0, 1)}:
            text = f"{listed(names)} hold {content}: a first step at a learning rate of 0, as of a warmup from 0, does "
            text += "that. Where the schedule begins above 0, one of the two is a copy."
            findings.append(Finding("idle-step", tuple(names), text))
        else:
            claim = ", though their records name different seeds" if are_initial else ""
            findings.append(Finding("duplicate", tuple(names), f"{listed(names)} hold {content}{claim}."))
    return findings


def _final_models(copies: Copies) -> list[str]:
    """Return the names without a step, each that of a run, which hold what the run's last step does."""
    runs = by_run(copies.labels)
    return [
        name
        for name, (run, step) in copies.labels.items()
        if step is None and run in runs and copies.digests[name] == copies.digests[runs[run][max(runs[run])]]
    ]


def _stale_aliases(copies: Copies) -> list[Finding]:
    """Find names that promise the last step of a run and hold an earlier one."""
    runs = by_run({name: label for name, label in copies.labels.items() if copies.digests.get(name)})
    findings = []
    for alias in copies.aliases:
        # The best need not be the last.
        if last_part(alias) == "best":
            continue
        for names in runs.values():
            content = copies.digests.get(alias)
            # Steps whose content stands under the alias: the last of the run should be among them.
            equal = [step for step, name in names.items() if content and copies.digests[name] == content]
            if equal and max(equal) < max(names):
                twin, last = names[max(equal)], names[max(names)]
                text = f"{alias} holds the same {copies.unit} as {twin}, and not those of {last}, the last of that run."
                findings.append(Finding("duplicate", (alias, twin), text))
    return findings


def _parts(copies: Copies, findings_of: defaultdict[str, set[int]]) -> list[Finding]:
    """Find checkpoints that share some parts and not all, but for pairs that have a finding in common already.

    No evidence is a part that is frozen in its run, that every checkpoint has, or that several runs keep frozen. What
    initializations alone share (a table drawn once for all) is information, and so is what the only two checkpoints of
    a run share: nothing tells a frozen part from a copied one.
    """
    frozen = frozen_parts(copies.labels, copies.digests)
    # Checkpoints by the digest of a part that they hold.
    holders: dict[str, dict[str, str]] = defaultdict(dict)
    for name, parts in copies.digests.items():
        if name not in copies.aliases:
            for part, digest in parts.items():
                holders[digest].setdefault(name, part)
    # Parts by the group of checkpoints that shares them.
    shared: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for part_by_name in holders.values():
        if len(part_by_name) < 2 or (len(part_by_name) == len(copies.digests) and len(part_by_name) >= _FROZEN):
            continue
        representatives: dict[str, str] = {}  # of a run in which the part is frozen, one checkpoint stands for all
        for name, part in part_by_name.items():
            run = copies.labels[name].run
            representatives.setdefault(run if part in frozen.get(run, ()) else name, name)
        if len(representatives) >= 2 and any(key == name for key, name in representatives.items()):
            shared[tuple(representatives.values())].append(copies.part_name(*next(iter(part_by_name.items()))))
    num_members = Counter(copies.labels[name].run for name, parts in copies.digests.items() if parts)
    # One finding a group.
    findings = []
    for names, common in shared.items():
        if all(findings_of[first] & findings_of[second] for first, second in itertools.combinations(names, 2)):
            continue
        total = max(len(copies.digests[name]) for name in names)
        # Parts that further checkpoints hold too are shared all the same.
        count = len(set.intersection(*(set(copies.digests[name].values()) for name in names)))
        text = f"{listed(names)} share {count} of {total} {copies.unit} and not the others: "
        text += listed(sorted(common), 3)
        text += f", and {count - len(common)} that further checkpoints have too" if count > len(common) else ""
        # What initializations alone share was drawn once for all.
        labels = [copies.labels[name] for name in names]
        are_initial = all(label.step == 0 for label in labels) and len({label.run for label in labels}) == len(labels)
        if are_initial:
            findings.append(Finding("shared-birth", names, f"{text}. They were drawn once for all of these runs."))
        elif len(names) == 2 and labels[0].run == labels[1].run and num_members[labels[0].run] == 2:
            text += ". Training that left them frozen does that, and so does a copy: a third of the run would tell."
            findings.append(Finding("inconclusive", names, text))
        else:
            findings.append(Finding("duplicate", names, f"{text}."))
    return findings
