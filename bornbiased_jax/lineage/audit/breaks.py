"""Breaks in a trajectory: a checkpoint farther from its neighbors than these are from each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bornbiased_jax.lineage.audit.finding import Finding
from bornbiased_jax.lineage.audit.summary import CheckpointSummary, release

THRESHOLD = 0.7
"""Training moves on, so that the ratio of a run as it was left is 1 or more; content from elsewhere lies far from both
neighbors, and gives far less."""


def find_breaks(run: Sequence[CheckpointSummary], advance: Callable[[], object] = lambda: None) -> list[Finding]:
    """Find the breaks of one run.

    The ratio at t is the median over tensors of d(t−1, t+1) / max(d(t−1, t), d(t, t+1)), d the Euclidean distance.

    Args:
        run: its checkpoints by ascending step, all opened.
        advance: called when a pair of checkpoints has been read.
    """
    findings = _other_shapes(run)
    before: Mapping[str, float] = {}
    for index in range(1, len(run)):
        # The step from the checkpoint before.
        step = distances(run[index - 1], run[index])
        advance()
        # From t − 1 to t + 1, against the longer of the two steps between.
        if index >= 2:
            over = distances(run[index - 2], run[index])
            advance()
            ratio = _ratio(before, step, over)
            if ratio is not None and ratio < THRESHOLD:
                names = [summary.name for summary in run[index - 2 : index + 1]]
                text = (
                    f"{names[1]} does not lie between {names[0]} and {names[2]}: these are {ratio:.2f} times as far "
                    "from each other as it is from them, where training gives 1 or more. It holds other content than "
                    "its label says, or training was rolled back there."
                )
                findings.append(Finding("break", (names[1],), text))
        before = step
    return findings


def _other_shapes(run: Sequence[CheckpointSummary]) -> list[Finding]:
    """Find checkpoints of other shapes than most of the run: no distance and no tie is defined of them."""
    shapes = [_shapes(summary) for summary in run]
    kinds = Counter(tuple(own_shapes.items()) for own_shapes in shapes)
    if len(kinds) < 2:
        return []
    # What most checkpoints have counts as the run's.
    usual = dict(kinds.most_common(1)[0][0])
    findings = []
    for summary, own_shapes in zip(run, shapes, strict=True):
        # The first tensor that differs stands for all.
        path = next((path for path in (*usual, *own_shapes) if usual.get(path) != own_shapes.get(path)), None)
        if path is not None:
            shape, usual_shape = (
                "absent" if table.get(path) is None else str(list(table[path])) for table in (own_shapes, usual)
            )
            # A checkpoint that lacks it has no name for it.
            tables = zip((summary, *run), (own_shapes, *shapes), strict=True)
            name = next(other.tensor_name(path) for other, table in tables if path in table)
            text = (
                f"{summary.name} has other shapes than the rest of its run ({name} is {shape} here and {usual_shape} "
                "there): it holds another model than its label says."
            )
            findings.append(Finding("break", (summary.name,), text))
    return findings


def _shapes(summary: CheckpointSummary) -> dict[str, tuple[int, ...]]:
    """Return the shapes of tensors; biases of zero are in some files alone."""
    source = summary.source
    return {role.path: source.array_shape(role) for role in source.roles if role.leaf != "bias"}


def distances(first: CheckpointSummary, second: CheckpointSummary) -> dict[str, float]:
    """Compute the Euclidean distance of every tensor that both have in one shape, holding two tensors at a time."""
    first_source, second_source = first.source, second.source
    second_roles = {role.path: role for role in second_source.roles}
    by_tensor = {}
    for role in first_source.roles:
        other = second_roles.get(role.path)
        if other is not None and second_source.array_shape(other) == first_source.array_shape(role):
            difference = first_source.read(role) - second_source.read(other)
            by_tensor[role.path] = float(np.sqrt(np.vdot(difference, difference)))
    release(first_source)
    release(second_source)
    return by_tensor


def _ratio(before: Mapping[str, float], after: Mapping[str, float], over: Mapping[str, float]) -> float | None:
    ratios = []
    for name, distance in over.items():
        longest = max(before.get(name, 0.0), after.get(name, 0.0))
        if longest > 0:
            ratios.append(distance / longest)
    return float(np.median(ratios)) if ratios else None
