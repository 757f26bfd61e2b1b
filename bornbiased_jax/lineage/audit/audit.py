"""The audit of a folder: every checkpoint read once, pairs tested, and all that speaks against the labels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bornbiased_jax import progress
from bornbiased_jax.errors import InputError
from bornbiased_jax.lineage.audit.breaks import find_breaks
from bornbiased_jax.lineage.audit.duplicates import Copies, find_copies, find_near_copies
from bornbiased_jax.lineage.audit.finding import AuditResult, AuditRow, Finding, RunRow, is_clean
from bornbiased_jax.lineage.audit.folder import Item, find_items
from bornbiased_jax.lineage.audit.gaps import find_gaps, find_single_checkpoints
from bornbiased_jax.lineage.audit.labels import by_run, is_alias
from bornbiased_jax.lineage.audit.scheme import find_distributions, find_repeats
from bornbiased_jax.lineage.audit.summary import CheckpointSummary, frozen_digests, summarize
from bornbiased_jax.lineage.audit.ties import (
    ALPHA,
    edges,
    find_parentage,
    find_shared_initializations,
    pairs_to_test,
    test_ties,
)


def audit_folder(
    folder: str | Path,
    pattern: re.Pattern[str] | None = None,
    *,
    all_pairs: bool = False,
    frozen: re.Pattern[str] | None = None,
) -> AuditResult:
    """Audit a folder of checkpoints.

    Args:
        folder: Hugging Face directories, files of weights, runs of this package; or one such run.
        pattern: of names, with a group ``step`` and perhaps ``run``.
        all_pairs: test every pair, however many checkpoints there are.
        frozen: paths or names of tensors declared frozen or shared: equal ones are no evidence.

    Returns:
        JSON-ready: ``clean``, ``findings``, ``checkpoints``, ``pairs``, ``runs``, ``graph``.

    Raises:
        InputError: no such folder, or no checkpoint in it.
    """
    items, findings = find_items(folder, pattern)
    return audit_items(items, findings, folder, all_pairs=all_pairs, frozen=frozen)


def audit_items(
    items: Sequence[Item],
    findings: Sequence[Finding],
    source: str | Path,
    *,
    all_pairs: bool = False,
    frozen: re.Pattern[str] | None = None,
) -> AuditResult:
    """Audit checkpoints wherever they lie, as :func:`audit_folder` does; findings come from before any was opened."""
    # Read every checkpoint once: digests, moments, a reader for later.
    findings = list(findings)
    summaries: dict[str, CheckpointSummary] = {}
    left_by_run: dict[Path | None, frozenset[str]] = {None: frozenset()}
    with progress.bar(len(items), "reading", "checkpoints") as advance:
        for item in items:
            adapted = item.origin.adapted if item.origin is not None else None
            try:
                if item.origin is not None and adapted is not None and adapted not in left_by_run:
                    left_by_run[adapted] = frozen_digests(adapted)
                summaries[item.name] = summarize(item, frozen, left_by_run[adapted])
                refusal = item.refusal and f"{item.refusal}; its files are digested alone"
            except (InputError, OSError) as error:
                refusal = str(error)
            if refusal:
                findings.append(Finding("unreadable", (item.name,), f"{item.name} cannot be read: {refusal}."))
            advance()
    # What each name claims, and the steps of each run.
    labels = {name: summary.item.label for name, summary in summaries.items()}
    names_by_step = by_run({item.name: item.label for item in items})  # one that cannot be read is no gap
    runs, stepless = _runs(summaries)
    # Duplicates, exact and near.
    aliases = [
        name for name, row in summaries.items() if row.item.is_above or (is_alias(name) and row.item.label.step is None)
    ]
    forms = {name: summary.forms for name, summary in summaries.items()}
    copies = Copies(
        labels,
        {name: digests["exact"] for name, digests in forms.items()},
        unit="tensors that are not constant",
        aliases=aliases,
        file_digests={name: summary.file_digest for name, summary in summaries.items() if summary.file_digest},
        initial_seeds={
            item.label.run: item.origin.seed
            for item in items
            if item.name in summaries and item.origin is not None and item.origin.is_initialized_here
        },
        part_name=lambda name, part: summaries[name].tensor_name(part),
    )
    # Copies up to signed zeros or number format; their parts are not listed again.
    near = find_near_copies(forms, aliases)
    findings += [*find_copies(copies, near), *near]
    # Gaps in the grid of steps, breaks in a trajectory.
    findings += find_gaps(names_by_step) + find_single_checkpoints(names_by_step)
    with progress.bar(sum(max(0, 2 * len(run) - 3) for run in runs.values()), "distances", "pairs") as advance:
        for run in runs.values():
            findings += find_breaks(run, advance)
    # Test pairs for a shared initialization, and compare what they say with the labels.
    pairs = pairs_to_test(runs, stepless, all_pairs=all_pairs)
    with progress.bar(len(pairs), "shared initializations", "pairs") as advance:
        ties = test_ties(summaries, runs, pairs, advance)
    # A break that distances show is not reported by ties as well.
    reported = {finding.subjects for finding in findings if finding.kind == "break"}
    findings += [row for row in find_parentage(runs, ties) if row.kind != "break" or row.subjects not in reported]
    findings += find_shared_initializations(runs, stepless, ties)
    # Initial weights by themselves, and against the distribution that their configuration states.
    initializations = [summary for summary in summaries.values() if summary.item.label.step == 0]
    repeating = find_repeats(initializations)
    findings += repeating
    findings += find_distributions(initializations, {name for finding in repeating for name in finding.subjects})
    return {
        "clean": is_clean(findings),
        "findings": [finding.to_dict() for finding in findings],
        "checkpoints": [_checkpoint(summary) for summary in summaries.values()],
        "pairs": [tie.to_dict() for tie in ties.values()],
        "runs": _run_rows(names_by_step, summaries),
        "graph": {"nodes": list(summaries), "edges": edges(summaries, runs, ties)},
        "source": str(source),
        "alpha": ALPHA,
        "basis": _basis(summaries.values()),
    }


def _runs(
    summaries: Mapping[str, CheckpointSummary],
) -> tuple[dict[str, list[CheckpointSummary]], list[CheckpointSummary]]:
    """Sort opened checkpoints by run and ascending step, and list those without a step."""
    runs: dict[str, list[CheckpointSummary]] = {}
    stepless = []
    for summary in summaries.values():
        if summary.opened is None:
            continue
        if summary.item.label.step is None:
            stepless.append(summary)
        else:
            runs.setdefault(summary.item.label.run, []).append(summary)
    return {
        run: sorted(members, key=lambda member: member.item.label.step or 0) for run, members in runs.items()
    }, stepless


def _basis(summaries: Iterable[CheckpointSummary]) -> str:
    """Say what was read, and once for all checkpoints what is not looked at in those that are read by names."""
    basis = "all weights, read tensor by tensor"
    count = sum(summary.opened is not None and summary.config is None for summary in summaries)
    if not count:
        return basis
    owners = "1 checkpoint" if count == 1 else f"{count} checkpoints"
    return (
        f"{basis}, those of {owners} by the names of tensors, as this package does not run their configuration: norms "
        "and biases of such a step 0 are held against nothing, and no scheme is named"
    )


def _checkpoint(summary: CheckpointSummary) -> AuditRow:
    item = summary.item
    return {
        "name": item.name,
        "run": item.label.run,
        "step": item.label.step,
        "opened": summary.opened is not None,
        "note": f"read by names: {summary.by_names}" if summary.by_names else item.note,
        "model": None if summary.opened is None else summary.opened.description,
        "file_digest": summary.file_digest or None,
        "digests": summary.forms["exact"],
        "law": [
            {"tensor": name, "entries": part.entries, "mean": part.mean, "std": part.std, "kurtosis": part.kurtosis}
            for name, part in summary.moments.items()
        ],
    }


def _run_rows(names: Mapping[str, Mapping[int, str]], summaries: Mapping[str, CheckpointSummary]) -> list[RunRow]:
    """List runs with their steps, and which share their data as far as run records say."""
    data: dict[str, Mapping[str, object] | str] = {}
    for run, by_step in names.items():
        origins = [summaries[name].item.origin for name in by_step.values() if name in summaries]
        data[run] = next((origin.data for origin in origins if origin is not None), "not known")
    return [
        {
            "name": run,
            "steps": sorted(by_step),
            "data": data[run],
            "shares_data_with": "not known"
            if data[run] == "not known"
            else [other for other, source in data.items() if other != run and source == data[run]],
        }
        for run, by_step in names.items()
    ]
