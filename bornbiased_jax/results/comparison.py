"""Two results of one kind compared, number by number: the same seeds, blocks, heads or steps of both."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from bornbiased_jax.errors import InputError
from bornbiased_jax.record import flat
from bornbiased_jax.results.result import Listing, Result, written
from bornbiased_jax.results.wording import among, count


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison(Result):
    """Two results of one kind, and the differences of their numbers.

    Attributes:
        a, b: the results.
        labels: columns by which their rows were matched.
        matches: a row for each label that both have: of each number ``NAME.a``, ``NAME.b`` and ``NAME.difference``,
            which is b minus a; without a difference where one of them is None.
    """

    question = "In what do two results differ?"
    a: Result
    b: Result
    labels: tuple[str, ...]
    matches: Sequence[Mapping[str, Any]]

    def index(self) -> tuple[str, ...]:
        """Return the columns by which rows were matched."""
        return self.labels

    def to_json(self) -> dict[str, object]:
        """Return both results as their commands write them, and the matched rows."""
        return {"a": self.a.to_json(), "b": self.b.to_json(), "rows": self.rows()}

    def rows(self) -> list[dict[str, object]]:
        """Return a row for each label that both results have."""
        return [dict(row) for row in self.matches]

    def summary(self) -> list[str]:
        """Say how many numbers were compared, which of them differ at all, and which one result lacks."""
        compared = self.table().rows
        differing = [row[0] for row in compared if row[3] or row[4]]
        lacking = list(dict.fromkeys(
            key.removesuffix(".a") for row in self.matches for key in row
            if key.endswith(".a") and f"{key.removesuffix('.a')}.difference" not in row
        ))  # fmt: skip
        by = f" by {among(self.labels)}" if self.labels else ""
        matched = f"{count(len(self.matches), 'row')} of both results, matched{by}"
        outcome = "neither has a number to compare" if not lacking else "no number is in both"
        if differing:
            outcome = f"{among(differing)} {'differs' if len(differing) == 1 else 'differ'}"
        elif compared:
            outcome = f"all numbers{' that both have' if lacking else ''} are equal"
        return [f"{matched}: {outcome}{f'; one of them lacks some of {among(lacking)}' if lacking else ''}."]

    def tables(self) -> list[Listing]:
        """List a row for each quantity: its means, and mean, standard deviation and range of the differences."""
        names = [key.removesuffix(".difference") for row in self.matches for key in row if key.endswith(".difference")]
        rows = []
        for name in dict.fromkeys(names):
            cells = [row for row in self.matches if f"{name}.difference" in row]
            a, b, differences = ([float(row[f"{name}.{key}"]) for row in cells] for key in ("a", "b", "difference"))
            std = statistics.stdev(differences) if len(differences) > 1 else None
            ends = f"{written(min(differences))} to {written(max(differences))}"
            rows.append([name, *map(statistics.fmean, (a, b, differences)), std, ends])
        columns = ["quantity", "mean of a", "mean of b", "mean of b - a", "sd of b - a", "range of b - a"]
        return [Listing(f"Two results compared over {count(len(self.matches), 'row')}", columns, rows)]


def compare(a: Result, b: Result) -> Comparison:
    """Compare two results of one kind where both have a number: of the same seed, block, head, length or step.

    Args:
        a: a result of a function of this package.
        b: another one of the same function, of another model, scheme, text or run.

    Returns:
        The differences, b minus a, as a result with tables, rows and arrays of its own.

    Raises:
        InputError: no results, results of two kinds, or none of whose rows have the same labels.

    Example:
        >>> from bornbiased_jax.results import Intervention
        >>> before, after = ({"position": 1, "before": {"by_block": [0.5]}, "by_block": [rate]} for rate in (0.5, 0.25))
        >>> compare(Intervention(before), Intervention(after)).arrays["after.difference"].tolist()
        [-0.25]
    """
    for name, result in (("a", a), ("b", b)):
        if not isinstance(result, Result):
            raise InputError(f"{name} is a {type(result).__name__}: compare two results, as contraction() returns")
    if type(a) is not type(b):
        raise InputError(f"a is a {type(a).__name__} and b a {type(b).__name__}: compare two results of one kind")
    rows_a, rows_b = ([flat(row) for row in result.rows()] for result in (a, b))
    labels = tuple(name for name in a.index() if rows_a and rows_b and name in rows_a[0] and name in rows_b[0])
    partners = _by_label(rows_b, labels)
    matches = [
        {name: row[name] for name in labels} | _differences(row, partners[label], labels)
        for label, row in _by_label(rows_a, labels).items()
        if label in partners
    ]
    if not matches:
        raise InputError(f"the two results share no {' and '.join(labels) or 'row'}: make both with the same ones")
    return Comparison(a, b, labels, matches)


def _by_label(rows: Sequence[dict[str, object]], labels: Sequence[str]) -> dict[tuple[object, ...], dict[str, object]]:
    """Return rows by their labels; rows of equal labels, as cells of a diagram without any, are numbered in order."""
    times: Counter[tuple[object, ...]] = Counter()
    by_label = {}
    for row in rows:
        label = tuple(row[name] for name in labels)
        by_label[*label, times[label]] = row
        times[label] += 1
    return by_label


def _differences(a: Mapping[str, object], b: Mapping[str, object], labels: Sequence[str]) -> dict[str, object]:
    """Return the numbers of two rows, and b minus a where both have one."""
    cells: dict[str, object] = {}
    for name in [name for name in a if name not in labels and name in b]:
        pair = a[name], b[name]
        numbers = [cell for cell in pair if isinstance(cell, int | float) and not isinstance(cell, bool)]
        if len(numbers) == 2 or (numbers and None in pair):
            cells |= {f"{name}.a": pair[0], f"{name}.b": pair[1]}
        if len(numbers) == 2:
            cells[f"{name}.difference"] = numbers[1] - numbers[0]
    return cells
