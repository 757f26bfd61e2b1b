"""Exact tests of shared initializations between checkpoints of a folder, and what they say of the labels."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.lineage.audit.breaks import distances
from bornbiased_jax.lineage.audit.finding import AuditRow, Finding, listed
from bornbiased_jax.lineage.audit.summary import CheckpointSummary
from bornbiased_jax.lineage.component_pair import ComponentPair, MatrixCell
from bornbiased_jax.lineage.evidence import COORDINATES, SIGNLESS, EvidenceError
from bornbiased_jax.lineage.verdict import probability
from bornbiased_jax.stats.multiple import holm_log10
from bornbiased_jax.stats.permutations import NUM_PERMUTATIONS
from bornbiased_jax.stats.terms import Term, certified_sum

ALPHA = 0.01
"""Family-wise level of an audit: the probability of one false tie or more among all that are tested."""
MOST_FOR_ALL = 24
"""So many checkpoints at most are compared pair by pair unless all pairs are asked for."""

RunPair = tuple[str, str]
CheckpointsByRun = Mapping[str, Sequence[CheckpointSummary]]


@dataclasses.dataclass(frozen=True)
class Tie:
    """One tested pair.

    Attributes:
        pair: the names, the earlier step first.
        log10_p: of the test; None where it is undefined or the two are identical.
        log10_p_adjusted: after Holm's correction over the audit.
        z: the statistic's distance from its mean over permutations: a description.
        tied: whether a shared initialization was found.
        identical: whether all tensors are equal, so that no test is needed.
        reason: why there is no p, or "".
    """

    pair: RunPair
    log10_p: float | None
    log10_p_adjusted: float | None
    z: float | None
    tied: bool
    identical: bool = False
    reason: str = ""

    @property
    def p_value(self) -> float | None:
        """Holm's p, as a number."""
        return None if self.log10_p_adjusted is None else probability(self.log10_p_adjusted)

    def to_dict(self) -> AuditRow:
        """Return the pair as JSON has it."""
        facts = {name: value for name, value in vars(self).items() if name != "pair"}
        return {"checkpoints": list(self.pair), **facts, "p_value": self.p_value}


def pairs_to_test(runs: CheckpointsByRun, stepless: Sequence[CheckpointSummary], *, all_pairs: bool) -> list[RunPair]:
    """Choose the pairs to test before any is tested: checkpoints against each run's earliest, neighbors, or all."""
    checkpoints = [summary for run in runs.values() for summary in run] + list(stepless)
    if all_pairs or len(checkpoints) <= MOST_FOR_ALL:
        return [(first.name, second.name) for first, second in itertools.combinations(checkpoints, 2)]
    # Every checkpoint with the earliest of each run, then neighbors within a run.
    pairs: dict[frozenset[str], RunPair] = {}
    for earliest in [run[0] for run in runs.values()] + list(stepless):
        for summary in checkpoints:
            if summary.name != earliest.name:
                pairs.setdefault(frozenset((earliest.name, summary.name)), (earliest.name, summary.name))
    for run in runs.values():
        for first, second in itertools.pairwise(run):
            pairs.setdefault(frozenset((first.name, second.name)), (first.name, second.name))
    return list(pairs.values())


def test_ties(
    summaries: Mapping[str, CheckpointSummary],
    runs: CheckpointsByRun,
    pairs: Sequence[RunPair],
    advance: Callable[[], object] = lambda: None,
) -> dict[frozenset[str], Tie]:
    """Test every pair of fingerprints by permutations of residual coordinates, Holm's correction over all of them.

    Matrices that two runs' initializations have in common bit for bit, as tables drawn once for all seeds, are left out
    of the comparison of these runs; so are matrices that are equal in the two checkpoints themselves.
    """
    ties: dict[frozenset[str], Tie] = {}
    for pair in pairs:
        first, second = (summaries[name] for name in pair)
        ties[frozenset(pair)] = _test(first, second, _shared_tables(first, second, runs))
        advance()
    return _adjusted(ties)


def _test(first: CheckpointSummary, second: CheckpointSummary, left_out: set[MatrixCell]) -> Tie:
    pair = first.name, second.name
    if (digests := _digests(first)) and digests == _digests(second):
        return Tie(pair, None, None, None, True, identical=True)
    try:
        sums = [certified_sum([term], NUM_PERMUTATIONS) for term in _terms(first, second, left_out)]
    except EvidenceError as error:
        return Tie(pair, None, None, None, False, reason=str(error))
    # The stronger of the two, Bonferroni over both.
    defined = [certified for certified in sums if math.isfinite(certified.z)]
    if not defined:
        return Tie(pair, None, None, None, False, reason="every order of the coordinates gives the same statistic")
    stronger = min(defined, key=lambda certified: (certified.log10_p, -certified.z))
    return Tie(pair, min(0.0, stronger.log10_p + math.log10(len(sums))), None, stronger.z, False)


def _terms(first: CheckpointSummary, second: CheckpointSummary, left_out: set[MatrixCell]) -> list[Term]:
    """Score residual coordinates over all matrices that are evidence, as they are and squared."""
    if first.fingerprint is None or second.fingerprint is None:
        raise EvidenceError(first.refusal or second.refusal)
    if any(LANGUAGE not in model.components for model in (first.fingerprint, second.fingerprint)):
        raise EvidenceError("no tensor of a language model is understood by its name")
    # Tables whose tokens have names of two kinds do not correspond.
    components = [model.components[LANGUAGE] for model in (first.fingerprint, second.fingerprint)]
    if components[0].token_labels != components[1].token_labels:
        left_out = left_out | {(None, "embedding"), (None, "head")}
    pair = ComponentPair(first.fingerprint, second.fingerprint, LANGUAGE, left_out)
    # As they are, where long training leaves most to see; and squared, which no negated coordinate hides.
    return pair.terms(COORDINATES) + pair.terms(SIGNLESS)


def _adjusted(ties: dict[frozenset[str], Tie]) -> dict[frozenset[str], Tie]:
    """Apply Holm's correction; tests without a p count as p = 1."""
    log10_p = {key: tie.log10_p for key, tie in ties.items() if tie.log10_p is not None}
    count = sum(not tie.identical for tie in ties.values())
    corrected = dict(ties)
    for key, adjusted in zip(log10_p, holm_log10(list(log10_p.values()), count=count).tolist(), strict=True):
        corrected[key] = dataclasses.replace(ties[key], log10_p_adjusted=adjusted, tied=adjusted <= math.log10(ALPHA))
    return corrected


def _shared_tables(first: CheckpointSummary, second: CheckpointSummary, runs: CheckpointsByRun) -> set[MatrixCell]:
    left_out = _equal_matrices(first, second)
    firsts = [run[0] for run in (runs.get(summary.item.label.run) for summary in (first, second)) if run]
    # Two runs with one initialization share all of it, which is what the test looks for.
    if len(firsts) == 2 and _digests(firsts[0]) != _digests(firsts[1]):
        left_out |= _equal_matrices(*firsts)
    return left_out


def _equal_matrices(first: CheckpointSummary, second: CheckpointSummary) -> set[MatrixCell]:
    """Return the matrices that two checkpoints have in common, experts of a block only where all of them are equal."""
    digests, other_digests = _digests(first), _digests(second)
    is_equal: dict[MatrixCell, bool] = {}
    for role in first.source.roles if digests else ():
        if role.path in digests and role.component == LANGUAGE and role.leaf in ("kernel", "embedding"):
            cell = role.block, role.matrix
            is_equal[cell] = is_equal.get(cell, True) and other_digests.get(role.path) == digests[role.path]
    return {cell for cell, equal in is_equal.items() if equal}


def _digests(summary: CheckpointSummary) -> dict[str, str]:
    """Return the digests of a checkpoint's tensors by path, frozen ones too; constant tensors are left out."""
    tensors = () if summary.fingerprint is None else summary.fingerprint.tensors
    return {record.path: record.digest for record in tensors if record.is_evidence}


def find_parentage(runs: CheckpointsByRun, ties: Mapping[frozenset[str], Tie]) -> list[Finding]:
    """Find what ties say against the labels.

    A checkpoint tied to another run's earliest one and not to its own has another parent. One that is tied to none is
    not decided, unless both neighbors are tied to their own initialization: a test that finds nothing proves nothing.
    """
    findings = []
    initializations = {run: members[0] for run, members in runs.items()}
    # Every checkpoint that is not tied to the first of its own run.
    for run, members in runs.items():
        root = initializations[run]
        astray: dict[CheckpointSummary, list[CheckpointSummary]] = defaultdict(list)
        undecided: list[CheckpointSummary] = []
        for index, summary in enumerate(members[1:], 1):
            if _tied(ties, summary, root) is not False:
                continue
            # Other initializations that this checkpoint is tied to, but for relatives of its own.
            parents = [
                initial
                for other_run, initial in initializations.items()
                if other_run != run and _tied(ties, summary, initial)
            ]
            parents = [initial for initial in parents if not _tied(ties, initial, root)]
            # Between two tied neighbors a missing tie is a break.
            neighbors = [members[index - 1], members[index + 1]] if index + 1 < len(members) else []
            if parents:
                astray[parents[0]].append(summary)
            elif neighbors and all(summary is root or _tied(ties, summary, root) for summary in neighbors):
                text = (
                    f"{summary.name} shows no shared initialization with {root.name}, to which "
                    f"{listed(n.name for n in neighbors)}, before and after it, are tied: it holds other content than "
                    "its label says."
                )
                findings.append(Finding("break", (summary.name,), text))
            else:
                undecided.append(summary)
        findings += [_parentage(root, parent, children, ties) for parent, children in astray.items()]
        if undecided:
            names = tuple(summary.name for summary in undecided)
            text = (
                f"{listed(names)} {'shows' if len(names) == 1 else 'show'} no shared initialization with {root.name} "
                "and with no other one here. It may have another one, or training that left no trace of this one: a "
                "test that finds nothing proves nothing."
            )
            findings.append(Finding("inconclusive", names, text))
    return findings


def _tied(ties: Mapping[frozenset[str], Tie], first: CheckpointSummary, second: CheckpointSummary) -> bool | None:
    """Tell whether two checkpoints are tied; None where no test could say."""
    tie = ties.get(frozenset((first.name, second.name)))
    if tie is None or (tie.log10_p is None and not tie.identical):
        return None
    return tie.tied


def _parentage(
    root: CheckpointSummary,
    parent: CheckpointSummary,
    children: Sequence[CheckpointSummary],
    ties: Mapping[frozenset[str], Tie],
) -> Finding:
    names = tuple(summary.name for summary in children)
    # The weakest of the ties to the parent is quoted.
    parent_ties = [ties[frozenset((name, parent.name))] for name in names]
    p_value = max((tie.p_value or 0.0 for tie in parent_ties), default=0.0)
    # How much nearer the first child is to its parent than to the run's own root.
    to_root, to_parent = (distances(initial, children[0]) for initial in (root, parent))
    ratios = [distance / to_parent[name] for name, distance in to_root.items() if to_parent.get(name, 0.0) > 0]
    possessor = "its distance" if len(names) == 1 else f"the distance of {names[0]}"
    far = f"; {possessor} to {root.name} is {np.median(ratios):.3f} times that to {parent.name}" if ratios else ""
    text = (
        f"{listed(names)} {'shares' if len(names) == 1 else 'share'} an initialization with {parent.name}, and none is "
        f"found with {root.name}, step {root.item.label.step} of {'its' if len(names) == 1 else 'their'} own run{far}."
    )
    return Finding("parentage", names, text, p_value)


def find_shared_initializations(
    runs: CheckpointsByRun, stepless: Sequence[CheckpointSummary], ties: Mapping[frozenset[str], Tie]
) -> list[Finding]:
    """Find runs, and checkpoints without a step, whose initializations are one though not equal bit for bit."""
    # Each run by its first checkpoint.
    firsts = [run[0] for run in runs.values()] + list(stepless)
    findings = []
    for first, second in itertools.combinations(firsts, 2):
        tie = ties.get(frozenset((first.name, second.name)))
        if tie is not None and tie.tied and not tie.identical:
            text = (
                f"{first.name} and {second.name} share an initialization. "
                "Which is the older one no test of weights can say."
            )
            findings.append(Finding("shared-birth", (first.name, second.name), text, tie.p_value))
    return findings


def edges(
    summaries: Mapping[str, CheckpointSummary], runs: CheckpointsByRun, ties: Mapping[frozenset[str], Tie]
) -> list[AuditRow]:
    """List the edges of the lineage graph: tied pairs that say something.

    These are an initialization and its descendants, neighbors and copies. A direction is known of a run of this package
    alone, whose record says what it began with.
    """
    # Edges that say something: from a first checkpoint, between neighbors, copies, and what has no step.
    firsts = {run[0].name for run in runs.values()}
    adjacent = {frozenset((a.name, b.name)) for run in runs.values() for a, b in itertools.pairwise(run)}
    rows: list[AuditRow] = []
    for key, tie in ties.items():
        first, second = (summaries[name] for name in tie.pair)
        stepless = first.item.label.step is None or second.item.label.step is None
        if not tie.tied or not (tie.identical or firsts & key or key in adjacent or stepless):
            continue
        # The run's record gives a direction, from earlier to later; weights alone give none.
        same_run = first.item.label.run == second.item.label.run and first.item.origin is not None
        ordered = sorted((first, second), key=lambda summary: summary.item.label.step or 0)
        rows.append(
            {
                "between": list(tie.pair),
                "from": ordered[0].name if same_run else None,
                "to": ordered[1].name if same_run else None,
                "evidence": "identical" if tie.identical else "shared birth",
                "direction": "run record" if same_run else None,
                "p_value": tie.p_value,
                "log10_p": tie.log10_p,
            }
        )
    return rows
