"""Measure the false-positive rate and the power of tests of outputs.

Unrelated pairs are disjoint initializations (no model in two pairs), so that their p-values are independent given
the inputs and a binomial interval holds for the false-positive rate. Pairs that share models need
:func:`.stats.intervals.model_interval`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from bornbiased_jax.config import ModelConfig
from bornbiased_jax.experiments.base import Entry
from bornbiased_jax.init import init_seed
from bornbiased_jax.lineage.outputs import OutputOptions, last_outputs
from bornbiased_jax.lineage.permutation import permutation_test
from bornbiased_jax.lineage.population import population_test
from bornbiased_jax.lineage.untrained_outputs import final_outputs
from bornbiased_jax.lineage.verdict import Verdict
from bornbiased_jax.parameters import Params
from bornbiased_jax.probes.inputs import Inputs
from bornbiased_jax.stats.intervals import binomial_interval
from bornbiased_jax.stats.multiple import holm

LEVELS = (0.01, 0.05)
OutputPair = tuple[np.ndarray, np.ndarray]
NUM_PERMUTATIONS = 1999
"""Permutations a pair: p < 0.01 has probability 0.0095 then, and thousands of pairs take minutes."""


def permutation_verdict(
    base_ND: np.ndarray, suspect_ND: np.ndarray, pair: int, *, num_permutations: int = NUM_PERMUTATIONS
) -> Verdict:
    """Run the permutation test on one pair of outputs; the pair's number seeds its permutations."""
    return permutation_test(base_ND, suspect_ND, seed=pair, num_permutations=num_permutations)


def unrelated_pairs(cfg: ModelConfig, inputs: Inputs, num_pairs: int, *, first_seed: int = 0) -> Iterator[OutputPair]:
    """Return outputs of disjoint pairs of untrained models: seeds ``first_seed`` + 2i and + 2i + 1, [N, D] each."""
    seeds = range(first_seed, first_seed + 2 * num_pairs)
    outputs = final_outputs(cfg, seeds, inputs)
    return zip(outputs, outputs, strict=True)


def related_pairs(
    cfg: ModelConfig, inputs: Inputs, num_pairs: int, *, drift: float, first_seed: int = 0
) -> Iterator[OutputPair]:
    """Yield outputs of untrained models and of themselves drifted toward another one (:func:`drifted`)."""
    # Each base drifts toward a seed that no pair uses.
    seeds = range(first_seed, first_seed + num_pairs)
    for seed, base_ND in zip(seeds, final_outputs(cfg, seeds, inputs), strict=True):
        descendant = drifted_seed(cfg, np.uint32(seed), np.uint32(seed + num_pairs), drift)
        yield base_ND, last_outputs(cfg, descendant, inputs, OutputOptions((0.0, cfg.embedding_std)))


def drifted(params: Params, target: Params, drift: jax.Array | float) -> Params:
    """Mix √(1 − s²)·W + s·W′: a stand-in for a descendant with every standard deviation of its initial weights.

    At s = 0 it is the first initialization, at s = 1 the other, unrelated one. Entries that are equal in both (norm
    scales, zero biases) stay.
    """
    base_factor = jnp.sqrt(1.0 - jnp.square(jnp.asarray(drift)))
    return jax.tree.map(lambda a, b: jnp.where(a == b, a, base_factor * a + drift * b), params, target)


@functools.partial(jax.jit, static_argnums=0)
def drifted_seed(cfg: ModelConfig, seed: jax.Array, target: jax.Array, drift: jax.Array) -> Params:
    """Draw the initial weights of a seed, drifted toward those of another."""
    return drifted(init_seed(cfg, seed), init_seed(cfg, target), drift)


def population_pairs(
    cfg: ModelConfig,
    inputs: Inputs,
    num_pairs: int,
    *,
    num_references: int = 100,
    first_seed: int = 0,
) -> Iterator[Verdict]:
    """Yield verdicts of the population test on unrelated pairs, each with references of its own."""
    num_seeds = num_references + 2
    for pair in range(num_pairs):
        seeds = range(first_seed + pair * num_seeds, first_seed + (pair + 1) * num_seeds)
        base_ND, suspect_ND, *references = final_outputs(cfg, seeds, inputs)
        yield population_test(base_ND, suspect_ND, references)


@dataclasses.dataclass(frozen=True)
class RejectionRate:
    """Pairs with p below a level, with Clopper and Pearson's interval and the exact test of the level."""

    level: float
    count: int
    rate: float
    low: float
    high: float
    confidence: float
    binomial_p: float


@dataclasses.dataclass(frozen=True)
class CalibrationSummary:
    """The distribution of p over pairs; None and no rates where no p is defined.

    Attributes:
        num_pairs: of all.
        num_undefined: of those that are left out of the rest.
        rates: one for each of :data:`LEVELS`.
        ks_statistic: of Kolmogorov and Smirnov, against uniform.
        ks_p: its p.
        z_mean: of the defined z.
        z_std: of the same, of two or more.
    """

    num_pairs: int
    num_undefined: int
    rates: list[RejectionRate]
    ks_statistic: float | None
    ks_p: float | None
    z_mean: float | None
    z_std: float | None


def summarize(
    p_values: Sequence[float | None], z_values: Sequence[float | None] = (), *, confidence: float = 0.95
) -> CalibrationSummary:
    """Summarize the distribution of p over pairs.

    For unrelated pairs a calibrated test has rates that its intervals cover (``binomial_p`` is the two-sided exact test
    of that) and a p that is uniform (``ks_p``); for related ones the rates are its power.

    Args:
        p_values: of one test, None where it is undefined.
        z_values: of the same pairs.
        confidence: of the intervals.
    """
    p_N = np.array([p for p in p_values if p is not None], np.float64)
    z_N = np.array([z for z in z_values if z is not None], np.float64)
    ks = stats.kstest(p_N, "uniform") if len(p_N) else None
    return CalibrationSummary(
        num_pairs=len(p_values),
        num_undefined=len(p_values) - len(p_N),
        rates=[_rate(p_N, level, confidence) for level in LEVELS if len(p_N)],
        ks_statistic=None if ks is None else float(ks.statistic),
        ks_p=None if ks is None else float(ks.pvalue),
        z_mean=float(z_N.mean()) if len(z_N) else None,
        z_std=float(z_N.std(ddof=1)) if len(z_N) > 1 else None,
    )


def _rate(p_N: np.ndarray, level: float, confidence: float) -> RejectionRate:
    below, count = int((p_N < level).sum()), len(p_N)
    low, high = binomial_interval(below, count, confidence)
    exact_p = float(stats.binomtest(below, count, level).pvalue)
    return RejectionRate(level, below, below / count, low, high, confidence, exact_p)


def summarize_verdicts(verdicts: Sequence[Verdict]) -> CalibrationSummary:
    """Summarize p and z of one test's verdicts."""
    return summarize([verdict.p_value for verdict in verdicts], [verdict.z for verdict in verdicts])


@dataclasses.dataclass
class Check:
    """One check of a case: what it checks, its p, and the p that is corrected for all checks."""

    case: str
    check: str
    p: float
    adjusted_p: float = math.nan


@dataclasses.dataclass(frozen=True)
class TestFamily:
    """Checks that are held together, and whether none rejects."""

    calibrated: bool
    num_checks: int
    checks: list[Check]


def check_family(summaries: Mapping[str, CalibrationSummary], *, family_error: float = 0.05) -> TestFamily:
    """Test whether a family of summaries of unrelated pairs is calibrated, corrected for the number of checks.

    Each summary brings one binomial check a level and one Kolmogorov–Smirnov check, all held together by
    Holm's correction.

    Args:
        summaries: by the name of the case.
        family_error: probability of rejecting anything when all are calibrated.
    """
    checks = []
    for case, summary in summaries.items():
        checks += [Check(case, f"rate below {rate.level:g}", rate.binomial_p) for rate in summary.rates]
        if summary.ks_p is not None:
            checks.append(Check(case, "uniform", summary.ks_p))
    for check, value in zip(checks, holm([check.p for check in checks]), strict=True):
        check.adjusted_p = float(value)
    least = min((check.adjusted_p for check in checks), default=math.nan)
    return TestFamily(bool(least >= family_error), len(checks), checks)


def verdict_of(family: Entry) -> str:
    """Say whether any check of a recorded family rejects, and the smallest p of all."""
    least = min((check["adjusted_p"] for check in family["checks"]), default=1.0)
    verdict = "none rejects" if family["calibrated"] else "at least one REJECTS"
    return f"{verdict} (smallest adjusted p {least:.2g})"
