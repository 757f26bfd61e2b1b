"""The distribution of weights at step 0 against the one that the configuration states."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from scipy import special

from bornbiased_jax import io
from bornbiased_jax.init import distribution
from bornbiased_jax.lineage.audit.finding import Finding
from bornbiased_jax.lineage.audit.scheme import init_scheme
from bornbiased_jax.lineage.audit.summary import Moments, Summary
from bornbiased_jax.parameters import parameter_table
from bornbiased_jax.stats.multiple import holm

TOLERANCE = 0.01
"""Relative deviation of a standard deviation below which nothing is said, however significant."""
_DEFAULT = 0.02


class Group(NamedTuple):
    """One parameter, all blocks together: what was stated (one value or several) and measured, and p of the nearest.

    ``constant`` is the stated value of a parameter that is no random number.
    """

    path: str
    stated: tuple[float, ...]
    measured: float
    p_value: float
    constant: float | None = None

    @property
    def deviation(self) -> float:
        """Relative to the nearest stated value; absolute for constants."""
        if self.constant is not None:
            return self.measured
        return min(abs(self.measured / stated - 1) for stated in self.stated)


def measured_law(summary: Summary) -> list[Group]:
    """Compare every parameter group of a birth with its configuration; none where nobody states a distribution.

    Of a run of this package that began with a birth the distributions are known. A Hugging Face directory states
    ``initializer_range`` (0.02 unless it says so); the matrices that write to the residual stream may be scaled by
    1/√(2L) as GPT-2's are.
    """
    reader = summary.reader
    if reader is None or summary.item.label.step != 0:
        return []
    if summary.item.record is not None and not summary.item.record.born_here:
        return []
    table = parameter_table(reader.cfg)
    stated_std: float | None = None
    if summary.item.record is None:
        stated_std = _initializer_range(summary)
        if stated_std is None:
            return []
    # All blocks of a parameter together.
    parts: dict[str, list[Moments]] = defaultdict(list)
    for name, moments in summary.moments.items():
        parts[name.rpartition("/")[0] if name not in table else name].append(moments)
    groups = []
    for path, members in parts.items():
        drawn = distribution(reader.cfg, table[path])
        constant = drawn.constant
        if constant is not None:
            deviation = max(abs(value - constant) for part in members for value in (part.smallest, part.largest))
            groups.append(Group(path, (), deviation, 0.0 if deviation > TOLERANCE else 1.0, constant))
            continue
        stated: tuple[float, ...] = (drawn.measured_std(),)
        if stated_std is not None:
            writes = table[path].group in ("output", "down")
            stated = (stated_std, stated_std / math.sqrt(2 * reader.cfg.num_layers))[: 2 if writes else 1]
        groups.append(_group(path, stated, members))
    return groups


def find_distributions(births: Sequence[Summary], alpha: float, repeating: Collection[str] = ()) -> list[Finding]:
    """Find births whose weights are significantly, and by more than 1%, not as stated, after Holm over all groups.

    Args:
        births: summaries of step 0.
        alpha: level of all groups together.
        repeating: names of births that repeat themselves. Their entries are not independent, so that nothing is known
            of how far a standard deviation may be off; their constants are compared as everyone's are.
    """
    rows = [
        (birth, group)
        for birth in births
        for group in measured_law(birth)
        if birth.name not in repeating or group.constant is not None
    ]
    rows.sort(key=lambda row: row[1].p_value)
    wrong: dict[str, list[tuple[Group, float]]] = defaultdict(list)
    adjusted = holm([group.p_value for _, group in rows]).tolist()
    for (birth, group), p_value in zip(rows, adjusted, strict=True):
        if p_value <= alpha and group.deviation > TOLERANCE:
            wrong[birth.name].append((group, p_value))
    named = {birth.name: birth for birth in births}
    return [_finding(named[name], groups) for name, groups in wrong.items()]


def law_rows(summary: Summary) -> list[dict[str, Any]]:
    """Return the distribution of each tensor, JSON-ready."""
    return [
        {
            "tensor": name,
            "entries": tensor.entries,
            "mean": tensor.mean,
            "std": _std(tensor),
            "kurtosis": tensor.kurtosis,
        }
        for name, tensor in summary.moments.items()
    ]


def _finding(summary: Summary, groups: list[tuple[Group, float]]) -> Finding:
    parts = []
    for group, _ in groups:
        if group.constant is not None:
            parts.append(f"{group.path} should be {group.constant:g} and is off by up to {group.measured:.3g}")
        else:
            stated = " or ".join(f"{value:.4g}" for value in group.stated)
            parts.append(f"{group.path} has standard deviation {group.measured:.4g} where {stated} is stated")
    more = f" (and {len(parts) - 3} more)" if len(parts) > 3 else ""
    # Name the scheme that fits before the configuration is said to be contradicted.
    assert summary.reader is not None
    scheme = init_scheme(summary.reader.cfg, summary.moments)
    text = f"{summary.name} is not drawn as its configuration says: {'; '.join(parts[:3])}{more}."
    if scheme.fits:
        text = f"{summary.name} is drawn by the scheme {scheme.nearest_scheme}, and its configuration states another: "
        text += f"{'; '.join(parts[:3])}{more}."
    elif scheme.nearest_scheme is not None:
        text += f" No named scheme fits every group; the nearest is {scheme.nearest_scheme}."
    nearest: dict[str, tuple[str, ...]] = {row.group: row.nearest for row in scheme.groups}
    return Finding("init-law", (summary.name,), text, max(p_value for _, p_value in groups), nearest)


def _group(path: str, stated: tuple[float, ...], members: list[Moments]) -> Group:
    count = sum(part.entries for part in members)
    second = sum(part.entries * part.rms**2 for part in members) / count
    fourth = sum(part.entries * part.kurtosis * part.rms**4 for part in members) / count
    # Of the second moment over its stated value: the delta method, with the fourth moment that was measured.
    error = math.sqrt(max(fourth / second**2 - 1.0, 1e-6) / count) if second > 0 else 1.0
    tails = [float(2 * special.ndtr(-abs(math.log(max(second, 1e-300) / value**2)) / error)) for value in stated]
    return Group(path, stated, math.sqrt(second), max(tails))


def _std(moments: Moments) -> float:
    return math.sqrt(max(0.0, moments.rms**2 - moments.mean**2))


def _initializer_range(summary: Summary) -> float | None:
    config = summary.item.config
    if config is None:
        return None
    content = io.read_json(config)
    value = content.get("initializer_range", _DEFAULT)
    return float(value) if isinstance(value, (int, float)) and value > 0 else None
