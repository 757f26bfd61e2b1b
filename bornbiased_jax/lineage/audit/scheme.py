"""Name the initialization scheme of an untrained checkpoint, group by group, from the moments of its tensors.

The likelihood of a scheme's distribution depends on few numbers of a tensor: of a normal on the second moment, of a
truncated or uniform one also on the largest entry. So every named scheme is scored from moments alone, group by group,
and the nearest is named with the runner-up; that the nearest also *fits* is a separate question, which the standard
error of the second moment answers.
"""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from scipy import special

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import distribution
from bornbiased_jax.lineage.audit.summary import Moments
from bornbiased_jax.parameters import Parameter, parameter_table
from bornbiased_jax.schemes import CUTS, SCHEMES, Distribution, Group

TOLERANCE = 0.01
"""Relative deviation of a standard deviation below which a distribution fits, however significant it is."""
ROUNDING = 2.0**-8
"""Relative rounding that a stored entry may have: bfloat16's."""
TRUNCATED_BELOW = 4.0
"""Largest |entry| over the standard deviation, of many entries, that tells of a truncation."""
MANY = 50_000


@dataclasses.dataclass(frozen=True)
class GroupScheme:
    """How the entries of one group are distributed, and which named schemes draw them so.

    Attributes:
        group: of the table of parameters.
        std: root mean square of all entries.
        mean: of all entries.
        kurtosis: fourth moment over the squared second, 3 of a normal and 1.8 of a uniform distribution.
        truncated_at: largest |entry| over the standard deviation, where a normal would have shown larger ones.
        nearest: the named schemes of the greatest likelihood, which all draw this group alike.
        runner_up: the schemes that come next; none where there are no others.
        fits: whether the standard deviation of the nearest agrees within 1% or the standard error.
    """

    group: Group
    std: float
    mean: float
    kurtosis: float
    truncated_at: float | None
    nearest: tuple[str, ...]
    runner_up: tuple[str, ...]
    fits: bool


@dataclasses.dataclass(frozen=True)
class InitScheme:
    """What named scheme an untrained model was drawn by.

    Attributes:
        groups: every group that is drawn.
        nearest_scheme: the named scheme of the greatest likelihood over all groups; None where none is possible.
        runner_up: the next one.
        fits: whether the nearest one fits in every group.
    """

    groups: tuple[GroupScheme, ...]
    nearest_scheme: str | None
    runner_up: str | None
    fits: bool


def init_scheme(cfg: ModelConfig, moments: Mapping[str, Moments]) -> InitScheme:
    """Score every named scheme on the moments of a checkpoint's tensors.

    Args:
        cfg: the architecture; its own scheme is not looked at.
        moments: of every tensor by place, "blocks/mlp/up/kernel/0" for block 1.
    """
    places = _by_group(cfg, moments)
    # Log likelihood of each scheme in each group, over all tensors of the group.
    scores: dict[Group, dict[str, float]] = {}
    drawn_by: dict[str, ModelConfig] = {name: cfg.replace(init=name, init_groups=None) for name in SCHEMES}
    for group, tensors in places.items():
        scores[group] = {
            name: sum(log_likelihood(part, distribution(scheme, row), layer) for row, layer, part in tensors)
            for name, scheme in drawn_by.items()
        }
    groups = tuple(_describe(group, places[group], scores[group], drawn_by) for group in places)
    totals = {name: sum(scores[group][name] for group in places) for name in SCHEMES}
    ranked = [name for name in sorted(totals, key=lambda name: -totals[name]) if totals[name] > -math.inf]
    nearest = ranked[0] if ranked and places else None
    fits = nearest is not None and all(row.fits and nearest in row.nearest for row in groups)
    return InitScheme(groups, nearest, ranked[1] if len(ranked) > 1 else None, fits)


def log_likelihood(moments: Moments, drawn: Distribution, layer: int) -> float:
    """Compute the log likelihood of a tensor's entries, from its moments, under one distribution.

    Constants are certain or impossible: 0 or −∞. A structure is left out: it moves no moment that is looked at.
    """
    largest = max(abs(moments.smallest), abs(moments.largest))
    if drawn.constant is not None:
        return 0.0 if moments.smallest == moments.largest == drawn.constant else -math.inf
    if moments.smallest == moments.largest:
        return -math.inf
    std = drawn.stds[layer if len(drawn.stds) > 1 else 0]
    if drawn.kind == "uniform":
        half_width = math.sqrt(3.0) * std
        inside = largest <= half_width * (1 + ROUNDING)
        return -moments.entries * math.log(2 * half_width) if inside else -math.inf
    log_density = -math.log(std * math.sqrt(2 * math.pi)) - moments.rms**2 / (2 * std**2)
    if drawn.kind in CUTS:
        cut = CUTS[drawn.kind]
        if largest > cut * std * (1 + ROUNDING):
            return -math.inf
        # A truncated normal is denser by the probability of what is left.
        log_density -= math.log(float(special.erf(cut / math.sqrt(2))))
    return moments.entries * log_density


_Place = tuple[Parameter, int, Moments]


def _by_group(cfg: ModelConfig, moments: Mapping[str, Moments]) -> dict[Group, list[_Place]]:
    """Sort the tensors of matrices and tables by group, with their layer counted from 0."""
    table = parameter_table(cfg)
    places: dict[Group, list[_Place]] = defaultdict(list)
    for name, part in moments.items():
        path, _, layer = (name, "", "0") if name in table else name.rpartition("/")
        if table[path].group not in ("norm", "bias"):
            places[table[path].group].append((table[path], int(layer), part))
    return dict(places)


def _describe(
    group: Group, tensors: Sequence[_Place], scores: Mapping[str, float], drawn_by: Mapping[str, ModelConfig]
) -> GroupScheme:
    pooled = pool(part for _, _, part in tensors)
    largest = max(abs(pooled.smallest), abs(pooled.largest))
    # Uniform entries end at √3 and are no truncated normals.
    ends_early = pooled.rms > 0 and pooled.kurtosis > 2.0 and pooled.entries >= MANY
    ratio = largest / pooled.rms if ends_early else math.inf
    ranked = sorted(set(scores.values()), reverse=True)
    possible = [value for value in ranked if value > -math.inf]
    at = [tuple(name for name in scores if scores[name] == value) for value in possible[:2]]
    nearest, runner_up = (*at, (), ())[:2]
    return GroupScheme(
        group,
        pooled.rms,
        pooled.mean,
        pooled.kurtosis,
        ratio if ratio < TRUNCATED_BELOW else None,
        nearest,
        runner_up,
        bool(nearest) and all(_fits(part, distribution(drawn_by[nearest[0]], row), n) for row, n, part in tensors),
    )


def _fits(moments: Moments, drawn: Distribution, layer: int) -> bool:
    """Tell whether a standard deviation is as stated: within 1%, or within five standard errors."""
    if drawn.constant is not None:
        return True
    # The delta method for the second moment, with the fourth that was measured.
    error = 0.5 * math.sqrt(max(moments.kurtosis - 1.0, 1e-6) / moments.entries)
    return abs(moments.rms / drawn.measured_std(layer) - 1) <= max(TOLERANCE, 5 * error)


def pool(parts: Iterable[Moments]) -> Moments:
    """Return the moments of several tensors together."""
    listed = list(parts)
    count = sum(part.entries for part in listed)
    mean = sum(part.entries * part.mean for part in listed) / count
    second = sum(part.entries * part.rms**2 for part in listed) / count
    fourth = sum(part.entries * part.kurtosis * part.rms**4 for part in listed) / count
    kurtosis = fourth / second**2 if second > 0 else 0.0
    ends = min(part.smallest for part in listed), max(part.largest for part in listed)
    return Moments(count, mean, math.sqrt(second), kurtosis, *ends)
