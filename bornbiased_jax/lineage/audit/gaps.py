"""Steps that are missing from the grid of a run's checkpoints."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence

from bornbiased_jax.lineage.audit.finding import Finding, listed
from bornbiased_jax.lineage.audit.labels import at_step

# A run follows the grid of the others if it has this part of it.
_FOLLOWS = 2 / 3
# So many equal intervals make a grid of their own.
_SEVERAL = 3
# So many steps at most are missing for each that is there: pairs of checkpoints one update apart are on no grid.
_MOST_MISSING = 3


def find_gaps(runs: Mapping[str, Mapping[int, str]]) -> list[Finding]:
    """Find gaps by run, from names of checkpoints by step, by run.

    A step is missing where the run's own grid says so (:func:`missing_steps`), or most other runs have it and this one
    has most of what they have before and after it.
    """
    findings = []
    for run, names in runs.items():
        # Steps that the run's own grid lacks, and those that other runs have.
        from_intervals = missing_steps(sorted(names))
        from_others = _missing_from_others(run, runs)
        missing = sorted({*from_intervals, *from_others})
        if not missing:
            continue
        # Each missing checkpoint is named as its nearest neighbor is.
        nearest = {step: min(names, key=lambda present, step=step: abs(present - step)) for step in missing}  # type: ignore[misc]
        subjects = tuple(at_step(names[nearest[step]], nearest[step], step) for step in missing)
        reason = "the interval of its own grid asks for" if from_intervals else "the other runs have"
        owner = f"Run {run}" if run else "The run"
        count = "one step" if len(missing) == 1 else f"{len(missing)} steps"
        findings.append(Finding("gap", subjects, f"{owner} lacks {count} that {reason}: {listed(subjects)}."))
    return findings


def find_single_checkpoints(runs: Mapping[str, Mapping[int, str]]) -> list[Finding]:
    """Find names that give every run one checkpoint, at several steps: no gap and no order can be looked for.

    Several runs at one step are a set of seeds, and no finding.
    """
    steps = {step for names in runs.values() for step in names}
    if len(runs) < 2 or len(steps) < 2 or any(len(names) > 1 for names in runs.values()):
        return []
    subjects = tuple(name for names in runs.values() for name in names.values())
    text = (
        f"Read by their names, the {len(runs)} checkpoints are of {len(runs)} runs, one each: no gap, no break and no "
        "parentage could be looked for. If they belong together, give --pattern with groups run and step."
    )
    return [Finding("one-per-run", subjects, text)]


def missing_steps(steps: Sequence[int]) -> list[int]:
    """List the steps that a grid with a constant interval, or a constant ratio, lacks.

    An interval is too long where it is a multiple of the one before and after it, which are equal (so that grids that
    change their interval, or go from powers to multiples, have no gap), or the last one, where several equal ones go
    before it. Ratios likewise. Of a grid at least a quarter is there.

    Args:
        steps: ascending, without repetition.

    >>> missing_steps([0, 100, 200, 400, 500]), missing_steps([0, 1, 2, 4, 16, 32, 64]), missing_steps([0, 1, 2, 4, 8])
    ([300], [8], [])
    """
    # Intervals that are a multiple of their neighbors.
    gaps: list[range] = []
    num_missing = 0
    intervals = [after - before for before, after in zip(steps, steps[1:], strict=False)]
    for index, interval in enumerate(intervals):
        unit = _unit(intervals, index)
        if unit and interval > unit and interval % unit == 0:
            gaps.append(range(steps[index] + unit, steps[index + 1], unit))
            num_missing += interval // unit - 1
    missing = {*itertools.chain(*gaps)} if num_missing <= _MOST_MISSING * len(steps) else set()
    # Ratios that are a power of their neighbors; 0 where there is none, as where powers go over to multiples.
    positive = [step for step in steps if step > 0]
    pairs = zip(positive, positive[1:], strict=False)
    ratios = [0 if after % before else after // before for before, after in pairs]
    for index, ratio in enumerate(ratios):
        unit = _unit(ratios, index)
        if unit and unit > 1 and ratio > unit:
            between, at = [], positive[index] * unit
            while at < positive[index + 1]:
                between.append(at)
                at *= unit
            if at == positive[index + 1]:
                missing |= set(between)
    return sorted(missing)


def _unit(values: Sequence[int], index: int) -> int | None:
    """Return the value on both sides, or on one side several times where there is no other."""
    before, after = values[:index], values[index + 1 :]
    if before and after:
        return before[-1] if before[-1] == after[0] else None
    neighbors = before[-_SEVERAL:] if before else after[:_SEVERAL]
    return neighbors[0] if len(neighbors) == _SEVERAL and len(set(neighbors)) == 1 else None


def _missing_from_others(run: str, runs: Mapping[str, Mapping[int, str]]) -> list[int]:
    own_steps = set(runs[run])
    other_runs = [set(names) for name, names in runs.items() if name != run and len(names) > 1]
    if not other_runs or len(own_steps) < 2:
        return []
    # The grid of the others: steps that most of them have, within this run's range.
    count = Counter(step for steps in other_runs for step in steps)
    grid = {step for step, times in count.items() if 2 * times > len(other_runs) and (step <= max(own_steps))}
    if not grid or len(grid & own_steps) < _FOLLOWS * len(grid):
        return []
    return sorted(grid - own_steps)
