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
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard

from scipy import special

from bornbiased_jax import io
from bornbiased_jax.checkpoints.families import FAMILIES
from bornbiased_jax.checkpoints.naming import NamedRoles
from bornbiased_jax.checkpoints.native_roles import LANGUAGE
from bornbiased_jax.checkpoints.sizes import config_of
from bornbiased_jax.config import ModelConfig
from bornbiased_jax.init import distribution
from bornbiased_jax.lineage.audit.finding import Finding, listed
from bornbiased_jax.lineage.audit.summary import CheckpointSummary, TensorMoments
from bornbiased_jax.lineage.audit.ties import ALPHA
from bornbiased_jax.lineage.fingerprints import Fingerprint, Repeats
from bornbiased_jax.lineage.structure import equal_labels, repeated_parts
from bornbiased_jax.parameters import Parameter, parameter_table
from bornbiased_jax.schemes import CUTS, DEFAULT_STD, SCHEMES, Distribution, Group, truncation_factor
from bornbiased_jax.stats.multiple import holm

TOLERANCE = 0.01
"""Relative deviation of a standard deviation below which a distribution fits, however significant it is."""
ROUNDING = 2.0**-8
"""Relative rounding that a stored entry may have: bfloat16's."""
TRUNCATED_BELOW = 4.0
"""Largest |entry| over the standard deviation, of many entries, that tells of a truncation."""
MANY = 50_000
# Storage types whose rounding moves no standard deviation by as much as the tolerance.
_FLOATS = ("float64", "float32", "float16", "bfloat16", "float8")


@dataclasses.dataclass(frozen=True)
class GroupScheme:
    """The distribution of the entries of one group, and the named schemes that draw them so.

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
class ModelScheme:
    """The named scheme that an untrained model was drawn by.

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


def init_scheme(cfg: ModelConfig, moments: Mapping[str, TensorMoments]) -> ModelScheme:
    """Score every named scheme on the moments of a checkpoint's tensors.

    Args:
        cfg: the architecture; its own scheme is not looked at.
        moments: of every tensor by place, "blocks/mlp/up/kernel/0" for block 1.
    """
    # Norms and biases are constants in every scheme and tell none apart.
    places: dict[Group, list[_LayerTensor]] = defaultdict(list)
    for place in _places(cfg, moments):
        if place[0].group not in ("norm", "bias"):
            places[place[0].group].append(place)
    # Log likelihood of each scheme in each group, over all tensors of the group.
    scores: dict[Group, dict[str, float]] = {}
    drawn_by: dict[str, ModelConfig] = {name: cfg.replace(init=name, init_groups=None) for name in SCHEMES}
    for group, tensors in places.items():
        scores[group] = {
            name: sum(log_likelihood(part, distribution(scheme, row), layer) for row, layer, part in tensors)
            for name, scheme in drawn_by.items()
        }
    groups = tuple(_describe(group, places[group], scores[group], drawn_by) for group in places)
    # Over all groups; one impossible group rules a scheme out.
    totals = {name: sum(scores[group][name] for group in places) for name in SCHEMES}
    ranked = [name for name in sorted(totals, key=lambda name: -totals[name]) if totals[name] > -math.inf]
    nearest = ranked[0] if ranked and places else None
    fits = nearest is not None and all(row.fits and nearest in row.nearest for row in groups)
    return ModelScheme(groups, nearest, ranked[1] if len(ranked) > 1 else None, fits)


def log_likelihood(moments: TensorMoments, dist: Distribution, layer: int) -> float:
    """Compute the log likelihood of a tensor's entries, from its moments, under one distribution.

    Constants are certain or impossible: 0 or −∞. A structure is left out: it moves no moment that is looked at.
    """
    # Constants first, then densities: uniform, normal, normal cut off.
    largest = max(abs(moments.smallest), abs(moments.largest))
    if dist.constant is not None:
        return 0.0 if moments.smallest == moments.largest == dist.constant else -math.inf
    if moments.smallest == moments.largest:
        return -math.inf
    std = dist.stds[layer if len(dist.stds) > 1 else 0]
    if dist.kind == "uniform":
        half_width = math.sqrt(3.0) * std
        inside = largest <= half_width * (1 + ROUNDING)
        return -moments.entries * math.log(2 * half_width) if inside else -math.inf
    log_density = -math.log(std * math.sqrt(2 * math.pi)) - moments.rms**2 / (2 * std**2)
    if dist.kind in CUTS:
        cut = CUTS[dist.kind]
        if largest > cut * std * (1 + ROUNDING):
            return -math.inf
        # A truncated normal is denser by the probability of what is left.
        log_density -= math.log(float(special.erf(cut / math.sqrt(2))))
    return moments.entries * log_density


_LayerTensor = tuple[Parameter, int, TensorMoments]


def _places(cfg: ModelConfig, moments: Mapping[str, TensorMoments]) -> Iterator[_LayerTensor]:
    """Yield every tensor with its parameter, and its layer counted from 0."""
    table = parameter_table(cfg)
    for name, part in moments.items():
        path, _, layer = (name, "", "0") if name in table else name.rpartition("/")
        yield table[path], int(layer), part


def _describe(
    group: Group, tensors: Sequence[_LayerTensor], scores: Mapping[str, float], drawn_by: Mapping[str, ModelConfig]
) -> GroupScheme:
    pooled = pool(part for _, _, part in tensors)
    largest = max(abs(pooled.smallest), abs(pooled.largest))
    # Uniform entries end at √3 and are no truncated normals.
    ends_early = pooled.rms > 0 and pooled.kurtosis > 2.0 and pooled.entries >= MANY
    ratio = largest / pooled.rms if ends_early else math.inf
    # Schemes that draw a group alike have one likelihood, up to rounding, and are named together.
    scores = {name: float(f"{value:.11g}") for name, value in scores.items()}
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


def _fits(moments: TensorMoments, dist: Distribution, layer: int) -> bool:
    """Tell whether a standard deviation is as stated: within 1%, or within five standard errors."""
    if dist.constant is not None:
        return True
    # The delta method for the second moment, with the fourth that was measured.
    error = 0.5 * math.sqrt(max(moments.kurtosis - 1.0, 1e-6) / moments.entries)
    return abs(moments.rms / dist.measured_std(layer) - 1) <= max(TOLERANCE, 5 * error)


def pool(parts: Iterable[TensorMoments]) -> TensorMoments:
    """Return the moments of several tensors together."""
    parts = list(parts)
    # Raw moments add up; the kurtosis is made of them again.
    count = sum(part.entries for part in parts)
    mean = sum(part.entries * part.mean for part in parts) / count
    second = sum(part.entries * part.rms**2 for part in parts) / count
    fourth = sum(part.entries * part.kurtosis * part.rms**4 for part in parts) / count
    kurtosis = fourth / second**2 if second > 0 else 0.0
    ends = min(part.smallest for part in parts), max(part.largest for part in parts)
    return TensorMoments(count, mean, math.sqrt(second), kurtosis, *ends)


class Deviation(NamedTuple):
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


def _deviations(summary: CheckpointSummary) -> list[Deviation]:
    """Compare every parameter group of an initialization with its configuration, where that states a distribution.

    Of a run of this package that began with an initialization the distributions are known. A Hugging Face directory
    states ``initializer_range`` (0.02 unless it says so); the matrices that write to the residual stream may be scaled
    by 1/√(2L) as GPT-2's are.
    """
    # Only initializations whose distribution something states.
    if summary.item.label.step != 0:
        return []
    reader = summary.opened
    if isinstance(reader, NamedRoles):
        return _named_deviations(summary, reader)
    if reader is None:
        return []
    if summary.item.origin is not None and not summary.item.origin.is_initialized_here:
        return []
    stated_std: float | None = None
    if summary.item.origin is None:
        if reader.kind != "huggingface":
            return []
        stated_std = io.read_json(reader.files[0].parent / "config.json").get("initializer_range", DEFAULT_STD)
        if not stated_std:
            return []
    # All blocks of a parameter together.
    table = parameter_table(reader.cfg)
    parts: dict[str, list[TensorMoments]] = defaultdict(list)
    for row, _, moments in _places(reader.cfg, _by_parameter(summary)):
        parts[row.path].append(moments)
    groups = []
    for path in (path for path in table if path in parts):
        members = parts[path]
        # Constants are compared with their value, random numbers by their standard deviation.
        dist = distribution(reader.cfg, table[path])
        constant = dist.constant
        if constant is not None:
            deviation = max(abs(value - constant) for part in members for value in (part.smallest, part.largest))
            groups.append(Deviation(path, (), deviation, 0.0 if deviation > TOLERANCE else 1.0, constant))
            continue
        stated: tuple[float, ...] = (dist.measured_std(),)
        if stated_std is not None:
            writes = table[path].group in ("output", "down")
            stated = (stated_std, stated_std / math.sqrt(2 * reader.cfg.num_layers))[: 2 if writes else 1]
        # Of neurons in pairs the second ones are no draws of their own.
        groups.append(_deviation(path, stated, members, copies=1 if dist.neuron_axis is None else 2))
    return groups


def _by_parameter(summary: CheckpointSummary) -> dict[str, TensorMoments]:
    """Return the moments of every parameter by path and layer, of the experts of a block together."""
    parts: dict[str, list[TensorMoments]] = defaultdict(list)
    for role in summary.source.roles:
        parts[role.name].append(summary.moments[role.path])
    return {name: pool(members) for name, members in parts.items()}


def _named_deviations(summary: CheckpointSummary, source: NamedRoles) -> list[Deviation]:
    """Compare the matrices of an initialization that is read by names with the standard deviation that is stated.

    Norms and biases are left out: where they begin, only a configuration that is understood says. So are matrices that
    are products of two in the file, and those that were rounded to integers.
    """
    file = source.files[0].parent / "config.json"
    config = config_of(io.read_json(file), LANGUAGE) if file.is_file() else {}
    default = DEFAULT_STD if str(config.get("model_type")) in FAMILIES else None
    stated = config.get("initializer_range", default)
    if not _is_positive(stated):
        return []
    # ModernBERT's are truncated at so many of the standard deviations that it states, and its head has one of its own.
    cut = config.get("initializer_cutoff_factor")
    factor = truncation_factor(max(cut, 0.1)) if _is_positive(cut) else 1.0
    stated *= factor
    width = config.get("hidden_size")
    of_head = (factor * width**-0.5,) if _is_positive(cut) and _is_positive(width) else ()
    # All blocks and experts of a matrix together.
    parts: dict[tuple[str, Group], list[TensorMoments]] = defaultdict(list)
    roles = [role for role in source.roles if role.component == LANGUAGE]
    for role in roles:
        is_drawn = len(role.axes) == 2 and role.group not in ("norm", "bias", "other") and "+" not in role.name
        is_fixed = role.group == "positions" and role.path not in summary.forms["exact"]
        if is_drawn and not is_fixed and source.stored_as(role) in _FLOATS:
            parts[role.matrix_name, role.group].append(summary.moments[role.path])
    num_blocks = len({role.block for role in roles} - {None})
    scaled = (stated / math.sqrt(2 * max(1, num_blocks)),)
    further: dict[Group, tuple[float, ...]] = {"output": scaled, "down": scaled, "head": of_head}
    return [
        _deviation(name, (stated, *further.get(group, ())), members)
        for (name, group), members in parts.items()
        # Some routers begin at zero, so that every expert is as likely.
        if group != "router" or any(part.rms > 0 for part in members)
    ]


def _is_positive(value: object) -> TypeGuard[int | float]:
    """Check whether a value of a configuration is a positive number, of a size that a model may have."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and 0 < value <= 1e6


def find_distributions(initializations: Sequence[CheckpointSummary], repeating: Collection[str]) -> list[Finding]:
    """Find initializations whose weights are significantly, and by more than 1%, not as stated (Holm over all).

    Args:
        initializations: summaries of step 0.
        repeating: names of initializations that repeat themselves. Their entries are not independent, so that nothing
            is known of how far a standard deviation may be off; their constants are compared as everyone's are.
    """
    # Every parameter of every initialization is one test of the family.
    rows = [
        (initial, group)
        for initial in initializations
        for group in _deviations(initial)
        if initial.name not in repeating or group.constant is not None
    ]
    rows.sort(key=lambda row: row[1].p_value)
    wrong: dict[CheckpointSummary, list[tuple[Deviation, float]]] = defaultdict(list)
    # Holm over all; a deviation that is significant and small is no finding.
    adjusted = holm([group.p_value for _, group in rows]).tolist()
    for (initial, group), p_value in zip(rows, adjusted, strict=True):
        if p_value <= ALPHA and group.deviation > TOLERANCE:
            wrong[initial].append((group, p_value))
    return [_finding(initial, groups) for initial, groups in wrong.items()]


def _finding(summary: CheckpointSummary, groups: list[tuple[Deviation, float]]) -> Finding:
    # Write what is off, parameter by parameter.
    parts = []
    for group, _ in groups:
        name = summary.tensor_name(group.path)
        if group.constant is not None:
            parts.append(f"{name} should be {group.constant:g} and is off by up to {group.measured:.3g}")
        else:
            stated = " or ".join(f"{value:.4g}" for value in group.stated)
            parts.append(f"{name} has standard deviation {group.measured:.4g} where {stated} is stated")
    more = f" (and {len(parts) - 3} more)" if len(parts) > 3 else ""
    # Name the scheme that fits before the configuration is said to be contradicted.
    text = f"{summary.name} is not drawn as its configuration says: {'; '.join(parts[:3])}{more}."
    if summary.config is None:
        return Finding("init-law", (summary.name,), text, max(p_value for _, p_value in groups))
    scheme = init_scheme(summary.config, _by_parameter(summary))
    # Constants, as scales of norms, are the same in every scheme: that they are off tells of no other one.
    is_drawn_otherwise = any(group.constant is None for group, _ in groups)
    if is_drawn_otherwise and scheme.fits:
        text = f"{summary.name} is drawn by the scheme {scheme.nearest_scheme}, and its configuration states another: "
        text += f"{'; '.join(parts[:3])}{more}."
    elif is_drawn_otherwise and scheme.nearest_scheme is not None:
        text += f" No named scheme fits every group; the nearest is {scheme.nearest_scheme}."
    nearest: dict[str, tuple[str, ...]] = {row.group: row.nearest for row in scheme.groups}
    return Finding("init-law", (summary.name,), text, max(p_value for _, p_value in groups), nearest)


def _deviation(path: str, stated: tuple[float, ...], members: Sequence[TensorMoments], *, copies: int = 1) -> Deviation:
    pooled = pool(members)
    # Of the second moment over its stated value: the delta method, with the fourth moment that was measured.
    error = math.sqrt(copies * max(pooled.kurtosis - 1.0, 1e-6) / pooled.entries) if pooled.rms > 0 else 1.0
    logs = [2 * math.log(max(pooled.rms, 1e-150) / value) for value in stated]
    tails = [float(2 * special.ndtr(-abs(log) / error)) for log in logs]
    return Deviation(path, stated, pooled.rms, max(tails))


def find_repeats(initializations: Sequence[CheckpointSummary]) -> list[Finding]:
    """Find initializations with fewer random numbers than entries, beyond the paired neurons of the configuration."""
    findings = []
    for initial in initializations:
        if initial.fingerprint is None:
            continue
        if repeats := repeats_of(initial.fingerprint, initial.config):
            text = (
                f"{initial.name} repeats itself: {listed(repeats)}. It has fewer random numbers "
                "than entries, as where every shard of a tensor was given the same draw, so that its standard "
                "deviations are held against no configuration. Draw every shard from a key of its own."
            )
            findings.append(Finding("repeats", (initial.name,), text))
    return findings


def repeats_of(fingerprint: Fingerprint, cfg: ModelConfig | None) -> list[str]:
    """Write what repeats along each axis, but for neurons that were drawn in pairs on purpose.

    Args:
        fingerprint: of the initialization.
        cfg: its architecture; None of one read by names, which draws no pairs.
    """
    structures = set()
    if cfg is not None:
        structures = {distribution(cfg, row).structure for row in parameter_table(cfg).values() if row.is_matrix}
    in_pairs = bool(structures & {"mirrored", "repeated"})
    return [
        _repeat_text(report)
        for report in fingerprint.repeats
        if (repeated_parts(report) or equal_labels(report))
        and not (in_pairs and report.labels == "neurons" and repeated_parts(report) <= 2)
    ]


def _repeat_text(report: Repeats) -> str:
    """Write what repeats: "the neurons of each block in 8 parts that are alike"."""
    axis = {"coordinates": "the residual coordinates", "tokens": "the rows of the embedding"}.get(
        report.labels, f"the {report.labels} of each block"
    )
    parts = repeated_parts(report)
    if not parts:
        return f"{axis}, {report.num_equal} of which are equal"
    return f"{axis} in {parts} parts that {'are alike' if report.z_by_period[parts] > 0 else 'mirror each other'}"
